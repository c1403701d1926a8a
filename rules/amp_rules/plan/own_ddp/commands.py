"""Functions that a library runs and the script does not call: commands, as click and typer have them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.idle import is_idle_function
from amp_rules.roles.program import Program
from amp_rules.roles.uncalled import uncalled
from amp_rules.source import blocks
from amp_rules.torch.commands import RUNS_COMMANDS


def run_by_libraries(program: Program) -> Iterator[ast.AST]:
    """Yield the functions of the script's own file that train, and that something outside the program calls.

    All processes get there: a wrapped model waits for all of them in its backward pass.
    """
    commands = (site.node for site in program.calls_to(RUNS_COMMANDS) if site.module is program.entry)
    runs_any = any(isinstance(call, ast.Call) and not (call.args or call.keywords) for call in commands)
    for info in program.flow.functions.values():
        if info.module.module is not program.entry or not isinstance(info.node, ast.FunctionDef):
            continue
        if program.flow.callers(info) or info.node in uncalled(program):
            continue
        if not runs_any and is_idle_function(program, info):
            continue
        if any(map(program.runs_backward, blocks.own_parts(info.node))):
            yield info.node
