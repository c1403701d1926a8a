"""Why anything differs between ranks that can be read from an object: of it, and of all that it may hold."""

from __future__ import annotations

from collections import defaultdict

from amp_rules.ranks.origins import NOWHERE, Origin, Origins
from amp_rules.ranks.values import RankValue, Ref


class Readable:
    """The origins below each object, handed on to whatever may hold it as soon as there are more of them.

    Objects only ever hold more, and objects are put into others far more often than something in them begins to differ
    between ranks. So nothing is followed when somebody asks. The origins of an object are the bits of a number:
    thousands of objects can have the same hundreds of them.
    """

    def __init__(self) -> None:
        self._holders: defaultdict[Ref, set[Ref]] = defaultdict(set)
        self._below: dict[Ref, int] = {}
        self._places: dict[Origin, int] = {}
        self._sets: dict[int, Origins] = {0: NOWHERE}

    def hold(self, holder: Ref, value: RankValue) -> None:
        """Note that a value can be read from an object."""
        found = self._bits(value.own)
        for ref in value.refs:
            self._holders[ref].add(holder)
            found |= self._below.get(ref, 0)
        if found:
            self._spread(holder, found)

    def origins(self, refs: frozenset[Ref]) -> Origins:
        """Why anything differs that can be read from objects."""
        found = 0
        for ref in refs:
            found |= self._below.get(ref, 0)
        known = self._sets.get(found)
        if known is None:
            known = self._sets[found] = frozenset(
                origin for origin, place in self._places.items() if found >> place & 1
            )
        return known

    def _spread(self, holder: Ref, origins: int) -> None:
        """Add to what can be read from an object, and from all that may hold it."""
        pending = [holder]
        while pending:
            ref = pending.pop()
            known = self._below.get(ref, 0)
            if known | origins != known:
                self._below[ref] = known | origins
                pending.extend(self._holders.get(ref, ()))

    def _bits(self, origins: Origins) -> int:
        found = 0
        for origin in origins:
            found |= 1 << self._places.setdefault(origin, len(self._places))
        return found
