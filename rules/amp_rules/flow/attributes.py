"""Attributes of values."""

from __future__ import annotations

from amp_rules.flow.cells import Mark, attribute_key, element_key
from amp_rules.flow.command_line import options_of
from amp_rules.flow.reached import Reached
from amp_rules.flow.records import Records
from amp_rules.flow.store import Store
from amp_rules.flow.values import Cell, ClassInfo, Form, Member, MemberOf, Value, dictionary_of
from amp_rules.roles.kinds import is_module, is_optimizer
from amp_rules.source.facts import FunctionFacts
from amp_rules.torch.models import MAKES_OWN_CLASS, TELLS_OF_MODEL

_ITSELF = frozenset({"module", "data"})
"""``model.module`` of a wrapped model and ``tensor.data``: another view of the same object."""

_METHODS = TELLS_OF_MODEL - {"training"}
"""Methods that every module has of torch."""

_PARAMETERS = ("torch.nn.Parameter", "torch.nn.parameter.")
"""Beginnings of the names of single parameters, and of lists and dictionaries of them."""


class Attributes:
    """What an attribute of a value can be."""

    def __init__(self, store: Store, reached: Reached, records: Records) -> None:
        self._store = store
        self._reached = reached
        self._records = records
        # The same attribute is asked of the same value again and again.
        self._members: dict[tuple[Value, str], Value] = {}
        # Where to look for an attribute in a class and its bases; good for as long as the bases are the same.
        self._lookups: dict[tuple[ClassInfo, str], tuple[list[ClassInfo], list[Cell], FunctionFacts | None]] = {}

    def of(self, owner: Value, name: str) -> set[Value]:
        """What ``owner.name`` can hold; empty when nothing is known."""
        if name == "__dict__" and owner.kind in ("module", "external", "instance"):
            stored = self._store.read(attribute_key(owner, name)) if owner.kind == "instance" else set()
            return {dictionary_of(owner), *stored}
        if owner.kind == "external":
            return {self._of_library(owner.ref, name)}
        if owner.kind == "module":
            return self._of_module(owner, name)
        if name == "param_groups" and is_optimizer(owner):
            return {Value("parameters", owner), *self._store.read(attribute_key(owner, name))}
        if owner.kind in ("instance", "class"):
            return self._of_class(owner, name)
        if owner.kind == "object":
            return self._of_object(owner, name)
        if owner.ref is Form.COMPOSED:
            held = self._store.read(element_key(owner, name)) | self._store.read(attribute_key(owner, name))
            return held or {self._member(owner, name)}
        if owner.kind == "sequence":
            return self._store.read(attribute_key(owner, name)) | {self._member(owner, name)}
        if owner.kind in ("batch", "parameters"):
            return {owner}
        if owner.kind == "attribute":
            return {self._member(owner, name)}
        return set()

    def _of_library(self, owner: str, name: str) -> Value:
        qualified = f"{owner}.{name}"
        entry = self._reached.project.entry
        # A folder of the project without an ``__init__.py`` is a package too, of which only modules are imported.
        if self._reached.project.is_folder(entry, owner):
            found = self._reached.module(entry, qualified)
            if found is not None:
                return Value("module", found)
        return Value("external", qualified)

    def _of_module(self, owner: Value, name: str) -> set[Value]:
        tree = owner.ref.tree
        values = set(self._store.read((tree, name)))
        if values:
            return values
        submodule = self._reached.submodule(owner.ref, name)
        if submodule is not None:
            return {Value("module", submodule)}
        if owner.ref.is_entry is False and name not in self._reached.scopes[tree].bound:
            for star in self._store.read((tree, Mark.STAR)):
                values.add(Value("external", f"{star.name}.{name}"))
        return values

    def _of_class(self, owner: Value, name: str) -> set[Value]:
        cells, method = self._lookup(owner.ref, name)
        values = self._store.read_all(cells)
        if method is not None:
            if method.is_property:
                self._reached.reach(method)
                return values | self._store.read((method.node, Mark.RETURN))
            return values | {Value("function", method, receiver=owner)}
        if values and not _hides_nothing(owner, name, values):
            return values
        if name == "module":
            return {owner}
        values = self._records.by_item(owner, name)
        if values:
            return values
        if owner.kind == "class" and name in MAKES_OWN_CLASS and owner.ref.external_bases():
            return {self._member(owner, name)}
        return {self._member(owner, name)} if owner.kind == "instance" else set()

    def _lookup(self, info: ClassInfo, name: str) -> tuple[list[Cell], FunctionFacts | None]:
        """The cells that hold an attribute of a class's objects, and the method of that name, with what hides it."""
        family = info.mro()
        known = self._lookups.get((info, name))
        if known is not None and known[0] is family:
            return known[1], known[2]
        cells: list[Cell] = []
        method = None
        for base in family:
            cell = self._store.cell((base.facts.node, name))
            if cell is not None:
                cells.append(cell)
            method = base.facts.methods.get(name)
            if method is not None:
                break
        self._lookups[info, name] = family, cells, method
        return cells, method

    def _of_object(self, owner: Value, name: str) -> set[Value]:
        stored = self._store.read(attribute_key(owner, name))
        if stored:
            return set(stored)
        stored = self._records.by_item(owner, name)
        if stored:
            return stored
        if name in _ITSELF:
            return {owner}
        if name in ("weight", "bias") and is_module(owner):
            return {Value("parameters", owner)}
        return {self._member(owner, name), *options_of(owner, name, self._store)}

    def _member(self, owner: Value, name: str) -> Value:
        """An attribute of which no more is known."""
        key = owner, name
        known = self._members.get(key)
        if known is None:
            known = self._members[key] = _member(owner, name)
        return known


def _hides_nothing(owner: Value, name: str, values: set[Value]) -> bool:
    """Whether a module keeps modules or parameters beside its attributes, where a method of torch's is found first.

    After ``self.parameters = nn.ParameterList(...)`` ``model.parameters()`` is what it was.
    """
    return (
        name in _METHODS
        and owner.kind == "instance"
        and is_module(owner)
        and all(is_module(value) or str(value.ref).startswith(_PARAMETERS) for value in values)
    )


def _member(owner: Value, name: str) -> Value:
    """An attribute of which no more is known; of what an attribute gives, that of its owner."""
    if owner.kind == "attribute":
        of = MemberOf.DICTIONARY if owner.is_dictionary else MemberOf.RESULT
        return Value("attribute", Member(of, name), receiver=owner.receiver)
    return Value("attribute", Member(MemberOf.RESULT if owner.is_result else MemberOf.RECEIVER, name), receiver=owner)
