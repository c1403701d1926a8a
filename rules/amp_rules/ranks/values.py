"""What is known of a value about ranks: why its content differs, why its size does, and what it may be a part of."""

from __future__ import annotations

import ast
from typing import NamedTuple, TypeVar

from amp_rules.flow.values import ClassInfo
from amp_rules.ranks.origins import NOWHERE, Origins

_Item = TypeVar("_Item")
_MAX_REFS = 24
"""Objects that one value can be. Variables hold one or two; of a table of more, those that come first count."""


class Ref(NamedTuple):
    """An object that can change: where it was made, in which evaluation of its function, and of which class.

    A ``view`` is what an attribute or element of a library's object is: it changes with the object.
    """

    site: ast.AST
    context: int
    cls: ClassInfo | None = None
    view: bool = False

    @property
    def base(self) -> Ref:
        """The object itself."""
        return Ref(self.site, self.context, self.cls) if self.view else self

    @property
    def part(self) -> Ref:
        """A part of the object."""
        return self if self.view else Ref(self.site, self.context, self.cls, view=True)


SHARED = -2
"""The context of a loader that is shared out, whose batches alone differ between ranks."""


class Unknown:
    """Stands for a constant that is not known."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()


class RankValue(NamedTuple):
    """A value, as far as ranks are concerned.

    Attributes:
        content: why what it holds differs between ranks; of a number, why the number does.
        size: why its length or shape differs, or how often it can be iterated.
        refs: the objects it may be.
        constant: the literal that it is, where that is certain.
        rows: why its first dimension differs, where more is known of that than of its shape: the number of samples.
    """

    content: Origins = NOWHERE
    size: Origins = NOWHERE
    refs: frozenset[Ref] = frozenset()
    constant: object = UNKNOWN
    rows: Origins | None = None

    @property
    def own(self) -> Origins:
        """What differs of it, without what the objects hold that it may be."""
        if not self.size or self.size is self.content:
            return self.content
        return self.content | self.size if self.content else self.size

    def with_origins(self, origins: Origins) -> RankValue:
        """The same, assigned where ``origins`` decide whether it is."""
        if not origins:
            return self
        rows = None if self.rows is None else self.rows | origins
        return RankValue(self.content | origins, self.size | origins, self.refs, rows=rows)

    def unknown(self) -> RankValue:
        """The same without its constant."""
        return self if self.constant is UNKNOWN else self._replace(constant=UNKNOWN)


REPLICATED = RankValue()


def join(one: RankValue, other: RankValue) -> RankValue:
    """What may be either; the very first value where the other one adds nothing."""
    if one is other or other == one:
        return one
    constant = one.constant
    if constant is not UNKNOWN and not (type(constant) is type(other.constant) and constant == other.constant):
        constant = UNKNOWN
    refs = _union(one.refs, other.refs)
    if len(refs) > _MAX_REFS:
        refs = one.refs
    content, size = _union(one.content, other.content), _union(one.size, other.size)
    rows = None if one.rows is None or other.rows is None else _union(one.rows, other.rows)
    is_same = content is one.content and size is one.size and refs is one.refs
    if is_same and constant is one.constant and rows is one.rows:
        return one
    return RankValue(content, size, refs, constant, rows)


def _union(one: frozenset[_Item], other: frozenset[_Item]) -> frozenset[_Item]:
    """What is in either; the very first set where the other one adds nothing."""
    if other is one or not other:
        return one
    if not one:
        return other
    return one if other <= one else one | other


def join_all(values: list[RankValue]) -> RankValue:
    """What may be any of them; replicated where there are none."""
    if not values:
        return REPLICATED
    found = values[0]
    for value in values[1:]:
        found = join(found, value)
    return found
