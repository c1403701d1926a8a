"""Containers: what elements hold, what iterating gives, what one container takes over from another."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.flow.cells import Mark, attribute_key, element_key, keys_key
from amp_rules.flow.parts import Invocation
from amp_rules.flow.reached import Reached
from amp_rules.flow.store import Store
from amp_rules.flow.values import UNKNOWN_MEMBER, Form, Value
from amp_rules.roles.kinds import is_loader_value
from amp_rules.torch.containers import CONTAINERS

_KEEPS_ELEMENTS = ("sequence", "object", "instance", "attribute")


def is_container(value: Value) -> bool:
    """Whether the value is a container of a library, or of a class derived from one."""
    if value.kind == "object":
        return value.ref in CONTAINERS
    return value.kind in ("instance", "class") and bool(CONTAINERS & value.ref.external_bases())


_OPTIMIZERS = "torch.optim"


class Containers:
    """Questions about elements."""

    def __init__(self, store: Store, reached: Reached) -> None:
        self._store = store
        self._reached = reached

    def element(self, owners: Iterable[Value], index: object) -> set[Value]:
        """What the element with a key can be."""
        found: set[Value] = set()
        for owner in owners:
            if owner.kind in ("batch", "parameters"):
                found.add(owner)
            elif owner.is_dictionary:
                found |= self.members(owner.receiver)
            elif owner.kind in _KEEPS_ELEMENTS:
                found |= self._store.read(element_key(owner, index))
                found |= self._store.read(element_key(owner, Mark.ANY))
                if owner.ref is Form.LOADED:
                    # Of a file of settings it is not known how deep it goes.
                    found.add(owner)
        return found

    def elements(self, owners: Iterable[Value]) -> set[Value]:
        """What iterating over the values can give."""
        found: set[Value] = set()
        for owner in owners:
            if owner.kind == "sequence":
                found |= self._store.read_elements(owner)
            elif owner.kind in ("batch", "parameters"):
                found.add(owner)
            elif owner.is_dictionary:
                found |= self.members(owner.receiver)
            elif is_loader_value(owner):
                found.add(Value("batch", owner))
            elif owner.kind in _KEEPS_ELEMENTS:
                found |= self._store.read_elements(owner)
                if owner.kind == "instance":
                    found |= self._yielded(owner)
        return found

    def _yielded(self, owner: Value) -> set[Value]:
        method = owner.ref.find_method("__iter__")
        if method is None:
            return set()
        self._reached.reach(method)
        return self._store.read((method.node, Mark.YIELD))

    def keys(self, owner: Value) -> list[object]:
        """The keys under which something is stored in a container."""
        return [key.ref for key in self._store.read(keys_key(owner))]

    def members(self, owner: Value | None) -> set[Value]:
        """Whatever a name made at run time can find in a module."""
        if owner is None:
            return set()
        if owner.kind == "external":
            return {Value("external", f"{owner.ref}.{UNKNOWN_MEMBER}")}
        if owner.kind != "module":
            return set()
        tree = owner.ref.tree
        found: set[Value] = set()
        for attribute in sorted(self._reached.scopes[tree].bound):
            held = self._store.read((tree, attribute))
            found |= {value for value in held if value.kind in ("class", "function", "module")}
        stars = self._store.read((tree, Mark.STAR))
        # Beside classes of the project, a library's names are rarely meant; optimizers are.
        meant = [str(star.ref) for star in stars if not found or str(star.ref) == _OPTIMIZERS]
        return found | {Value("external", f"{library}.{UNKNOWN_MEMBER}") for library in meant}

    def made(self, form: Form, node: ast.AST, elements: Iterable[Value]) -> Value:
        """A new container of elements whose keys are not known."""
        value = Value("sequence", form, node)
        self._store.write_element(value, Mark.ANY, elements)
        return value

    def rows(self, parts: Iterable[tuple[int, set[Value]]], node: ast.Call) -> set[Value]:
        """Rows of a few values each, of which those at some places are known."""
        pair = Value("sequence", Form.PAIR, node)
        for index, values in parts:
            self._store.write_element(pair, index, values)
        return {self.made(Form.ROWS, node, {pair})}

    def copy_items(self, target: Value, sources: set[Value]) -> None:
        """What a mapping takes over from others."""
        for source in sources:
            if source.kind in ("sequence", "instance", "object") and source != target:
                for index in self.keys(source):
                    self._store.write_element(target, index, self.element({source}, index))

    def fill(self, target: Value, given: Invocation) -> None:
        """Store the arguments of a dictionary's constructor, or of ``update``, as its items."""
        for keyword, values in given.keywords.items():
            if keyword is None:
                self.copy_items(target, values)
            else:
                self._store.write_element(target, keyword, values)
        self.copy_items(target, given.first)

    def update_dictionary(self, owner: Value, sources: set[Value]) -> None:
        """``self.__dict__.update(values)``: items become attributes."""
        for source in sources:
            for index in self.keys(source):
                if isinstance(index, str) or index is Mark.ANY:
                    self._store.write(attribute_key(owner, index), self.element({source}, index))
