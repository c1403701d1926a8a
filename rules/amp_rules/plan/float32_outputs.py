"""What is computed of the outputs of prepared models alone: these come back in FP32, and autocast keeps it so."""

from __future__ import annotations

import ast

from amp_rules.lattice import torch_operations as ops
from amp_rules.lattice.half_precision import fate
from amp_rules.lattice.mode import DEVICES, Mode
from amp_rules.plan.definitions import Definition, Definitions
from amp_rules.plan.model_homes.home import made_at
from amp_rules.plan.options import Options
from amp_rules.plan.precision import Precision
from amp_rules.roles.steps import Program
from amp_rules.source.scopes import Scope

_MAX_DEPTH = 20
"""Names and operations that are looked through; a ranking loss of embeddings takes ten."""
_KEEPING = ops.VIEWS | ops.SPLITS | ops.ELEMENTWISE | ops.REDUCTIONS
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_OTHER_OUTPUTS = "cast_model_outputs"
"""The argument by which a script chooses the type of these outputs itself."""


class Float32Outputs:
    """Answers about one program."""

    def __init__(self, program: Program, precision: Precision, options: Options) -> None:
        self._program = program
        self._definitions = Definitions(program)
        self._prepared = {home.made for home in precision.homes if home.rebinds}
        # In plain PyTorch nothing casts the outputs.
        if options.target == "torch" or any(_OTHER_OUTPUTS in module.source.text for module in program.flow.modules):
            self._prepared.clear()

    def hold(self, node: ast.expr, scope: Scope) -> bool:
        """Whether a tensor is certainly FP32 within a region, as it is made of such outputs."""
        return bool(self._prepared) and self._holds(node, scope, 0)

    def _holds(self, node: ast.expr, scope: Scope, depth: int) -> bool:
        if depth > _MAX_DEPTH:
            return False
        if isinstance(node, ast.BinOp):
            return (
                isinstance(node.op, _OPERATORS)
                and any(not isinstance(side, ast.Constant) for side in (node.left, node.right))
                and all(
                    isinstance(side, ast.Constant) or self._holds(side, scope, depth + 1)
                    for side in (node.left, node.right)
                )
            )
        if isinstance(node, ast.UnaryOp):
            return self._holds(node.operand, scope, depth + 1)
        if isinstance(node, ast.Subscript):
            return self._holds(node.value, scope, depth + 1)
        if isinstance(node, ast.Call):
            return self._gives(node, scope, depth)
        return isinstance(node, ast.Name) and self._is_held(node, scope, depth)

    def _gives(self, call: ast.Call, scope: Scope, depth: int) -> bool:
        models = self._program.called_models(call, scope)
        if models:
            return isinstance(call.func, ast.Name) and {made_at(model) for model in models} <= self._prepared
        names = self._program.callee_names(call, scope)
        if any(item.arg in ("dtype", "out") for item in call.keywords) or self._program.flow.callees(call):
            return False
        if names:
            keeps = all(name.startswith("torch.") and _keeps(ops.function_named(name)) for name in names)
            return keeps and bool(call.args) and self._holds(call.args[0], scope, depth + 1) and _is_of_one(call)
        method = call.func
        return (
            isinstance(method, ast.Attribute)
            and _keeps(method.attr)
            and _is_of_one(call, method=True)
            and self._holds(method.value, scope, depth + 1)
        )

    def _is_held(self, node: ast.Name, scope: Scope, depth: int) -> bool:
        given = self._definitions.of(node, scope)
        function = self._definitions.parameter(node, scope)
        if function is not None and not self._is_given(function, node.id, depth):
            return False
        return bool(given or function) and all(self._is_assigned(item, depth) for item in given)

    def _is_assigned(self, item: Definition, depth: int) -> bool:
        return isinstance(item.statement, (ast.Assign, ast.AugAssign)) and self._holds(
            item.value, item.scope, depth + 1
        )

    def _is_given(self, function: ast.AST, name: str, depth: int) -> bool:
        info = self._program.function_of(function)
        callers = self._program.flow.callers(info) if info is not None else []
        if info is None or not callers:
            return False
        arguments = [(info.argument(caller.call, name), caller.scope) for caller in callers]
        return all(value is not None and self._holds(value, scope, depth + 1) for value, scope in arguments)


def _keeps(operation: str) -> bool:
    """Whether an operation gives FP32 of FP32 under autocast."""
    return operation in _KEEPING and all(
        fate(operation, Mode(device=device), autocast=True) in ("as given", "float32") for device in DEVICES
    )


def _is_of_one(call: ast.Call, *, method: bool = False) -> bool:
    """Whether all further arguments are numbers: no second tensor has a say in the type."""
    given = [*(call.args if method else call.args[1:]), *(item.value for item in call.keywords)]
    return all(isinstance(item.operand if isinstance(item, ast.UnaryOp) else item, ast.Constant) for item in given)
