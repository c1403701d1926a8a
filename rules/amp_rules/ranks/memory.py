"""What objects and shared variables hold: cells that only grow, until a whole round over the program changes none."""

from __future__ import annotations

import ast
from collections import defaultdict

from amp_rules.ranks.origins import Origin, Origins
from amp_rules.ranks.values import REPLICATED, SHARED, RankValue, Ref, join
from amp_rules.source.syntax import called_name

Slot = tuple[str, object]
ELEMENTS: Slot = ("element", None)
"""Elements whose key is not known."""
STATE: Slot = ("state", None)
"""What a library's object took up from the calls of its methods."""
LENGTH: Slot = ("length", None)
"""What decides how many elements a container has."""


def attribute(name: str) -> Slot:
    """The slot of an attribute."""
    return ("attribute", name)


def element(key: object) -> Slot:
    """The slot of the element with a known key."""
    return ("element", key)


class Memory:
    """Objects by reference, variables by the scope that owns them.

    Attributes:
        changed: whether anything has grown since it was last set to False.
        refs: the references to what a place makes.
        passes: iterators over a loader that is shared out, from other functions than the loop's.
    """

    def __init__(self) -> None:
        self.changed = False
        self.refs: defaultdict[ast.AST, set[Ref]] = defaultdict(set)
        self.passes: set[Ref] = set()
        self._objects: defaultdict[Ref, dict[Slot, RankValue]] = defaultdict(dict)
        self._reached: dict[frozenset[Ref], Origins] = {}
        self._summaries: dict[Ref, tuple[Origins, frozenset[Ref]]] = {}
        self._variables: dict[tuple[ast.AST, str], RankValue] = {}

    # ---- objects -------------------------------------------------------------------------------------------------

    def made(self, ref: Ref) -> Ref:
        """Note a new object."""
        self.refs[ref.site].add(ref)
        return ref

    def read(self, ref: Ref, slot: Slot) -> RankValue | None:
        """What a slot of an object holds."""
        held = self._objects.get(ref.base)
        return held.get(slot) if held is not None else None

    def write(self, ref: Ref, slot: Slot, value: RankValue) -> None:
        """Add to what a slot of an object holds."""
        base = ref.base
        slots = self._objects[base]
        known = slots.get(slot)
        grown = value if known is None else join(known, value)
        if known is None or grown != known:
            slots[slot] = grown
            self.changed = True
            self._reached.clear()
            self._summaries.pop(base, None)
            self._summaries.pop(base.part, None)

    def keys(self, ref: Ref) -> set[object]:
        """The keys under which something stands in an object; None among them where not all are known."""
        return {key for kind, key in self._objects.get(ref.base, {}) if kind == "element"}

    def elements(self, ref: Ref) -> RankValue | None:
        """What any element of an object can be."""
        found: RankValue | None = None
        for slot, value in list(self._objects.get(ref.base, {}).items()):
            if slot[0] == "element":
                found = value if found is None else join(found, value)
        return found

    def is_pass(self, value: RankValue) -> bool:
        """Whether iterating the value goes over a loader that is shared out."""
        return any(ref.context == SHARED or ref in self.passes for ref in value.refs)

    def length(self, value: RankValue) -> Origins:
        """Why the length of a value differs between ranks."""
        found = value.size
        for ref in value.refs:
            known = self.read(ref, LENGTH)
            if known is not None:
                found = found | known.own
        return found

    def members(self, value: RankValue) -> Origins:
        """Why iterating a value gives something else on each rank: of a dictionary its keys, not what they hold."""
        mappings = frozenset(ref for ref in value.refs if has_known_keys(ref))
        others = RankValue(value.content, value.size, value.refs - mappings)
        return self.deep(others) | self.length(RankValue(refs=mappings))

    def deep(self, value: RankValue) -> Origins:
        """Why anything differs that can be read from a value."""
        found = value.own
        if not value.refs:
            return found
        reached = self._reached.get(value.refs)
        if reached is None:
            reached = self._reached[value.refs] = self._below(value.refs)
        return found | reached

    def _below(self, refs: frozenset[Ref]) -> Origins:
        """Why anything differs that can be read from objects."""
        found: set[Origin] = set()
        seen = set(refs)
        pending = list(refs)
        while pending:
            own, held = self._summary(pending.pop())
            found |= own
            fresh = held - seen
            seen |= fresh
            pending.extend(fresh)
        return frozenset(found)

    def _summary(self, ref: Ref) -> tuple[Origins, frozenset[Ref]]:
        """What differs in the slots of an object themselves, and the objects that they may hold."""
        known = self._summaries.get(ref)
        if known is None:
            # One attribute of a namespace says nothing of another.
            slots = self._objects.get(ref.base, {}).items()
            held = [value for slot, value in slots if not (ref.view and slot[0] == "attribute")]
            own: Origins = frozenset().union(*(value.own for value in held))
            known = self._summaries[ref] = own, frozenset().union(*(value.refs for value in held))
        return known

    # ---- variables -----------------------------------------------------------------------------------------------

    def variable(self, owner: ast.AST, name: str) -> RankValue | None:
        """What any assignment gives a variable."""
        return self._variables.get((owner, name))

    def assign(self, owner: ast.AST, name: str, value: RankValue) -> None:
        """Add to what a variable holds for those who read it from elsewhere."""
        known = self._variables.get((owner, name))
        grown = value if known is None else join(known, value)
        if known is None or grown != known:
            self._variables[owner, name] = grown
            self.changed = True


def nothing(value: RankValue | None) -> RankValue:
    """The value, or a replicated one where none is known."""
    return REPLICATED if value is None else value


def is_mapping(site: ast.AST) -> bool:
    """Whether a place makes a dictionary: assigning an element can make it longer, and ``in`` asks for its keys."""
    if isinstance(site, ast.Call):
        return called_name(site) in ("dict", "defaultdict", "OrderedDict", "Counter")
    return isinstance(site, (ast.Dict, ast.DictComp))


def has_known_keys(ref: Ref) -> bool:
    """Whether an object is a dictionary whose every key was seen when it was put in, and none came of another object.

    Where one may differ between ranks, so does the length.
    """
    site = ref.site
    if ref.view or not is_mapping(site):
        return False
    return not isinstance(site, ast.Call) or len(site.args) <= (called_name(site) == "defaultdict")
