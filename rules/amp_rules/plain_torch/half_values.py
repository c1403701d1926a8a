"""What is certainly a floating-point tensor that a region of autocast may leave in half."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property

from amp_rules.flow.values import Value
from amp_rules.lattice.half_precision import fate
from amp_rules.lattice.operation_names import (
    BOOLEANS,
    CASTS,
    ELEMENTWISE,
    FACTORIES,
    INTEGERS,
    LIKES,
    NUMBERS,
    REDUCTIONS,
    VIEWS,
    function_named,
    layer_named,
)
from amp_rules.plain_torch.regions import modes, runs_in_regions
from amp_rules.plain_torch.translation import Translation
from amp_rules.roles.in_regions import bodies_in
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.torch.wrappers import SPREAD_IN_ONE_CALL

Kind = bool | None | tuple["Kind", ...]
"""Of an expression: True for a tensor in half, or float32 at O0; False for anything else; None where it is not known;
a tuple for several values."""

_DEPTH = 12
"""Definitions and calls back that are looked at, as deep as the last layers of a model lie."""
_NO_TENSORS = INTEGERS | BOOLEANS | NUMBERS | FACTORIES | LIKES
_KEEP = (VIEWS | ELEMENTWISE | REDUCTIONS) - NUMBERS - frozenset({"max", "min", "median"})
_LAYERS = VIEWS | ELEMENTWISE


class HalfValues:
    """Judges the expressions of a program in the runtime's words."""

    def __init__(self, translation: Translation) -> None:
        self.program = translation.program
        runs = list(runs_in_regions(translation))
        self.inside = {node for run in runs for item in run.statements() for node in blocks.walk_own(item)}
        self._called = bodies_in(self.program, runs)
        self._modes = modes(translation)
        self._known: dict[ast.expr, Kind] = {}

    def is_under_autocast(self, module: Module, node: ast.AST) -> bool:
        """Whether a node runs in a region, in its text or because its function is called there."""
        return node in self.inside or blocks.body_of(module, node) in self._called

    @cached_property
    def has_doubles(self) -> bool:
        """Whether the program computes in float64 somewhere: what is float32 at O0 is not known then."""
        names = {"double", "float64", "set_default_dtype", "set_default_tensor_type", "DoubleTensor"}
        return any(
            isinstance(node, ast.Attribute)
            and node.attr in names
            and not (isinstance(node.value, ast.Name) and node.value.id in ("np", "numpy"))
            for module in self.program.flow.modules
            for node in module.nodes
        )

    def kind(self, node: ast.expr, scope: Scope, depth: int = 0) -> Kind:
        """What an expression is."""
        if node not in self._known:
            self._known[node] = None  # a value that is made of itself
            self._known[node] = self._kind(node, scope, depth + 1) if depth < _DEPTH else None
        return self._known[node]

    def _kind(self, node: ast.expr, scope: Scope, depth: int) -> Kind:
        match node:
            case ast.Constant():
                return False
            case ast.Name():
                return self._all(self._made(node, scope, depth))
            case ast.Call():
                return self._of_call(node, scope, depth)
            case ast.Tuple():
                return tuple(self.kind(item, scope, depth) for item in node.elts)
            case ast.Attribute(attr="data" | "T" | "mT") | ast.UnaryOp(op=ast.USub()):
                return self.kind(node.value if isinstance(node, ast.Attribute) else node.operand, scope, depth)
            case ast.Subscript():
                return self._of_item(node, scope, depth)
            case ast.BinOp():
                kinds = [self.kind(item, scope, depth) for item in (node.left, node.right)]
                others = [item for item, kind in zip((node.left, node.right), kinds, strict=True) if kind is not True]
                return True if len(others) < 2 and all(_is_number(item) for item in others) else None
            case ast.IfExp():
                return self._all(self.kind(item, scope, depth) for item in (node.body, node.orelse))
        return None

    def _of_item(self, node: ast.Subscript, scope: Scope, depth: int) -> Kind:
        whole = self.kind(node.value, scope, depth)
        if isinstance(whole, tuple):
            place = node.slice.value if isinstance(node.slice, ast.Constant) else None
            return whole[place] if isinstance(place, int) and -len(whole) <= place < len(whole) else None
        return whole

    @staticmethod
    def _all(kinds: Iterable[Kind]) -> Kind:
        """What one of several values is, where all are alike."""
        found = set(kinds)
        return found.pop() if len(found) == 1 else None

    # ---- names -----------------------------------------------------------------------------------------------------

    def _made(self, name: ast.Name, scope: Scope, depth: int) -> Iterator[Kind]:
        """Yield what the assignments that reach a name give it."""
        module = scope.module
        if name not in module.parents:
            yield None  # in a copy that the flow keeps for a decorator
            return
        statement = blocks.statement_of(module, name)
        while True:
            where = blocks.place(module, statement)
            for previous in reversed(where.suite[: where.index]):
                if name.id in blocks.writes(previous):
                    yield from self._written(previous, name.id, scope, depth)
                    if not isinstance(previous, ast.If) or _in_both(previous, name.id):
                        return
            outer = next(iter(blocks.enclosing(module, statement)), None)
            if outer is None:
                yield None
                return
            if isinstance(outer, (ast.For, ast.AsyncFor, ast.While)):
                for item in outer.body:
                    if name.id in blocks.writes(item):
                        yield from self._written(item, name.id, scope, depth)
            statement = outer

    def _written(self, statement: ast.stmt, name: str, scope: Scope, depth: int) -> Iterator[Kind]:
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            last = next((item for item in reversed(statement.body) if name in blocks.writes(item)), None)
            if last is None:
                yield None
            else:
                yield from self._written(last, name, scope, depth)
        elif isinstance(statement, ast.If):
            for suite in (statement.body, statement.orelse):
                last = next((item for item in reversed(suite) if name in blocks.writes(item)), None)
                if last is not None:
                    yield from self._written(last, name, scope, depth)
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    yield self.kind(statement.value, scope, depth)
                elif isinstance(target, (ast.Tuple, ast.List)):
                    yield from self._unpacked(target, statement.value, name, scope, depth)
        else:
            yield None

    def _unpacked(
        self, target: ast.Tuple | ast.List, value: ast.expr, name: str, scope: Scope, depth: int
    ) -> Iterator[Kind]:
        whole = self.kind(value, scope, depth)
        for place, item in enumerate(target.elts):
            if isinstance(item, ast.Name) and item.id == name:
                known = isinstance(whole, tuple) and len(whole) == len(target.elts)
                yield whole[place] if known and isinstance(whole, tuple) else None

    # ---- calls -----------------------------------------------------------------------------------------------------

    def _of_call(self, node: ast.Call, scope: Scope, depth: int) -> Kind:
        program = self.program
        names = program.callee_names(node, scope)
        under = self.is_under_autocast(scope.module, node)
        functions = {function_named(name) for name in names}
        if names and names <= SPREAD_IN_ONE_CALL and node.args:
            replicated = program.roles.modules(node.args[0], scope)
            return self._all(self._of_layer(value, node, scope, depth, under) for value in replicated)
        if names:
            return self._of_operation(functions, [*node.args], scope, depth, under)
        called = program.called_models(node, scope)
        layers = [value for value in called if value.kind == "object"]
        if layers and len(layers) == len(called):
            return self._all(self._of_layer(value, node, scope, depth, under) for value in layers)
        callees = program.flow.callees(node)
        if callees:
            return self._all(self._returned(info.node, depth) for info in callees)
        if isinstance(node.func, ast.Attribute):
            return self._of_method(node, node.func, scope, depth, under)
        return None

    def _returned(self, body: ast.AST, depth: int) -> Kind:
        scope = self.program.flow.scopes.get(body)
        returns = [node.value for node in blocks.walk_body(body) if isinstance(node, ast.Return)]
        if scope is None or not returns:
            return None
        return self._all(self.kind(value, scope, depth) if value is not None else None for value in returns)

    def _of_operation(self, operations: set[str], given: list[ast.expr], scope: Scope, depth: int, under: bool) -> Kind:
        """What a function of torch gives."""
        if "" in operations or not operations <= _KEEP | _NO_TENSORS:
            return None
        if operations <= _NO_TENSORS:
            return False
        fates = {fate(item, mode, under) for item in operations for mode in self._modes}
        if fates == {"float32"}:
            return False
        if under and fates == {"lowered"}:
            return True
        listed = [part for item in given for part in (item.elts if isinstance(item, ast.List) else [item])]
        kinds = [self.kind(item, scope, depth) for item in listed]
        unknown = [item for item, kind in zip(listed, kinds, strict=True) if kind is None and not _is_number(item)]
        return True if True in kinds and not unknown else None

    def _of_layer(self, value: Value, node: ast.Call, scope: Scope, depth: int, under: bool) -> Kind:
        """What calling a layer of torch gives, of a sequence of layers the last one."""
        name = value.ref if isinstance(value.ref, str) else ""
        if name.rpartition(".")[2] == "Sequential":
            made = self._constructor(value.site, name)
            last = made.args[-1] if made is not None and made.args else None
            located = self.program.locate(last) if last is not None else None
            if located is None or not isinstance(last, ast.Call) or depth > _DEPTH:
                return None
            layers = self.program.roles.modules(last, located[1])
            return self._all(self._of_layer(item, node, scope, depth + 1, under) for item in layers)
        operation = layer_named(name)
        if operation not in _LAYERS or not under:
            return False if operation in REDUCTIONS or (operation and not under) else None
        return {fate(operation, mode, True) for mode in self._modes} != {"float32"}

    def _constructor(self, site: object, name: str, depth: int = 0) -> ast.Call | None:
        """The call that makes a layer, in the function that a script calls to have it made."""
        if not isinstance(site, ast.Call) or depth > _DEPTH:
            return None
        bodies = [info.node for info in self.program.flow.callees(site)]
        if not bodies:
            return site
        made = [
            node
            for body in bodies
            for node in blocks.walk_body(body)
            if isinstance(node, ast.Call) and name in self.program.callee_names(node, self.program.flow.scopes[body])
        ]
        return self._constructor(made[0], name, depth + 1) if len(made) == 1 else None

    def _of_method(self, node: ast.Call, method: ast.Attribute, scope: Scope, depth: int, under: bool) -> Kind:
        operation = method.attr.removesuffix("_")
        if operation in _NO_TENSORS or operation in CASTS or operation in ("type", "type_as"):
            return False
        if operation == "to":
            kept = all(_is_device(item) for item in [*node.args, *(word.value for word in node.keywords)])
            return self.kind(method.value, scope, depth) if kept else False
        if operation in VIEWS:
            return self.kind(method.value, scope, depth)
        return self._of_operation({operation}, [method.value, *node.args], scope, depth, under)


def _in_both(statement: ast.If, name: str) -> bool:
    """Whether both branches give a name a value in statements of their own."""
    return all(
        any(isinstance(item, (ast.Assign, ast.With)) and name in blocks.writes(item) for item in suite)
        for suite in (statement.body, statement.orelse)
    )


def _is_device(node: ast.expr) -> bool:
    text = ast.unparse(node)
    return "device" in text or text.strip("'\"").partition(":")[0] in ("cpu", "cuda")


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))
