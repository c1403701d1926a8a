"""The names of cells: where a variable, an attribute or an element keeps what it can hold."""

from __future__ import annotations

from enum import Enum

from amp_rules.flow.values import Value


class Mark(Enum):
    """What a cell is for, where it is no variable and no attribute of the project."""

    RETURN = "what a function returns"
    YIELD = "what a generator yields"
    STAR = "the libraries from which a module imports everything"
    BOUND = "how many names a module binds, those of star imports included"
    NAMES = "how many attributes the objects of a class have"
    KEYS = "the keys of a container"
    ELEMENT = "an element of a container"
    ATTRIBUTE = "an attribute of what a library made"
    OPTION = "an option of the command line"
    ANY = "the element or attribute whose key is not known"

    # Members are unlike each other by identity; the hash of Enum costs a call for each look at a cell.
    __hash__ = object.__hash__


CellKey = tuple[object, str]
"""A variable of a body, or an attribute of a class or module: the node that owns it and its name."""
Slot = str | Mark | tuple[Mark, object]
SlotKey = tuple[object, Slot]
"""Any cell: its owner, and what of it the cell holds."""


def attribute_key(owner: Value, name: str | Mark) -> SlotKey:
    """The cell of an attribute: one for all objects of a class, one for each object of a library."""
    if owner.kind in ("instance", "class"):
        return (owner.ref.facts.node, name)
    if owner.kind == "module":
        return (owner.ref.tree, name)
    return ((owner.kind, owner.ref, owner.site, owner.is_result), (Mark.ATTRIBUTE, name))


def element_key(owner: Value, index: object) -> SlotKey:
    """The cell of an element; ``Mark.ANY`` stands for those whose key is not known."""
    return (_container(owner), (Mark.ELEMENT, index))


def keys_key(owner: Value) -> SlotKey:
    """The cell of the keys of a container's elements, as constants."""
    return (_container(owner), Mark.KEYS)


def option_key(name: str) -> CellKey:
    """The cell of what an option of the command line can be."""
    return (Mark.OPTION, name)


def _container(owner: Value) -> object:
    return (owner.kind, owner.ref, owner.site, owner.is_result)
