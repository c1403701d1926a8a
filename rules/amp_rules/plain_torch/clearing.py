"""Which optimizers' gradients a statement clears."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.flow.cells import CellKey
from amp_rules.flow.values import Value
from amp_rules.plain_torch.uses import Use
from amp_rules.plan.gradient_owners import GradientOwners
from amp_rules.roles.program import Program
from amp_rules.source import blocks


class Clearing:
    """Answers for one program.

    Args:
        program: the program.
        owners: who holds which gradients.
        uses: the calls of the scaler.
    """

    def __init__(self, program: Program, owners: GradientOwners, uses: Iterable[Use]) -> None:
        self._program = program
        self._owners = owners
        self._steps = [use for use in uses if use.path == "scaler.step" and use.call is not None and use.call.args]

    def by_call(self, node: ast.Call) -> frozenset[Value]:
        """The optimizers whose gradients ``zero_grad()`` of an optimizer or a model clears."""
        located = self._program.locate(node)
        if located is None or not (isinstance(node.func, ast.Attribute) and node.func.attr == "zero_grad"):
            return frozenset()
        scope, receiver = located[1], node.func.value
        cleared = self._owners.cleared(node, scope)
        key = self._program.flow.key(receiver, scope)
        if cleared or key is None:
            return cleared
        if any(self._program.flow.key(use.argument, use.scope) == key for use in self._steps):
            return self._owners.at(receiver, scope)  # it steps, whatever else it may be: ``self.opt.zero_grad()``
        return self._of_same_model(key) if isinstance(receiver, ast.Name) else frozenset()

    def _of_same_model(self, key: CellKey) -> frozenset[Value]:
        """The optimizers that are given ``model.parameters()`` of the variable that is cleared, whichever model it is.

        It must not be given another model after them.
        """
        found = set()
        for optimizer in self._owners.optimizers:
            call = optimizer.site
            given = call.args[0] if isinstance(call, ast.Call) and call.args else None
            located = self._program.locate(given) if given is not None else None
            if given is None or located is None or not isinstance(given, ast.Call):
                continue
            if not isinstance(given.func, ast.Attribute) or given.func.attr != "parameters":
                continue
            if self._program.flow.key(given.func.value, located[1]) == key and not self._is_set_after(key, given):
                found.add(optimizer)
        return frozenset(found)

    def _is_set_after(self, key: CellKey, node: ast.Call) -> bool:
        """Whether a variable is written below a place, in the body that it belongs to or in one within it."""
        owner, name = key
        return isinstance(owner, ast.AST) and any(
            isinstance(part, ast.Name)
            and part.id == name
            and not isinstance(part.ctx, ast.Load)
            and part.lineno > node.lineno
            for part in ast.walk(owner)
        )

    def by_loop(self, node: ast.For | ast.AsyncFor) -> frozenset[Value]:
        """The optimizers whose gradients a loop over the parameters of their models clears, one by one."""
        module = self._program.module_of(node)
        located = self._program.locate(node.iter)
        is_clearing = any(
            isinstance(item, ast.Assign)
            and isinstance(item.value, ast.Constant)
            and item.value.value is None
            and any(isinstance(target, ast.Attribute) and target.attr == "grad" for target in item.targets)
            for item in ast.walk(node)
        ) or any(
            isinstance(item, ast.Call) and (blocks.path_of(item.func) or "").endswith(".grad.zero_")
            for item in ast.walk(node)
        )
        tests = [item.test for item in ast.walk(node) if isinstance(item, ast.If)]
        if (
            module is None
            or located is None
            or not is_clearing
            or not all(".grad" in module.text(test) for test in tests)
        ):
            return frozenset()
        values = self._program.flow.values(node.iter, located[1])
        return self._owners.held_by({value.ref for value in values if value.kind == "parameters"})
