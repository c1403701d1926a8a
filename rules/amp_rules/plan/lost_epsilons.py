"""Epsilons of the training step that half precision loses: fp16 rounds them to zero, or they vanish beside one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.checks.common.zero_guards import Guard
from amp_rules.checks.numbers.eps_absorbed import EpsAbsorbed, lets_one_in
from amp_rules.checks.numbers.eps_underflow import EpsUnderflow
from amp_rules.lattice.abstract_values import IN_ONE_FORMULA, PASSING, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.linter import Linter
from amp_rules.plan.half_places import HalfPlace, HalfPlaces, made_by_product, parameters_of
from amp_rules.plan.made_of import SHAPING, made_by
from amp_rules.plan.options import HALVED, Options
from amp_rules.plan.precision import Precision
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.spans import Span
from amp_rules.source.text import SourceError

_KEEPING_HALF = PASSING - {"float", "to", "double"}
_PROBABILITIES = frozenset({"sigmoid", "softmax"})


@dataclass(frozen=True)
class LostEpsilon:
    """An epsilon that half precision has no number for.

    Attributes:
        behind: the places of the operations that the guarded tensor is made of.
        stands_first: whether it is the left operand of its sum.
        beside_one: whether it is lost beside one, as that of ``clamp(max=1 - 1e-7)``, and not rounded to zero.
    """

    behind: frozenset[Span]
    stands_first: bool
    beside_one: bool = False


def lost_epsilons(program: Program, precision: Precision, options: Options) -> Iterator[tuple[Site, LostEpsilon]]:
    """The sums and clamps with an epsilon that half precision has no number for, by file and line."""
    return HalfPlaces(program, precision, inputs=options.opt_level in HALVED).found(_judged)


def _judged(module: Module) -> dict[Span, HalfPlace[LostEpsilon]]:
    epsilons, absorbed = _Epsilons(module), _Absorbed(module)
    try:
        Linter(Mode("O1", "fp16"), [epsilons, absorbed], in_regions=True).lint(module.source)
        # bfloat16 has the exponents of float32, and fewer digits than fp16.
        Linter(Mode("O1", "bf16"), [absorbed], in_regions=True).lint(module.source)
    except (SourceError, RecursionError):
        return {}
    return absorbed.found | epsilons.found


class _Places:
    """What of a file has lost an epsilon."""

    def __init__(self, module: Module) -> None:
        self.found: dict[Span, HalfPlace[LostEpsilon]] = {}
        self._module = module

    def add(self, op: Value, tensor: Value, frame: Frame, *, stands_first: bool, beside_one: bool) -> None:
        """Note an operation that guards a tensor, if it stands in the file."""
        node = op.node
        around: Frame | None = frame
        while around is not None and node is not None:
            if around.module.module.path == self._module.path and around.module.holds(node):
                parts = [item.node for item in tensor.behind(IN_ONE_FORMULA)]
                own = [item for item in parts if item is not None and around.module.holds(item)]
                made_of = frozenset(map(self._module.span, own))
                lost = LostEpsilon(made_of, stands_first, beside_one)
                given = parameters_of(tensor, around.module)
                self.found[self._module.span(node)] = HalfPlace(lost, made_by_product(tensor), given)
                return
            around = around.caller


class _Epsilons(EpsUnderflow):
    """Collects what adds the epsilon, or takes the larger one."""

    def __init__(self, module: Module) -> None:
        self._places = _Places(module)
        self.found = self._places.found

    def _report(self, op: Value, guard: Guard, number: float, frame: Frame) -> None:
        first = guard.op.args[0] is guard.epsilon
        self._places.add(guard.op, guard.tensor, frame, stands_first=first, beside_one=False)


class _Absorbed(EpsAbsorbed):
    """Collects what takes the smaller one of a tensor and a bound that is one in half."""

    def __init__(self, module: Module) -> None:
        self._places = _Places(module)
        self.found = self._places.found

    def _absorbed(self, op: Value, clamp: Value, bound: Value, number: float, frame: Frame) -> None:
        self._places.add(clamp, clamp.args[0], frame, stands_first=False, beside_one=True)

    def _infinite(self, op: Value, given: Value | None, number: float, frame: Frame) -> None:
        self._places.add(op, op.args[0], frame, stands_first=False, beside_one=True)

    def visit_function(self, function: FunctionFacts | None, frame: Frame) -> None:
        """``return torch.clamp(x.sigmoid_(), 1e-4, 1 - 1e-4)``: another file takes the logarithm of the rest to one."""
        if not frame.mode.autocast:
            return
        for returned in frame.returned:
            clamp = returned.through(_KEEPING_HALF)
            if clamp.op not in ("clamp", "clamp_max") or not clamp.args[0].maybe_low:
                continue
            if any(made_by(clamp.args[0], _PROBABILITIES, SHAPING)) and lets_one_in(clamp, frame.mode):
                self._places.add(clamp, clamp.args[0], frame, stands_first=False, beside_one=True)
