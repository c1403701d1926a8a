"""Objects that only hold what they are given: named tuples, data classes, namespaces, dictionaries with attributes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.cells import Mark
from amp_rules.flow.containers import Containers
from amp_rules.flow.parts import Invocation
from amp_rules.flow.store import Store
from amp_rules.flow.values import ClassInfo, Value
from amp_rules.source.syntax import called_name, walk
from amp_rules.torch.containers import NAMESPACES

_NAMED_TUPLE = "collections.namedtuple"
_PLAIN_BASES = frozenset({"builtins.object", "builtins.dict"})
_DATA_CLASS_DECORATORS = frozenset({"dataclass", "attrs", "attr", "s", "define", "frozen", "mutable"})


class Records:
    """Keeps apart what is stored under different names."""

    def __init__(self, store: Store, containers: Containers) -> None:
        self._store = store
        self._containers = containers

    def store(self, made: Value, fields: list[str], given: Invocation) -> None:
        """Store the arguments of a constructor without code of its own under the names of its fields."""
        held = dict(zip(fields, given.arguments, strict=False))
        for keyword, values in given.keywords.items():
            if keyword is not None:
                held[keyword] = values
            else:
                for field in fields:
                    held[field] = held.get(field, set()) | self._containers.element(values, field)
        for field, values in held.items():
            self._store.write_attribute(made, field, values)
            if field in fields:
                self._store.write_element(made, fields.index(field), values)

    def by_item(self, owner: Value, name: str) -> set[Value]:
        """``cfg.model`` of what keeps its items as attributes, or is filled by ``setattr`` with names not known."""
        if owner.kind == "instance":
            if owner.ref.find_method("__getattr__") is not None or self._is_own_dictionary(owner):
                return self._containers.element({owner}, name)
            # What a library's class brings along is no item.
            is_plain = owner.ref.external_bases() <= _PLAIN_BASES
            return self._store.read((owner.ref.facts.node, Mark.ANY)) if is_plain else set()
        if owner.kind == "object" and owner.ref in NAMESPACES:
            return self._containers.element({owner}, name)
        return set()

    def _is_own_dictionary(self, owner: Value) -> bool:
        """``self.__dict__ = self`` of a class of dictionaries."""
        return owner in self._store.read((owner.ref.facts.node, "__dict__"))


def fields_of(info: ClassInfo) -> list[str]:
    """The fields of a data class or of a class of named tuples, in order; empty for other classes."""
    is_tuple = bool({"typing.NamedTuple", "typing_extensions.NamedTuple"} & info.external_bases())
    if not is_tuple and not any(_is_data_class(base) for base in info.mro()):
        return []
    found: dict[str, None] = {}
    for base in reversed(info.mro()):
        for statement in base.facts.node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found[statement.target.id] = None
    return list(found)


def named_tuple(target: Value) -> list[str] | None:
    """The fields of ``namedtuple("Batch", "x y")``; None for what is none."""
    if target.ref not in (_NAMED_TUPLE, "typing.NamedTuple") or not isinstance(target.site, ast.Call):
        return None
    given = target.site.args[1:2] or [item.value for item in target.site.keywords if item.arg == "field_names"]
    return list(_field_names(given[0])) if given else []


def constructor_fields(target: Value) -> list[str]:
    """The fields that a record's constructor takes by place; empty for what makes no records."""
    if target.kind == "class" and target.ref.find_method("__init__") is None:
        return fields_of(target.ref)
    return (named_tuple(target) or []) if target.kind == "object" else []


def _is_data_class(info: ClassInfo) -> bool:
    return any(called_name(item) in _DATA_CLASS_DECORATORS for item in info.facts.node.decorator_list)


def _field_names(node: ast.expr) -> Iterator[str]:
    for part in [node] if isinstance(node, ast.Constant) else walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield from part.value.replace(",", " ").split()
