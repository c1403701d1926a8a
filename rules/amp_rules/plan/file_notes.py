"""What a reader has to know of files that the main process alone writes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import notes
from amp_rules.plan.file_guards import FileGuards
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope

_ROWS = frozenset({"write", "writelines", "writerow", "writerows"})


def of_rows(program: Program, guards: FileGuards) -> Iterator[Note]:
    """Yield the first place that writes to a file in each step: of N processes, one writes an N-th of the rows."""
    around_steps = [list(blocks.enclosing(site.module, site.node)) for site in program.backwards]
    loops = {next((item for item in around if isinstance(item, (ast.For, ast.While))), None) for around in around_steps}
    effects = {effect.call for effect in guards.effects}
    opened = {effect.call for effect in guards.effects if effect.keeps_open}
    for call, _, scope in program.calls():
        around = list(blocks.enclosing(scope.module, call))
        loop = next((item for item in around if item in loops), None)
        if loop is None or any(isinstance(item, (ast.If, ast.While)) for item in around[: around.index(loop)]):
            continue
        if call in effects - opened or _writes_row(program, call, scope, opened):
            yield notes.note(
                notes.TOTALS,
                scope.module,
                call,
                f"`{scope.module.text(call.func)}` writes in each step of the main process: N processes take 1/N as "
                "many steps, each on its own batch",
            )
            return


def _writes_row(program: Program, call: ast.Call, scope: Scope, opened: set[ast.Call]) -> bool:
    """Whether a call writes to a file that is kept open, or to what makes its rows: ``csv.writer(file)``."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in _ROWS:
        values = program.flow.values(call.func.value, scope)
        return any(value.site in opened or value.name in ("csv.writer", "csv.DictWriter") for value in values)
    file = next((item.value for item in call.keywords if item.arg == "file"), None)
    return file is not None and any(value.site in opened for value in program.flow.values(file, scope))
