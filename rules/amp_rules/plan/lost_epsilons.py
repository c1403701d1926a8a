"""Epsilons of the training step that fp16 rounds to zero, so that they keep nothing from zero."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.checks.common.zero_guards import Guard
from amp_rules.checks.numbers.eps_underflow import EpsUnderflow
from amp_rules.lattice.abstract_values import IN_ONE_FORMULA, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.linter import Linter
from amp_rules.plan.half_places import HalfPlace, HalfPlaces, made_by_product, parameters_of
from amp_rules.plan.options import HALVED, Options
from amp_rules.plan.precision import Precision
from amp_rules.roles.steps import Program, Site
from amp_rules.source.modules import Module
from amp_rules.source.spans import Span
from amp_rules.source.text import SourceError


@dataclass(frozen=True)
class LostEpsilon:
    """An epsilon that fp16 has no number for.

    Attributes:
        behind: the places of the operations that the guarded tensor is made of.
        stands_first: whether it is the left operand of its sum.
    """

    behind: frozenset[Span]
    stands_first: bool


def lost_epsilons(program: Program, precision: Precision, options: Options) -> Iterator[tuple[Site, LostEpsilon]]:
    """The sums and clamps with an epsilon that fp16 has no number for, by file and line."""
    return HalfPlaces(program, precision, inputs=options.opt_level in HALVED).found(_judged)


def _judged(module: Module) -> dict[Span, HalfPlace[LostEpsilon]]:
    check = _Epsilons(module)
    try:
        Linter(Mode("O1", "fp16"), [check], in_regions=True).lint(module.source)
    except (SourceError, RecursionError):
        return {}
    return check.found


class _Epsilons(EpsUnderflow):
    """Collects what adds the epsilon, or takes the larger one."""

    def __init__(self, module: Module) -> None:
        self.found: dict[Span, HalfPlace[LostEpsilon]] = {}
        self._module = module

    def _report(self, op: Value, guard: Guard, number: float, frame: Frame) -> None:
        node = guard.op.node
        around: Frame | None = frame
        while around is not None and node is not None:
            if around.module.module.path == self._module.path and around.module.holds(node):
                parts = [item.node for item in guard.tensor.behind(IN_ONE_FORMULA)]
                own = [item for item in parts if item is not None and around.module.holds(item)]
                made_of = frozenset(map(self._module.span, own))
                given = parameters_of(guard.tensor, around.module)
                lost = LostEpsilon(made_of, guard.op.args[0] is guard.epsilon)
                self.found[self._module.span(node)] = HalfPlace(lost, made_by_product(guard.tensor), given)
                return
            around = around.caller
