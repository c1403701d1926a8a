"""Half values that enter a region without autocast."""

from __future__ import annotations

from amp_rules.checks.common.first_cause import FirstCause
from amp_rules.checks.common.inner_regions import is_inside, turns_autocast_off
from amp_rules.checks.common.mixed_types import LAYERS, MATRIX_PRODUCTS, float_type, held_layer, operands
from amp_rules.lattice.abstract_values import F32, LOW, PARAMETER, Value, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check
from amp_rules.source.facts import FunctionFacts

_OPS = MATRIX_PRODUCTS | LAYERS | {"cdist"}


class AutocastDisabledWithoutCast(Check):
    """Half values that enter a region without autocast.

    ## What it does

    Looks, where the code turns autocast off, for matrix products and layers that are given a value from outside which
    may be half, together with float32 weights or buffers.

    ## Why

    Inside of `autocast(enabled=False)` nothing is cast, while activations that were made outside are float16 or
    bfloat16. `torch.matmul(torch.ones(2, 2).half(), torch.ones(2, 2))` raises "expected m1 and m2 to have the same
    dtype". The documentation asks for a cast of every input of such a region.

    ## Example

        @torch.autocast("cuda", enabled=False)
        def forward(self, x):
            return x @ self.codebook.t()

    ## Use instead

        @torch.autocast("cuda", enabled=False)
        def forward(self, x):
            return x.float() @ self.codebook.t()

    ## When it is silent

    When the input is cast, when it is known to be float32, and when nothing in the region has weights. In modules that
    only such modules make which have turned autocast off themselves, the outermost after a conversion.

    ## Source

    https://docs.pytorch.org/docs/stable/amp.html#torch.autocast
    """

    code = "AMP713"
    name = "autocast-disabled-without-cast"
    severity = "error"
    message = "A value that may be half enters a region without autocast."
    advice = "Convert the input with `.float()` at the start of the region."
    triggers = ("enabled=False", "enabled = False")
    operations = tuple(sorted(_OPS))

    def __init__(self) -> None:
        self._causes = FirstCause()

    def visit_function(self, function: FunctionFacts | None, frame: Frame) -> None:
        """Forget what was reported in a function."""
        self._causes.clear()

    def applies(self, mode: Mode) -> bool:
        """Only autocast can be turned off."""
        return mode.autocast

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge an operation in such a region."""
        if frame.autocast or op.node is None or not _is_turned_off(frame):
            return
        given = [item for item in operands(op) if item.tensor]
        layer = held_layer(op)
        weights = layer or next((item for item in given if _is_weight(item, frame)), None)
        half = next((item for item in given if _may_be_half(item, frame)), None)
        if weights is None or half is None:
            return
        if self._causes.follows(op, half):
            return  # Where that did not raise, this is float32.
        name = "its weights" if layer is not None else f"`{frame.text(weights.node)}`"
        message = f"`{frame.text(half.node)}` may be half here, where autocast is off, and {name} are float32"
        self.report(frame, op.node, message)


def _is_turned_off(frame: Frame) -> bool:
    if any(frame.machine.autocast_enabled(item) is False for item in frame.contexts):
        return True
    return frame.function is not None and turns_autocast_off(frame.function)


def _is_weight(value: Value, frame: Frame) -> bool:
    """Whether a value is a parameter or a buffer, which autocast leaves in float32."""
    held = source_of(value)
    if held.op == "buffer":
        return value.root is held.root  # Not ``buffer.to(x.dtype)``.
    return bool(value.bits & PARAMETER) and float_type(value, frame) == F32


def _may_be_half(value: Value, frame: Frame) -> bool:
    """Whether a value is half for certain, or an argument of the forward pass that nobody converted."""
    if float_type(value, frame) == LOW:
        return True
    root = value.root
    if root.op != "param" or frame.function is None or not frame.function.is_forward:
        return False
    return value.dtypes == root.dtypes == LOW | F32 and not is_inside(frame.function)
