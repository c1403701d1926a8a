"""What a script's own ``CUDA_VISIBLE_DEVICES`` says of conditions on the number of GPUs.

Under torchrun it is not set, since each process needs a device of its own: ``torch.cuda.device_count() > 1`` would then
say something else than in the script as it was.
"""

from __future__ import annotations

import ast

from amp_rules.plan.distribution import visible_devices
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.torch.functions import DEVICE_COUNTS


class PinnedDevices:
    """Answers for the conditions around the wrappers of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._pins = visible_devices(program)

    def never_several(self, site: Site) -> bool:
        """Whether a place runs for several GPUs alone, and the script sees one at most."""
        values = [_value(statement) for _, statement in self._pins]
        if not values or not all(_is_one_device(item) for item in values):
            return False
        if not all(_is_unconditional(module, statement) for module, statement in self._pins):
            return False
        return self._condition(site) is not None

    def condition(self, site: Site) -> tuple[ast.expr, str] | None:
        """The condition on the number of GPUs that a place stands under, and what says the same of the devices named.

        None where the devices are not one variable of the file that holds in the place too.
        """
        test = self._condition(site)
        if test is None or len(self._pins) != 1:
            return None
        module, statement = self._pins[0]
        value = _value(statement)
        if not isinstance(value, (ast.Name, ast.Attribute)) or module is not site.module:
            return None
        if not _is_unconditional(module, statement):
            return None
        located = self._program.locate(statement)
        path = blocks.path_of(value)
        if located is None or path is None:
            return None
        _, scope = located
        owner = scope.owner(path.partition(".")[0])
        if owner is not site.scope.owner(path.partition(".")[0]):
            return None
        return test, f'"," in {path}'

    def _condition(self, site: Site) -> ast.expr | None:
        """``torch.cuda.device_count() > 1`` of an ``if`` around a place, or as one of the parts that all must hold."""
        child: ast.AST = site.node
        for parent in site.module.ancestors(site.node):
            if isinstance(parent, (ast.If, ast.IfExp)):
                body = parent.body if isinstance(parent.body, list) else [parent.body]
                tests = parent.test.values if _is_and(parent.test) else [parent.test]  # type: ignore[attr-defined]
                found = next((item for item in tests if self._asks_for_several(item, site)), None)
                if child in body and found is not None:
                    return found
            child = parent
        return None

    def _asks_for_several(self, test: ast.expr, site: Site) -> bool:
        """``torch.cuda.device_count() > 1``."""
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.left, ast.Call)):
            return False
        if not self._program.callee_names(test.left, site.scope) & DEVICE_COUNTS:
            return False
        limit = test.comparators[0]
        number = limit.value if isinstance(limit, ast.Constant) else None
        return (isinstance(test.ops[0], ast.Gt) and number == 1) or (isinstance(test.ops[0], ast.GtE) and number == 2)


def _value(statement: ast.stmt) -> ast.expr:
    assert isinstance(statement, ast.Assign)
    return statement.value


def _is_one_device(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str) and "," not in value.value


def _is_unconditional(module: Module, statement: ast.stmt) -> bool:
    """Whether the statement runs whenever its function does, the guard of the script's own level aside."""
    return all(
        isinstance(item, ast.If) and "__name__" in blocks.reads(item.test)
        for item in blocks.enclosing(module, statement)
    )


def _is_and(test: ast.expr) -> bool:
    return isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)
