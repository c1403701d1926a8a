"""Times that a loop measures: those of one process, which are no share of a whole and are never added up over ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.training_loops import TrainingLoop, added_to, variable
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.torch.replication import CLOCKS, ELAPSED

_OF_METER = frozenset({"val", "avg", "sum", "average", "global_avg", "value"})


def is_time(program: Program, site: Site, value: ast.AST) -> bool:
    """Whether a number is made of what the clock says, in the function of the place: ``time.time() - start``."""
    return _reads_clock(program, site, value, _clock_variables(program, site))


def times(program: Program, loop: TrainingLoop | BatchLoop) -> frozenset[str]:
    """The variables that a loop adds times to, or appends them to."""
    clocks = _clock_variables(program, loop)
    found: set[str] = set()
    for node in loop.inner:
        for grown, value in _grown(node):
            if _reads_clock(program, loop, value, clocks):
                found.add(grown)
    return frozenset(found)


def _grown(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield what a statement adds to or appends to, with what it adds."""
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        for path in added_to(node):
            yield path, node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
        held = variable(node.func.value)
        if held is not None and node.args:
            yield held, node.args[0]


def _clock_variables(program: Program, site: Site) -> set[str]:
    """Variables of a function that hold nothing but what the clock says, or what is made of it, meters among them."""
    assigned: dict[str, list[ast.expr]] = {}
    told: dict[str, list[ast.expr]] = {}
    for node in program.nodes_of(site.body):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
            path = blocks.path_of(node.func.value)
            if path is not None and node.args and not isinstance(node.args[0], ast.Dict):
                told.setdefault(path, []).append(node.args[0])
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            path = blocks.path_of(node.targets[0])
            if path is not None and not isinstance(node.value, ast.Constant):
                assigned.setdefault(path, []).append(node.value)
    found: set[str] = set()
    while True:
        more = {
            path
            for path, values in [*assigned.items(), *told.items()]
            if path not in found and all(_reads_clock(program, site, value, found) for value in values)
        }
        if not more:
            return found
        found |= more


def _reads_clock(program: Program, site: Site, value: ast.AST, clocks: set[str]) -> bool:
    for part in walk(value):
        if isinstance(part, ast.Call):
            if program.callee_names(part, site.scope) & CLOCKS:
                return True
            if isinstance(part.func, ast.Attribute) and part.func.attr in ELAPSED:
                return True
        elif isinstance(part, (ast.Name, ast.Attribute)):
            path = blocks.path_of(part) or ""
            if path in clocks or (path.rpartition(".")[2] in _OF_METER and path.rpartition(".")[0] in clocks):
                return True
    return False
