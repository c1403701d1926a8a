"""Objects that only hold what they are given: named tuples, data classes, namespaces, dictionaries with attributes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.program.cells import Keywords
from amp_rules.program.reflection import Reflection
from amp_rules.program.syntax import walk
from amp_rules.program.values import ClassInfo, Value
from amp_rules.tables import torch_api as api

_NAMED_TUPLE = "collections.namedtuple"
_PLAIN_BASES = frozenset({"builtins.object", "builtins.dict"})
_DATA_CLASS_DECORATORS = frozenset({"dataclass", "attrs", "attr", "s", "define", "frozen", "mutable"})


class Records(Reflection):
    """Keeps apart what is stored under different names."""

    def _record(
        self, made: Value, fields: list[str], node: ast.Call, arguments: list[set[Value]], keywords: Keywords
    ) -> None:
        """Store the arguments of a constructor without code of its own under the names of its fields."""
        given = dict(zip(fields, arguments, strict=False))
        for keyword, values in keywords.items():
            if keyword is not None:
                given[keyword] = values
            else:
                for field in fields:
                    given.setdefault(field, set()).update(self._element(values, field))
        for field, values in given.items():
            self._write_attribute(made, field, values)
            if field in fields:
                self._write_element(made, fields.index(field), values)

    def _fields(self, info: ClassInfo) -> list[str]:
        """The fields of a data class or of a class of named tuples, in order; empty for other classes."""
        is_tuple = bool({"typing.NamedTuple", "typing_extensions.NamedTuple"} & info.external_bases())
        if not is_tuple and not any(_is_data_class(base) for base in info.mro()):
            return []
        found: dict[str, None] = {}
        for base in reversed(info.mro()):
            for statement in base.node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    found[statement.target.id] = None
        return list(found)

    def _named_tuple(self, target: Value) -> list[str] | None:
        """The fields of ``namedtuple("Batch", "x y")``; None for what is none."""
        if target.ref not in (_NAMED_TUPLE, "typing.NamedTuple") or not isinstance(target.site, ast.Call):
            return None
        given = target.site.args[1:2] or [item.value for item in target.site.keywords if item.arg == "field_names"]
        return list(_field_names(given[0])) if given else []

    def _attribute_by_item(self, owner: Value, name: str) -> set[Value]:
        """``cfg.model`` of what keeps its items as attributes, or is filled by ``setattr`` with names not known."""
        if owner.kind == "instance":
            if owner.ref.find_method("__getattr__") is not None or self._is_own_dictionary(owner):
                return self._element({owner}, name)
            # What a library's class brings along is no item.
            is_plain = owner.ref.external_bases() <= _PLAIN_BASES
            return self._read((owner.ref.node, "*")) if is_plain else set()
        if owner.kind == "object" and owner.ref in api.NAMESPACES:
            return self._element({owner}, name)
        return set()

    def _is_own_dictionary(self, owner: Value) -> bool:
        """``self.__dict__ = self`` of a class of dictionaries."""
        return owner in self._read((owner.ref.node, "__dict__"))

    def _fill(self, made: Value, arguments: list[set[Value]], keywords: Keywords) -> None:
        """Store the arguments of a dictionary's constructor as its items."""
        for keyword, values in keywords.items():
            if keyword is None:
                self._copy_items(made, values)
            else:
                self._write_element(made, keyword, values)
        if arguments:
            self._copy_items(made, arguments[0])


def _is_data_class(info: ClassInfo) -> bool:
    for decorator in info.node.decorator_list:
        node = decorator.func if isinstance(decorator, ast.Call) else decorator
        if (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")) in _DATA_CLASS_DECORATORS:
            return True
    return False


def _field_names(node: ast.expr) -> Iterator[str]:
    for part in [node] if isinstance(node, ast.Constant) else walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield from part.value.replace(",", " ").split()
