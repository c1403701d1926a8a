"""Backward passes inside of an autocast region."""

from __future__ import annotations

from amp_rules.checks.common.autocast_regions import decorated, is_region, move_out, region_around, with_of
from amp_rules.checks.common.step_events import event_of
from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check


class BackwardUnderAutocast(Check):
    """The backward pass runs inside of the autocast region.

    ## What it does

    Finds `backward()` under `with autocast()`, or in a function that `@autocast()` decorates, also where the region is
    around the call of the function.

    ## Why

    Each operation's backward runs in the type that autocast chose for its forward, so the region must end before.
    Inside of it, whatever the backward computes with ordinary operations is cast a second time: custom functions
    without `custom_bwd`, hooks, checkpointed segments, second derivatives. A hook that squares a gradient of 1e-3
    by a matmul gets 0 in float16 where it got 1e-6. The cached half copies of all weights are kept alive as well.

    ## Example

        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
            scaler.scale(loss).backward()

    ## Use instead

        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()

    ## When it is silent

    In regions that are turned off, and where the backward pass is that of an `autograd.Function`.

    ## Source

    https://docs.pytorch.org/docs/stable/amp.html#torch.autocast
    """

    code = "AMP818"
    name = "backward-under-autocast"
    severity = "warning"
    message = "The backward pass runs inside of the autocast region."
    advice = "End the autocast region before the backward pass."
    fix_title = "Move the backward pass out of the region"
    fix_safety = "unsafe"
    in_order = True
    states = ("$region",)
    triggers = (".backward(", "autocast(")
    operations = ("backward", "method", "call")

    def applies(self, mode: Mode) -> bool:
        """Only autocast has regions."""
        return mode.autocast

    def visit(self, op: Value, frame: Frame) -> None:
        """Look at what is around a backward pass."""
        event = event_of(op, frame)
        if event is None or event.kind != "backward" or (op.args and op.args[0].op in ("self", "super", "context")):
            return
        region = region_around(frame)
        if region is None and (any(is_region(item) for item in frame.contexts) or not decorated(frame)):
            return
        fix = None
        if region is not None and frame.caller is None:
            block = with_of(frame, region)
            fix = move_out(frame, block, event.node) if block is not None else None
        self.report(frame, event.node, "the backward pass runs inside of the autocast region", fix=fix, here=True)
