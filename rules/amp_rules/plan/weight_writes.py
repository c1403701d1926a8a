"""Where a program changes parameters in place, outside of optimizers: calls, and assignments to what they hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.roles.kinds import is_module, is_optimizer
from amp_rules.roles.program import Program
from amp_rules.roles.sites import calling
from amp_rules.source import blocks
from amp_rules.source.index import argument_at, literal
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import values_given, walk
from amp_rules.torch.accumulation import LIKE_ANOTHER, MADE_OF_A_TYPE
from amp_rules.torch.functions import PARAMETER_MAKERS

_OF_LAYERS = frozenset({"weight", "bias"})
"""What the layers of torch call their parameters; their buffers have other names."""

_MAX_CALLERS = 4
"""Functions between a constructor and what writes the weights: ``_load_pretrained``, ``init_weights``."""

Write = ast.Call | ast.Assign | ast.AugAssign


def only_makes(program: Program, body: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> bool:
    """Whether a function is the constructor of a model, or runs in such constructors alone."""
    info = program.function_of(body)
    if info is None or body in seen or len(seen) > _MAX_CALLERS:
        return False
    owner = program.flow.class_of(info)
    if info.name == "__init__":
        return owner is not None and is_module(Value("instance", owner))
    callers = list(program.flow.callers(info))
    return bool(callers) and all(only_makes(program, calling(caller).body, seen | {body}) for caller in callers)


class WeightWrites:
    """Finds them in one program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._attributes: dict[ClassInfo, frozenset[str]] = {}

    @cached_property
    def found(self) -> dict[Write, Scope]:
        """The calls and statements that change parameters, with the scope of their names.

        Not those that run only while a model is made: it is prepared after that, which gives all ranks the same.
        """
        found: dict[Write, Scope] = {}
        for node, body, scope in self._program.nodes():
            if not isinstance(node, (ast.Call, ast.Assign, ast.AugAssign)):
                continue
            if self._changes(node, scope) and not self._is_of_optimizer(body) and not only_makes(self._program, body):
                found[node] = scope
        return found

    def replaces(self, node: ast.Assign, scope: Scope) -> bool:
        """Whether a statement puts another parameter in the place of one: ``self.fc.weight = nn.Parameter(x)``."""
        made = isinstance(node.value, ast.Call) and bool(
            self._program.callee_names(node.value, scope) & PARAMETER_MAKERS
        )
        return made and any(
            isinstance(item, ast.Attribute) and self._is_parameter(item, scope) for item in node.targets
        )

    def kept_tensor(self, write: Write, scope: Scope) -> ast.expr | None:
        """What a write changes where that is no parameter for all that is known: ``self.table`` of ``.zero_()``."""
        if not isinstance(write, ast.Call) or not isinstance(write.func, ast.Attribute):
            return None
        written = write.func.value
        if not isinstance(written, ast.Attribute) or write.func.attr == "load_state_dict":
            return None
        is_data = any(isinstance(part, ast.Attribute) and part.attr == "data" for part in walk(written))
        return None if is_data or self._is_parameter(written, scope) else written

    @staticmethod
    def given(write: Write) -> list[ast.expr]:
        """What is written, or decides what is."""
        return list(values_given(write)) if isinstance(write, ast.Call) else [write.value]

    def _is_of_optimizer(self, body: ast.AST) -> bool:
        info = self._program.function_of(body)
        owner = self._program.flow.class_of(info) if info is not None else None
        return owner is not None and is_optimizer(Value("instance", owner))

    def _changes(self, node: Write, scope: Scope) -> bool:
        if isinstance(node, ast.Call):
            return self._call_changes(node, scope)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(self._is_written(target, scope, in_place=isinstance(node, ast.AugAssign)) for target in targets)

    def _call_changes(self, call: ast.Call, scope: Scope) -> bool:
        names = self._program.callee_names(call, scope)
        if any(name.startswith("torch.nn.init.") for name in names):
            return bool(call.args) and self._is_weight(call.args[0], scope)
        if not isinstance(call.func, ast.Attribute):
            return False
        name = call.func.attr
        if name == "load_state_dict":
            return any(map(self._program.is_trained, self._program.roles.modules(call.func.value, scope)))
        in_place = name.endswith("_") and not name.startswith("_") and name not in ("requires_grad_", "share_memory_")
        if not in_place or self._program.flow.callees(call):
            return False  # what a function of the script writes its own body says
        return self._is_weight(call.func.value, scope) or self._is_parameter(call.func.value, scope)

    def _is_written(self, target: ast.expr, scope: Scope, *, in_place: bool) -> bool:
        """Whether an assignment changes what a parameter holds: ``p.data[0] = x``, ``p -= x``, ``p.grad = x``."""
        if in_place and isinstance(target, ast.Name) and self._records_gradients(target, scope):
            return False
        if isinstance(target, ast.Subscript) or in_place:
            return self._is_parameter(target, scope)
        if not isinstance(target, ast.Attribute):
            return False
        if target.attr == "grad":  # what a step takes instead of what the backward passes gave
            return self._is_parameter(target.value, scope)
        return target.attr == "data" and self._is_parameter(target, scope)

    def _records_gradients(self, target: ast.Name, scope: Scope) -> bool:
        """Whether it is in a method of a model, with gradients: there torch refuses to change a parameter in place."""
        body = blocks.body_of(scope.module, target)
        return self._program.is_model_code(body) and not self._program.without_gradients(scope.module, target, body)

    def _is_weight(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the expression is a parameter of a trained model, or its data; not its gradient."""
        current = node
        while True:
            if isinstance(current, ast.Attribute) and current.attr == "grad":
                return False
            values = self._program.flow.values(current, scope)
            if any(value.kind == "parameters" and self._program.is_trained(value.ref) for value in values):
                return True
            if current is not node and any(self._program.is_trained(value) for value in values):
                return isinstance(node, (ast.Attribute, ast.Subscript))
            if isinstance(current, (ast.Attribute, ast.Subscript)):
                current = current.value
            elif isinstance(current, ast.Call) and isinstance(current.func, ast.Attribute):
                current = current.func.value
            else:
                return False

    # ---- parameters by their names --------------------------------------------------------------------------------

    def _is_parameter(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the expression is, for certain, a parameter of a trained model or of a part of one, or its data."""
        while isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "data"):
            node = node.value
        values = self._program.flow.values(node, scope)
        if isinstance(node, ast.Name) and any(map(_is_made_anew, values)):
            return False  # ``total = 0`` and ``total += p.sum()`` of parameters make a new value
        if any(value.kind == "parameters" and self._program.is_trained(value.ref) for value in values):
            return True
        if not isinstance(node, ast.Attribute):
            return False
        return any(
            self._holds_parameter(value, node.attr) and self._is_part(value)
            for value in self._program.flow.values(node.value, scope)
        )

    def _holds_parameter(self, value: Value, name: str) -> bool:
        if value.kind == "object":
            return str(value.ref).startswith("torch.nn.") and name in _OF_LAYERS
        if value.kind != "instance":
            return False
        return any(name in self._parameters_of(info) for info in value.ref.mro())

    def _parameters_of(self, info: ClassInfo) -> frozenset[str]:
        if info not in self._attributes:
            self._attributes[info] = frozenset(self._made_in(info))
        return self._attributes[info]

    def _made_in(self, info: ClassInfo) -> Iterator[str]:
        """Yield the attributes that a class gives parameters: ``self.bias = nn.Parameter(x)``."""
        for method in info.facts.methods.values():
            scope = self._program.flow.scopes.get(method.node)
            for node in walk(method.node) if scope is not None else ():
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and scope is not None:
                    if self._program.callee_names(node.value, scope) & PARAMETER_MAKERS:
                        paths = (blocks.path_of(target) or "" for target in node.targets)
                        yield from (path.partition(".")[2] for path in paths if path.startswith(f"{method.receiver}."))
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                    given = argument_at(node, "param", 1)
                    is_none = isinstance(given, ast.Constant)  # the name is that of a buffer then, or of nothing
                    if node.func.attr == "register_parameter" and not is_none:
                        if isinstance(name := literal(node.args[0]), str):
                            yield name

    def _is_part(self, value: Value) -> bool:
        if self._program.is_trained(value) or value in self._parts:
            return True
        return value.kind == "instance" and value.ref in self._classes

    @cached_property
    def _parts(self) -> set[Value]:
        return self._program.with_parts(self._program.trained)

    @cached_property
    def _classes(self) -> set[ClassInfo]:
        """Classes of models and of their parts: of ``self`` in their methods no more is known."""
        return {value.ref for value in self._parts if value.kind == "instance"}


def _is_made_anew(value: Value) -> bool:
    """Whether a value is a number, or a tensor that a function of torch makes."""
    if value.kind == "constant":
        return isinstance(value.ref, (int, float))
    return value.kind == "object" and value.ref in MADE_OF_A_TYPE | LIKE_ANOTHER
