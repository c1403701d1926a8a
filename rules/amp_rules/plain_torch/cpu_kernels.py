"""Layers whose half kernel some CPUs lack: torch raises there, where the runtime computes in float32."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program

_LSTM = frozenset({"torch.nn.LSTM", "torch.nn.modules.rnn.LSTM"})
"""Under autocast on the CPU oneDNN's kernel is taken, which needs AVX-512. Others have one for every processor."""


def lacks_kernel_on_cpus(program: Program) -> bool:
    """Whether a program makes a layer that raises under autocast on some CPUs."""
    return bool(program.calls_to(_LSTM)) or any(_may_name(program, node) for node in _nodes(program))


def _nodes(program: Program) -> list[ast.AST]:
    return [node for module in program.flow.modules for node in module.nodes]


def _may_name(program: Program, node: ast.AST) -> bool:
    """Whether a node is the name of the layer: a base class, or a text to find it by, as in ``getattr(nn, "LSTM")``."""
    if isinstance(node, ast.ClassDef):
        return any(ast.unparse(base).rpartition(".")[2] == "LSTM" for base in node.bases)
    return isinstance(node, ast.Constant) and node.value == "LSTM"
