"""The level that a script gave to Apex, and keeps.

Apex's O2 makes models half, and nothing else: what they give is float32, and a loss that multiplies matrices does so in
float32. A region would run it in half.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.plan.geometry import before_products
from amp_rules.roles.program import Program
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.source.index import keyword

STARTS = frozenset({"amp_runtime.init"})
"""What gives the runtime a level."""
_HALF_MODELS, _OFF = frozenset({"O2", "O3"}), frozenset({"O0"})


def within_levels(program: Program, runs: Iterable[StatementRun]) -> list[StatementRun]:
    """The regions, without losses that multiply where every level that the script may give makes its models half."""
    starts = program.calls_to(STARTS)
    levels = set().union(*(_levels(site.node) for site in starts))
    if not levels & _HALF_MODELS or not levels <= _HALF_MODELS | _OFF:
        return [*runs]
    return before_products(program, runs)


def _levels(call: ast.AST) -> set[object]:
    """What the level of a start may be; None stands for what is not written there."""
    given = keyword(call, "opt_level") if isinstance(call, ast.Call) else None
    parts = [given.body, given.orelse] if isinstance(given, ast.IfExp) else [given]
    return {part.value if isinstance(part, ast.Constant) else None for part in parts}
