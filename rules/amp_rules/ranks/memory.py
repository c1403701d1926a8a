"""What objects and shared variables hold: cells that only grow, until a whole round over the program changes none."""

from __future__ import annotations

import ast
from collections import defaultdict

from amp_rules.ranks.origins import Origins
from amp_rules.ranks.readable import Readable
from amp_rules.ranks.records import Record, Slot
from amp_rules.ranks.values import REPLICATED, SHARED, RankValue, Ref, join
from amp_rules.source.syntax import called_name

ELEMENTS: Slot = ("element", None)
"""Elements whose key is not known."""
REST: Slot = ("rest", None)
"""What stands under keys that were never seen: the rest of a file whose settings a dictionary took over."""
STATE: Slot = ("state", None)
"""What a library's object took up from the calls of its methods."""
LENGTH: Slot = ("length", None)
"""What decides how many elements a container has."""

_HELD = (ELEMENTS[0], REST[0])
"""The kinds of slots that hold elements."""
_OF_ATTRIBUTES = ("attribute", "evaluated")
"""The kinds of slots that hold attributes."""


def attribute(name: str) -> Slot:
    """The slot of an attribute."""
    return ("attribute", name)


def evaluated(name: str) -> Slot:
    """The slot of what an attribute was given while models were in evaluation mode."""
    return ("evaluated", name)


def element(key: object) -> Slot:
    """The slot of the element with a known key."""
    return ("element", key)


class Memory:
    """Objects by reference, variables by the scope that owns them.

    Attributes:
        changed: whether anything has grown since it was last set to False.
        clock: how often anything has grown so far.
        record: what the evaluation that runs now rests on.
        refs: the references to what a place makes.
        passes: iterators over a loader that is shared out, from other functions than the loop's.
    """

    def __init__(self) -> None:
        self.changed = False
        self.clock = 0
        self.record = Record()
        self.refs: defaultdict[ast.AST, set[Ref]] = defaultdict(set)
        self.passes: set[Ref] = set()
        self._objects: defaultdict[Ref, dict[Slot, RankValue]] = defaultdict(dict)
        self._readable = Readable()
        self._variables: dict[tuple[ast.AST, str], RankValue] = {}
        self._versions: defaultdict[Ref, int] = defaultdict(int)

    def holds(self, record: Record) -> bool:
        """Whether all that an evaluation has read is as it was then, so that another one would find nothing new.

        What grew since the first look at it counts, if it was this evaluation itself that made it grow.
        """
        if record.is_partial or record.passes not in (None, len(self.passes)):
            return False
        for (base, slot), value in record.slots.items():
            held = self._objects.get(base)
            if (held.get(slot) if held is not None else None) is not value:
                return False
        return (
            all(self._variables.get(key) is value for key, value in record.variables.items())
            and all(self._versions[base] == version for base, version in record.objects.items())
            and all(len(self.refs.get(site, ())) == number for site, number in record.sites.items())
            and all(self._readable.origins(refs) == origins for refs, origins in record.reached.items())
        )

    # ---- objects -------------------------------------------------------------------------------------------------

    def made(self, ref: Ref) -> Ref:
        """Note a new object."""
        known = self.refs[ref.site]
        if ref not in known:
            known.add(ref)
            self.clock += 1
        return ref

    def made_at(self, site: ast.AST) -> set[Ref]:
        """The references to what a place makes."""
        found = self.refs.get(site, set())
        self.record.sites.setdefault(site, len(found))
        return found

    def note_pass(self, ref: Ref) -> None:
        """Note that an object goes over a loader that is shared out."""
        self.passes.add(ref)
        self.clock += 1

    def read(self, ref: Ref, slot: Slot) -> RankValue | None:
        """What a slot of an object holds."""
        base = ref.base
        held = self._objects.get(base)
        value = held.get(slot) if held is not None else None
        self.record.slots.setdefault((base, slot), value)
        return value

    def write(self, ref: Ref, slot: Slot, value: RankValue) -> None:
        """Add to what a slot of an object holds."""
        base = ref.base
        slots = self._objects[base]
        known = slots.get(slot)
        grown = value if known is None else join(known, value)
        if known is None or grown != known:
            slots[slot] = grown
            self.changed = True
            self.clock += 1
            self._versions[base] += 1
            self._readable.hold(base, grown)
            if slot[0] not in _OF_ATTRIBUTES:
                # One attribute of a namespace says nothing of another.
                self._readable.hold(base.part, grown)

    def keys(self, ref: Ref) -> set[object]:
        """The keys under which something stands in an object; None among them where not all are known."""
        return {key for kind, key in self._slots(ref) if kind in _HELD}

    def attributes(self, ref: Ref) -> dict[Slot, RankValue]:
        """What stands in the attributes of an object, by their slots, and what it took up as a whole."""
        return {slot: value for slot, value in self._slots(ref).items() if slot == STATE or slot[0] == attribute("")[0]}

    def elements(self, ref: Ref) -> RankValue | None:
        """What any element of an object can be."""
        found: RankValue | None = None
        for slot, value in self._slots(ref).items():
            if slot[0] in _HELD:
                found = value if found is None else join(found, value)
        return found

    def _slots(self, ref: Ref) -> dict[Slot, RankValue]:
        """All slots of an object."""
        base = ref.base
        self.record.objects.setdefault(base, self._versions[base])
        return self._objects.get(base, {})

    def is_pass(self, value: RankValue) -> bool:
        """Whether iterating the value goes over a loader that is shared out."""
        self.record.passes = len(self.passes) if self.record.passes is None else self.record.passes
        return any(ref.context == SHARED or ref in self.passes for ref in value.refs)

    def length(self, value: RankValue) -> Origins:
        """Why the length of a value differs between ranks."""
        found = value.size
        for ref in value.refs:
            known = self.read(ref, LENGTH)
            if known is not None:
                found = found | known.own
        return found

    def rows(self, value: RankValue) -> Origins:
        """Why the length of a value differs between ranks, whatever its further dimensions are."""
        return self.length(value) if value.rows is None else value.rows

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
        reached = self._readable.origins(value.refs)
        self.record.reached.setdefault(value.refs, reached)
        return found | reached

    # ---- variables -----------------------------------------------------------------------------------------------

    def variable(self, owner: ast.AST, name: str) -> RankValue | None:
        """What any assignment gives a variable."""
        value = self._variables.get((owner, name))
        self.record.variables.setdefault((owner, name), value)
        return value

    def assign(self, owner: ast.AST, name: str, value: RankValue) -> None:
        """Add to what a variable holds for those who read it from elsewhere."""
        known = self._variables.get((owner, name))
        grown = value if known is None else join(known, value)
        if known is None or grown != known:
            self._variables[owner, name] = grown
            self.changed = True
            self.clock += 1


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
