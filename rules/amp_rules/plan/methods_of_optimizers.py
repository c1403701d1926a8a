"""Methods that an optimizer of Apex does not have, called where another optimizer has them: ``optimizer.get_lr()``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.file_names import more_places
from amp_rules.plan.notes import REFUSED, note
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.torch import own_half
from amp_rules.torch.apex import OPTIMIZER_PATHS

_ONLY_OTHERS = {"get_lr": 'ask `{}.param_groups[0]["lr"]`', "get_last_lr": 'ask `{}.param_groups[0]["lr"]`'}
"""Methods that neither torch's optimizers nor Apex's have, and what has the same answer."""

_WRAPPERS = frozenset(f"{place}.{own_half.WRAPPER}" for place in own_half.APEX)
"""What an optimizer of Apex is in where a variable holds both: they hand on no methods."""


def notes(program: Program) -> Iterator[Note]:
    """Yield one for the first such call of each method."""
    found: dict[str, list[tuple[Module, ast.Call, str]]] = {}
    for call, _, scope in program.calls():
        if not (isinstance(call.func, ast.Attribute) and call.func.attr in _ONLY_OTHERS):
            continue
        values = program.flow.values(call.func.value, scope)
        wrapper = next((str(value.ref) for value in values if value.ref in _WRAPPERS), None)
        for value in values:
            is_apex = value.kind == "object" and value.ref in OPTIMIZER_PATHS
            if is_apex and not _asks_alike(program, scope.module, call, value.site):
                found.setdefault(call.func.attr, []).append((scope.module, call, wrapper or str(value.ref)))
                break
    for method, places in found.items():
        module, call, made = places[0]
        assert isinstance(call.func, ast.Attribute)
        held = module.text(call.func.value)
        others = more_places(program, [item[:2] for item in places])
        kind = made.rpartition(".")[2]
        text = (
            f"`{module.text(call)}` raises AttributeError where `{held}` is of `{kind}`, which has no such method, "
            f"here as in Apex{others}; {_ONLY_OTHERS[method].format(held)}"
        )
        yield note(REFUSED, module, call, text)


def _asks_alike(program: Program, module: Module, call: ast.Call, made: ast.AST | None) -> bool:
    """Whether a test around a call asks for something that the choice of the optimizer asked for: ``args.fp16``."""
    other = program.module_of(made) if made is not None else None
    if made is None or other is None:
        return True
    tests, others = _tests(module, call), _tests(other, made)
    asked = {path for test in tests - others for path in blocks.reads(test)}
    return any(blocks.reads(test) & asked for test in others - tests)


def _tests(module: Module, node: ast.AST) -> set[ast.expr]:
    return {item.test for item in blocks.enclosing(module, node) if isinstance(item, ast.If)}
