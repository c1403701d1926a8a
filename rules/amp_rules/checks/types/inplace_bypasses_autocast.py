"""Operations in place, which autocast does not cast."""

from __future__ import annotations

from amp_rules.checks.common.mixed_types import float_type
from amp_rules.lattice.abstract_values import F32, LOW, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check

_WIDENED = frozenset(
    """
    pow log log2 log10 log1p expm1 cumsum cumprod rsqrt reciprocal square acos asin tan cosh sinh erfinv renorm
    """.split()
)
_LOWERED = frozenset("addmm addmv addbmm baddbmm addr".split())
_WITH_OUT = _LOWERED | frozenset("matmul mm bmm mv".split())


class InplaceBypassesAutocast(Check):
    """Operations in place, which autocast does not cast.

    ## What it does

    Looks, where autocast is on, for `x.pow_()`, `x.log_()`, `x.rsqrt_()`, `x **= 2` and the like on a half tensor, for
    `baddbmm_` and `addmm_` whose operands have different types, and for matrix products with `out=` of another type.

    ## Why

    Autocast replaces an operation by one that casts its inputs; it cannot do so where the result has to be the given
    tensor. `x.pow(2)` of a float16 tensor is float32 under autocast on CUDA, `x.pow_(2)` stays float16 and overflows
    from 256 on. `out.baddbmm_(q, k)` with a float32 `out` and half `q`, `k` raises "Input dtypes must be the same".

    ## Example

        energy = self.project(x)
        energy.pow_(2)

    ## Use instead

        energy = self.project(x)
        energy = energy.pow(2)

    ## When it is silent

    When the type of the receiver is not known, when it is float32, and where autocast is off.

    ## Source

    https://docs.pytorch.org/docs/stable/amp.html#op-eligibility
    """

    code = "AMP714"
    name = "inplace-bypasses-autocast"
    severity = "warning"
    message = "An operation in place is not cast by autocast."
    advice = "Use the operation that returns a new tensor."
    triggers = (*(f".{name}_(" for name in sorted(_WIDENED | _LOWERED)), "out=", "**=")
    operations = (*sorted(_WIDENED | _WITH_OUT), "augment")

    def applies(self, mode: Mode) -> bool:
        """Only autocast can be bypassed."""
        return mode.autocast

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge an operation in place."""
        if op.op == "augment":
            self._augmented(op, frame)
            return
        if not op.inplace or not frame.autocast or not op.args or op.node is None:
            return
        target = op.kwargs.get("out") if op.kwargs and "out" in op.kwargs else op.args[0]
        if target is None:
            return
        table = frame.machine.table
        if op.op in _WIDENED and op.op in table.float32 and (op.kwargs or {}).get("out") is None:
            if float_type(target, frame) == LOW:
                name = frame.text(target.node)
                self.report(frame, op.node, f"`{op.op}_` runs in {frame.mode.dtype} on `{name}`, unlike `{op.op}`")
        elif op.op in _WITH_OUT:
            self._product(op, target, frame)

    def _augmented(self, op: Value, frame: Frame) -> None:
        """``x **= 2``."""
        held, _, made = op.args
        wide = made.inplace and made.op == "pow" and made.op in frame.machine.table.float32
        if frame.autocast and wide and op.node is not None and float_type(held, frame) == LOW:
            message = f"`{frame.text(op.node)}` runs in {frame.mode.dtype}, unlike `pow`"
            self.report(frame, op.node, message)

    def _product(self, op: Value, target: Value, frame: Frame) -> None:
        held = float_type(target, frame)
        given = {float_type(item, frame) for item in op.args if item is not target and item.tensor}
        if held and held | next(iter(given - {held}), 0) == LOW | F32 and op.node is not None:
            message = f"`{frame.text(target.node)}` and the operands of `{op.op}` differ in type, which autocast leaves"
            self.report(frame, op.node, message, severity="error")
