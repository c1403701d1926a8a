"""Epsilons of the training step that fp16 rounds to zero, so that they keep nothing from zero."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.zero_guards import Guard
from amp_rules.checks.numbers.eps_underflow import EpsUnderflow
from amp_rules.lattice.abstract_values import IN_ONE_FORMULA, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.linter import Linter
from amp_rules.plan.half_places import HalfPlaces, made_by_product
from amp_rules.plan.precision import Precision
from amp_rules.roles.in_regions import nodes_in
from amp_rules.roles.steps import Program, Site
from amp_rules.source.modules import Module
from amp_rules.source.spans import Span
from amp_rules.source.text import SourceError


def lost_epsilons(program: Program, precision: Precision) -> Iterator[tuple[Site, frozenset[Span]]]:
    """Yield the sums and clamps with an epsilon that fp16 has no number for, by file and line.

    With each come the places of the operations that the guarded tensor is made of.
    """
    places = HalfPlaces(program, precision)
    judged: dict[Module, dict[Span, tuple[frozenset[Span], bool]]] = {}
    for site in nodes_in(program, precision.runs, precision.full_precision):
        if not isinstance(site.node, (ast.Call, ast.BinOp)):
            continue
        if site.module not in judged:
            judged[site.module] = _judged(site.module)
        behind, is_certain = judged[site.module].get(site.module.span(site.node), (None, False))
        if behind is not None and (is_certain or places.holds(site)):
            yield site, behind


def _judged(module: Module) -> dict[Span, tuple[frozenset[Span], bool]]:
    check = _Epsilons(module)
    try:
        Linter(Mode("O1", "fp16"), [check], in_regions=True).lint(module.source)
    except (SourceError, RecursionError):
        return {}
    return check.found


class _Epsilons(EpsUnderflow):
    """Collects what adds the epsilon, or takes the larger one."""

    def __init__(self, module: Module) -> None:
        self.found: dict[Span, tuple[frozenset[Span], bool]] = {}
        self._module = module

    def _report(self, op: Value, guard: Guard, number: float, frame: Frame) -> None:
        node = guard.op.node
        around: Frame | None = frame
        while around is not None and node is not None:
            if around.module.module.path == self._module.path and around.module.holds(node):
                parts = [item.node for item in guard.tensor.behind(IN_ONE_FORMULA)]
                own = [item for item in parts if item is not None and around.module.holds(item)]
                is_certain = made_by_product(guard.tensor)
                self.found[self._module.span(node)] = frozenset(map(self._module.span, own)), is_certain
                return
            around = around.caller
