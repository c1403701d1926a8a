"""Sums in which a state goes on by small steps of one function: ``z = z + dt * self.drift(z)`` in a loop.

An integrator of fixed steps adds, hundreds of times, what is a hundredth of the state. Of two half numbers their sum
keeps 8 bits in bfloat16, 11 in float16, so that most of each step is lost, and small ones altogether. Layers above each
other, ``x = x + block(x)``, are another thing: each is a function of its own, and learns with what is rounded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.mixed_types import float_type
from amp_rules.lattice.abstract_values import F32, LOW, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check
from amp_rules.lint.linter import Linter
from amp_rules.plan.half_places import HalfPlace, HalfPlaces, made_by_product, parameters_of
from amp_rules.plan.precision import Precision
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.spans import Span
from amp_rules.source.syntax import walk
from amp_rules.source.text import SourceError


def integrated_states(program: Program, precision: Precision) -> Iterator[Site]:
    """The sums of half tensors that take a step, by file and line."""
    return (site for site, _ in HalfPlaces(program, precision).found(_judged))


def _judged(module: Module) -> dict[Span, HalfPlace[None]]:
    steps = {
        module.span(node.value) for node in module.nodes if isinstance(node, ast.Assign) and _is_step(module, node)
    }
    if not steps:
        return {}
    sums = _Sums(module, steps)
    try:
        Linter(Mode("O1", "bf16"), [sums], in_regions=True).lint(module.source)
    except (SourceError, RecursionError):
        return {}
    return sums.found


class _Sums(Check):
    """Collects the sums that are half."""

    code = "AMP112"
    triggers = ("for ", "while ")
    operations = ("add", "sub")

    def __init__(self, module: Module, steps: set[Span]) -> None:
        self._module, self._steps = module, steps
        self.found: dict[Span, HalfPlace[None]] = {}

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge what the loop begins with; its own sums are half, too, by then."""
        if op.node is None or frame.module.module.path != self._module.path or not frame.module.holds(op.node):
            return
        place = frame.span(op.node)
        if place not in self._steps:
            return
        self._steps.discard(place)
        state, *terms = op.args
        while state.op in self.operations and state.args:
            state, *others = state.args
            terms += others
        if float_type(state, frame) == LOW and all(float_type(item, frame) != F32 for item in terms):
            self.found[place] = HalfPlace(None, made_by_product(state), parameters_of(state, frame.module))


def _is_step(module: Module, statement: ast.Assign) -> bool:
    """Whether an assignment in a loop adds to a state what a function of that state gave, times a number."""
    target, total = statement.targets[0], statement.value
    if not isinstance(target, ast.Name) or not isinstance(total, ast.BinOp):
        return False
    first, *terms = _terms(total)
    if not (isinstance(first, ast.Name) and first.id == target.id and terms):
        return False
    loop = blocks.loop_around(module, statement)
    if loop is None:
        return False
    turning = blocks.writes_target(loop) if isinstance(loop, (ast.For, ast.AsyncFor)) else set()
    return any(_is_scaled(term) and _is_of_state(loop, term, target.id, turning) for term in terms)


def _terms(node: ast.expr) -> list[ast.expr]:
    """``a``, ``b`` and ``c`` of ``a + b - c``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return [*_terms(node.left), node.right]
    return [node]


def _is_scaled(node: ast.expr) -> bool:
    """Whether a term is multiplied with a small number, or with what is named like a step; or divided by one."""
    while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        if isinstance(node.op, ast.Div) and _is_plain(node.right):
            return True
        if isinstance(node.op, ast.Mult) and (_is_plain(node.left) or _is_plain(node.right)):
            return True
        node = node.left
    return False


def _is_plain(node: ast.expr) -> bool:
    """Whether an expression calls nothing and indexes nothing, so that it may well be a number: ``self.dt / 6``."""
    return all(
        isinstance(item, (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.operator, ast.expr_context))
        for item in walk(node)
    )


def _is_of_state(loop: ast.AST, term: ast.expr, state: str, turning: set[str]) -> bool:
    """Whether a function of the state, the same in each round, made a term: at once, or above in the loop."""
    if _calls_on(term, state, turning):
        return True
    names = {item.id for item in walk(term) if isinstance(item, ast.Name)}
    return any(
        isinstance(node, ast.Assign)
        and not names.isdisjoint(filter(None, map(blocks.path_of, node.targets)))
        and _calls_on(node.value, state, turning)
        for node in blocks.walk_own(loop)
    )


def _calls_on(node: ast.expr, state: str, turning: set[str]) -> bool:
    """``self.drift(t, z)``, and not ``block(z)`` or ``self.blocks[i](z)`` in a loop over these."""
    calls = [item for item in walk(node) if isinstance(item, ast.Call)]
    if any(not turning.isdisjoint(blocks.reads(call.func)) for call in calls):
        return False
    return any(state in blocks.reads(given) for call in calls for given in call.args)
