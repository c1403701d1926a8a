"""Follows an object through a file by its names: from where it is made, over ``self`` and calls, to its uses."""

from __future__ import annotations

import ast
from collections.abc import Callable

from amp_rules.source.index import FileIndex, Function
from amp_rules.source.syntax import last_name

Key = tuple[str, object, str]
Part = int | str | None
_TURNS = 8
"""Names handed on through more steps than this are lost."""

_TRANSPARENT = frozenset(
    """
    enumerate zip iter next tqdm trange list tuple reversed islice cycle chain len print isinstance type str repr
    DataLoader getattr hasattr dict namedtuple SimpleNamespace partial info format is_available min max int bool range
    set id debug log math ceil append update extend
    """.split()
)
"""Calls that do nothing to a sampler: what goes in may come out, or be looked at."""


class Carriers:
    """The names that may hold an object, or something that holds it.

    Args:
        index: the file.
        is_origin: whether an expression makes the object.
        may_pass: whether an unknown callee may be handed the object without losing track of it.
        name_of: what a call calls, by the name that its package gives it.

    Attributes:
        escapes: calls of unknown code that get the object.
    """

    def __init__(
        self,
        index: FileIndex,
        is_origin: Callable[[ast.expr], bool],
        may_pass: Callable[[ast.Call], bool],
        name_of: Callable[[ast.Call], str] = lambda call: last_name(call.func),
    ) -> None:
        self.index = index
        self.is_origin = is_origin
        self.may_pass = may_pass
        self.name_of = name_of
        self.keys: set[Key] = set()
        self.returned: dict[ast.AST, set[Part]] = {}
        self.escapes: list[ast.Call] = []
        for _ in range(_TURNS):
            size = len(self.keys), sum(map(len, self.returned.values()))
            self._turn()
            if size == (len(self.keys), sum(map(len, self.returned.values()))):
                break
        self.escapes = [call for call in index.calls if self._is_lost(call)]

    # ---- what carries --------------------------------------------------------------------------------------------

    def carries(self, node: ast.expr) -> bool:
        """Whether an expression may hold the object."""
        if self.is_origin(node):
            return True
        if isinstance(node, ast.Name):
            return self._key(node) in self.keys
        if isinstance(node, ast.Attribute):
            return self._key(node) in self.keys or (
                node.attr in ("sampler", "batch_sampler") and self.carries(node.value)
            )
        if isinstance(node, ast.Call):
            return self._call_carries(node)
        if isinstance(node, ast.Dict):
            return any(self.carries(item) for item in node.values)
        if isinstance(node, (ast.Tuple, ast.List)):
            return any(self.carries(item) for item in node.elts)
        if isinstance(node, (ast.Subscript, ast.Starred)):
            return self.carries(node.value)
        if isinstance(node, ast.IfExp):
            return self.carries(node.body) or self.carries(node.orelse)
        if isinstance(node, ast.BoolOp):
            return any(self.carries(item) for item in node.values)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self.carries(node.elt)
        return False

    def _call_carries(self, call: ast.Call) -> bool:
        functions = self.index.callees(call)
        if functions:
            return any(self.returned.get(item) for item in functions) or (
                self._makes_object(functions) and self._is_given(call)
            )
        name = self.name_of(call)
        if name in ("next", "len", "print", "isinstance", "type", "str", "repr", "int", "bool", "range"):
            return False
        if isinstance(call.func, ast.Attribute) and self.carries(call.func.value):
            return name in ("values", "items", "get", "pop", "__iter__")
        return name in _TRANSPARENT and self._is_given(call)

    def _makes_object(self, functions: list[Function]) -> bool:
        return any(item.name == "__init__" for item in functions)

    def _is_given(self, call: ast.Call) -> bool:
        return any(self.carries(item) for item in [*call.args, *(item.value for item in call.keywords)])

    def _key(self, node: ast.expr) -> Key | None:
        """The place that a name or attribute is kept in."""
        if isinstance(node, ast.Attribute):
            # Attributes of that name on whatever object: rather too many than too few.
            return ("attribute", None, node.attr)
        if not isinstance(node, ast.Name):
            return None
        scope = self.index.scope(node)
        while scope is not None and not self._binds(scope, node.id):
            scope = self.index.scope(scope)
        return ("name", scope, node.id)

    def _binds(self, scope: ast.AST, name: str) -> bool:
        return name in self._bound(scope)

    def _bound(self, scope: ast.AST) -> set[str]:
        known: dict[ast.AST, set[str]] = self.__dict__.setdefault("_bound_names", {})
        if scope not in known:
            names = {item.arg for item in ast.walk(scope) if isinstance(item, ast.arg)}
            globals_: set[str] = set()
            for item in ast.walk(scope):
                if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
                    names.add(item.id)
                elif isinstance(item, (ast.Global, ast.Nonlocal)):
                    globals_.update(item.names)
            known[scope] = names - globals_
        return known[scope]

    # ---- how it gets about ---------------------------------------------------------------------------------------

    def _turn(self) -> None:
        for target, value, _ in self.index.assignments:
            self._assign(target, value)
        for call in self.index.calls:
            self._pass(call)
        for functions in self.index.functions.values():
            for function in functions:
                self._return(function)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for position, item in enumerate(target.elts):
                if self._part_carries(value, position):
                    self._hold(item)
        elif self.carries(value):
            self._hold(target)

    def _part_carries(self, value: ast.expr, position: int) -> bool:
        if isinstance(value, (ast.Tuple, ast.List)):
            return position < len(value.elts) and self.carries(value.elts[position])
        if isinstance(value, ast.Call):
            functions = self.index.callees(value)
            if functions:
                parts = {part for item in functions for part in self.returned.get(item, ())}
                return position in parts or None in parts
        return self.carries(value)

    def _hold(self, target: ast.expr) -> None:
        if isinstance(target, (ast.Subscript, ast.Starred)):
            target = target.value
        key = self._key(target)
        if key is not None:
            self.keys.add(key)

    def _pass(self, call: ast.Call) -> None:
        given = [item for item in [*call.args, *(item.value for item in call.keywords)] if self.carries(item)]
        if not given:
            return
        for function in self.index.callees(call):
            self._bind(call, function)
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("append", "update", "extend", "insert"):
            self._hold(call.func.value)

    def _bind(self, call: ast.Call, function: Function) -> None:
        names = [item.arg for item in [*function.args.posonlyargs, *function.args.args]]
        if self.index.owner(function) is not None and names[:1] in (["self"], ["cls"]):
            names = names[1:]
        for name, value in zip(names, call.args, strict=False):
            if self.carries(value):
                self.keys.add(("name", function, name))
        every = {*names, *(item.arg for item in function.args.kwonlyargs)}
        for item in call.keywords:
            if item.arg in every and self.carries(item.value):
                self.keys.add(("name", function, item.arg))

    def _return(self, function: Function) -> None:
        for item in ast.walk(function):
            value = item.value if isinstance(item, (ast.Return, ast.Yield)) else None
            if value is None or self.index.scope(item) is not function:
                continue
            parts = self.returned.setdefault(function, set())
            if isinstance(value, ast.Tuple):
                parts.update(place for place, part in enumerate(value.elts) if self.carries(part))
            elif self.carries(value):
                parts.add(None)

    def _is_lost(self, call: ast.Call) -> bool:
        """Whether a call hands the object to code that cannot be seen."""
        name = self.name_of(call)
        if name in _TRANSPARENT or self.index.callees(call) or self.is_origin(call):
            return False
        if not any(self._hands_over(item) for item in [*call.args, *(item.value for item in call.keywords)]):
            return False
        return not self.may_pass(call)

    def _hands_over(self, node: ast.expr) -> bool:
        """Whether an argument is the object; an object of this file's classes that has it somewhere inside is not."""
        if isinstance(node, ast.Call):
            return self.is_origin(node) or (self.name_of(node) == "DataLoader" and self.carries(node))
        return self.carries(node)
