"""Sums of products that Apex does not cast."""

from __future__ import annotations

from amp_rules.checks.common.apex_scripts import apex_calls, opt_levels
from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check


class ApexEinsumMixed(Check):
    """At Apex's O1 `einsum` is given operands of different types.

    ## What it does

    Finds `torch.einsum` of a half tensor, such as the output of a linear layer, and a float32 one, such as that output
    plus a parameter, in files that call `amp.initialize` at O1.

    ## Why

    Autocast casts the operands of `einsum`. Apex's O1 wraps a list of functions of torch in which `einsum` is missing:
    it gets what it is given, and the matrix product inside raises "expected scalar type Float but found Half".

    ## Example

        scores = torch.einsum("ibnd,jbnd->ijbn", self.query(x) + self.bias, self.key(x))
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")

    ## Use instead

        scores = torch.einsum("ibnd,jbnd->ijbn", self.query(x) + self.bias, self.key(x))
        amp.register_half_function(torch, "einsum")
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")

    ## When it is silent

    Where both operands have one type, where one may have the other's type, and where the file registers `einsum`.

    ## Source

    https://nvidia.github.io/apex/amp.html#for-registering-custom-functions
    """

    code = "AMP848"
    name = "apex-einsum-mixed"
    severity = "error"
    message = "At Apex's O1 `einsum` is given operands of different types."
    advice = 'Call `amp.register_half_function(torch, "einsum")` before `amp.initialize`, or cast one operand.'
    triggers = ("einsum(",)
    operations = ("einsum",)

    def applies(self, mode: Mode) -> bool:
        """The types at O1 are those of autocast, but for what Apex does not cast."""
        return mode.autocast and mode.fp16

    def visit(self, op: Value, frame: Frame) -> None:
        """Compare the types of the operands."""
        operands = [item for item in op.args[1:] if item.tensor]
        half = next((item for item in operands if item.low), None)
        single = next((item for item in operands if item.float32), None)
        if half is None or single is None or op.node is None or not _is_at_o1(frame):
            return
        one, other = frame.text(single.node), frame.text(half.node)
        self.report(frame, op.node, f"Apex does not cast for `einsum`: `{one}` is float32 here and `{other}` float16")


def _is_at_o1(frame: Frame) -> bool:
    """Whether the file calls ``amp.initialize`` at O1 and does not register ``einsum``."""
    module = frame.module
    if not {"O1", ""} & opt_levels(module):
        return False
    registering = apex_calls(module, *(f"amp.register_{kind}_function" for kind in ("half", "float", "promote")))
    return not any("einsum" in frame.text(call) for call in registering)
