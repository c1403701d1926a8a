"""Numbers of Python that the training step writes into half tensors, or multiplies them by, and that fp16 cannot hold.

The linter's analysis of types says which tensors are half; the points-to analysis, what runs within the regions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.checks.common.mixed_types import written
from amp_rules.checks.common.number_limits import argument_node, half_where_float, is_limit, too_large
from amp_rules.checks.numbers.const_overflow_arith import ConstOverflowArith
from amp_rules.checks.numbers.const_overflow_fill import ConstOverflowFill
from amp_rules.lattice.abstract_values import BOOL, INT, PASSING, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.linter import Linter
from amp_rules.plan.half_places import HalfPlaces, made_by_product
from amp_rules.plan.options import Options
from amp_rules.plan.precision import Precision
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.modules import Module
from amp_rules.source.spans import Span
from amp_rules.source.text import SourceError

_OF_THE_OTHER = {"where": (1, 2)}
"""Operations whose result has the type of the tensor beside the number: where both may stand."""
_OF_THE_FIRST = frozenset(
    {
        "fill",
        "fill_diagonal",
        "full_like",
        "new_full",
        "pad",
        "scatter",
        "index_fill",
        "threshold",
        "setitem",
        "new_tensor",
    }
)
_OF_ONE_NUMBER = frozenset({"tensor", "as_tensor"})
_KEEPING_TYPE = frozenset({"ones_like"})
_CASTS = frozenset({"to", "type", "type_as"})
_TRIANGLES = frozenset({"triu", "tril"})


@dataclass(frozen=True)
class Overflow:
    """A number that does not fit.

    Attributes:
        number: the number.
        tensor: the tensor of the type that it gets.
    """

    number: Site
    tensor: ast.expr


def overflows(program: Program, precision: Precision, options: Options) -> Iterator[Overflow]:
    """Yield the numbers that the training step gives to operations on half tensors, by file and line."""
    places = HalfPlaces(program, precision, outputs=options.target == "torch")
    judged: dict[Module, dict[Span, tuple[Span, bool]]] = {}
    by_place: dict[tuple[Module, Span], ast.expr] = {}
    for site in places.sites:
        if isinstance(site.node, ast.expr):
            by_place.setdefault((site.module, site.module.span(site.node)), site.node)
    for site in places.sites:
        if not isinstance(site.node, ast.expr):
            continue
        if site.module not in judged:
            judged[site.module] = _written(site.module)
        tensor, is_certain = judged[site.module].get(site.module.span(site.node), (None, False))
        if not (is_certain or places.holds(site)):
            continue
        found = by_place.get((site.module, tensor)) if tensor is not None else None
        if found is not None and by_place[site.module, site.module.span(site.node)] is site.node:
            yield Overflow(site, found)


def _written(module: Module) -> dict[Span, tuple[Span, bool]]:
    """The places of numbers in one file, each with the place of the tensor whose type it gets."""
    found: dict[Span, tuple[Span, bool]] = {}
    mode = Mode("O1", "fp16")
    linter = Linter(mode, [_Fills(module, found), _Products(module, found)], in_regions=True)
    try:
        linter.lint(module.source)
    except (SourceError, RecursionError):
        return {}
    return found


class _Fills(ConstOverflowFill):
    """Collects, for what is not ``masked_fill``, the numbers and the tensors."""

    def __init__(self, module: Module, found: dict[Span, tuple[Span, bool]]) -> None:
        self._module, self._found = module, found

    def visit(self, op: Value, frame: Frame) -> None:
        super().visit(op, frame)
        if op.op in _CASTS:
            self._cast(op, frame)
            return
        for place in _OF_THE_OTHER.get(op.op, ()):
            made = op.arg(place, "")
            if made is None or made.op not in _OF_ONE_NUMBER:
                continue
            # A tensor of one number takes the type of the other one, as the number does.
            given = made.arg(0, "data")
            others = [op.args[other] for other in _OF_THE_OTHER[op.op] if other != place and other < len(op.args)]
            if given is not None and too_large(given, frame.mode) is not None and not is_limit(given) and others:
                if half_where_float(others[0]):
                    tensor = _beside(op, frame, written(frame, op, place))
                    _note(self._module, self._found, frame, argument_node(made, 0, "data"), *tensor)

    def _cast(self, op: Value, frame: Frame) -> None:
        """``torch.full(size, -1e9).type_as(scores)``."""
        made = op.args[0].through(PASSING | _TRIANGLES)
        given = made.arg(1, "fill_value") if made.op == "full" else None
        call = op.node
        if not (op.low and given is not None and isinstance(call, ast.Call) and len(call.args) == 1):
            return
        node = call.args[0]
        tensor = node.value if isinstance(node, ast.Attribute) and node.attr == "dtype" else node
        if too_large(given, frame.mode) is not None and not is_limit(given) and isinstance(tensor, ast.Name):
            _note(self._module, self._found, frame, argument_node(made, 1, "fill_value"), tensor, op)

    def _report(
        self, op: Value, frame: Frame, given: Value, number: float, node: ast.expr | None, raising: bool
    ) -> None:
        if op.op in _OF_THE_OTHER:
            _note(self._module, self._found, frame, node, *_beside(op, frame, node))
        elif op.op == "setitem" and isinstance(op.node, ast.Subscript):
            _note(self._module, self._found, frame, written(frame, op, 2), op.node.value, op.args[0])
        elif op.op in _OF_THE_FIRST:
            _note(self._module, self._found, frame, node, written(frame, op, 0), op.args[0])


class _Products(ConstOverflowArith):
    """Collects the numbers in products with masks of half, and with ones."""

    def __init__(self, module: Module, found: dict[Span, tuple[Span, bool]]) -> None:
        self._module, self._found = module, found

    def _report(self, op: Value, given: Value, number: float, infinite: str, where: str, frame: Frame) -> None:
        node = op.node
        if op.op != "mul" or not isinstance(node, ast.BinOp):
            return
        is_right = given is op.args[1]
        factor, other = (node.right, node.left) if is_right else (node.left, node.right)
        tensor = op.args[0] if is_right else op.args[1]
        if tensor.op in _KEEPING_TYPE and isinstance(other, ast.Call) and other.args:
            other = other.args[0]
        _note(self._module, self._found, frame, factor, other, tensor)


def _note(
    module: Module,
    found: dict[Span, tuple[Span, bool]],
    frame: Frame,
    number: ast.expr | None,
    tensor: ast.expr | None,
    value: Value,
) -> None:
    is_float = value.low or (value.maybe_low and not value.dtypes & (INT | BOOL))
    if number is None or tensor is None or not is_float or frame.module.module.path != module.path:
        return  # a function of another file, called in line, is judged with that file
    if all(frame.module.holds(item) and frame.holds(item) for item in (number, tensor)):
        found[frame.span(number)] = frame.span(tensor), made_by_product(value)


def _beside(op: Value, frame: Frame, number: ast.expr | None) -> tuple[ast.expr | None, Value]:
    """The other one of two arguments, with its value."""
    first, second = _OF_THE_OTHER[op.op]
    nodes = [written(frame, op, first), written(frame, op, second)]
    place = first if number is nodes[1] else second
    value = op.args[place] if place < len(op.args) else op
    return nodes[0] if place == first else nodes[1], value
