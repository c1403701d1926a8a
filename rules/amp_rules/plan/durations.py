"""What is measured with the clock: each process has a time of its own, and times of several add up to none."""

from __future__ import annotations

import ast

from amp_rules.plan.training_loops import variable
from amp_rules.roles.steps import Program
from amp_rules.source.scopes import Scope
from amp_rules.torch.replication import CLOCKS

_BETWEEN_EVENTS = "elapsed_time"
"""The method of CUDA's events that measures."""

_SAME_TIME = frozenset({"float", "round", "int", "max", "min", "total_seconds", "item"})


class Durations:
    """Says what a function measures with the clock."""

    def __init__(self, program: Program, body: ast.AST, scope: Scope) -> None:
        self._program = program
        self._scope = scope
        self._known: set[str] = set()
        assigned = [
            (target, node.value)
            for node in program.nodes_of(body)
            if isinstance(node, ast.Assign)
            for target in node.targets
        ]
        while True:
            before = len(self._known)
            for target, value in assigned:
                path = variable(target)
                if path is not None and self.is_time(value):
                    self._known.add(path)
            if len(self._known) == before:
                return

    def is_time(self, node: ast.AST) -> bool:
        """Whether an expression is a time, a difference of times, or a multiple of one."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            return variable(node) in self._known
        if isinstance(node, ast.BinOp):
            return self.is_time(node.left) or (not isinstance(node.op, ast.Div) and self.is_time(node.right))
        if not isinstance(node, ast.Call):
            return False
        if self._program.callee_names(node, self._scope) & CLOCKS:
            return True
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == _BETWEEN_EVENTS:
            return True
        held = [node.func.value] if isinstance(node.func, ast.Attribute) else node.args
        return name in _SAME_TIME and any(map(self.is_time, held))
