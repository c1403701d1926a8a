"""Models that ask whether what they are given is float16, by the old names of such tensors."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.source.scopes import Scope
from amp_rules.torch.dtypes import HALF_TENSORS


def asks_for_float16(program: Program) -> bool:
    """Whether a model tests for ``torch.cuda.HalfTensor``: to another half type the answer is no."""
    return any(
        isinstance(node, (ast.Compare, ast.Call)) and _tests(program, node, scope) and program.is_model_code(body)
        for node, body, scope in program.nodes()
    )


def _tests(program: Program, node: ast.Compare | ast.Call, scope: Scope) -> bool:
    """``x.type() == "torch.cuda.HalfTensor"``, ``isinstance(x, torch.cuda.HalfTensor)``."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return any(isinstance(side, ast.Constant) and _is_float16(side.value) for side in sides)
    if not (isinstance(node.func, ast.Name) and node.func.id == "isinstance") or len(node.args) != 2:
        return False
    return any(map(_is_float16, program.names(node.args[1], scope)))


def _is_float16(name: object) -> bool:
    return isinstance(name, str) and HALF_TENSORS.get(name) == "float16"
