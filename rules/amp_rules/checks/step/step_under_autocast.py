"""Steps inside of an autocast region that goes on to use the weights."""

from __future__ import annotations

from amp_rules.checks.common.autocast_regions import is_region, region_around
from amp_rules.checks.common.step_events import event_of
from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check


class StepUnderAutocast(Check):
    """Weights change inside of an autocast region in which they are used again.

    ## What it does

    Finds `optimizer.step()` and `scaler.step(optimizer)` in a loop that is inside of an autocast region.

    ## Why

    Within a region autocast casts each weight once and keeps the half copy until the region ends. After a step the
    next forward pass still uses the copy of the old weights: with a linear layer whose weights are set to zero, the
    output stays what it was. The loss no longer follows the weights, and nothing raises.

    ## Example

        with torch.autocast("cuda"):
            for x, y in loader:
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()

    ## Use instead

        for x, y in loader:
            with torch.autocast("cuda"):
                loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()

    ## When it is silent

    Where the loop is around the region, with `cache_enabled=False`, and in regions that are turned off.

    ## Source

    https://docs.pytorch.org/docs/stable/amp.html#torch.autocast
    """

    code = "AMP819"
    name = "step-under-autocast"
    severity = "warning"
    message = "Weights change in an autocast region that keeps half copies of the old ones."
    advice = "Open the autocast region inside of the loop, around the forward pass only."
    in_order = True
    states = ("$cached",)
    triggers = ("autocast(", "optimizer.step(", "scaler.step(", "optim.step(", "opt.step(")
    operations = ("autocast", "method", "call")

    def applies(self, mode: Mode) -> bool:
        """Only autocast has regions."""
        return mode.autocast

    def visit(self, op: Value, frame: Frame) -> None:
        """Compare the loops around the step with those around the region."""
        if is_region(op):
            op.data = (op.data, frame.loops)
            return
        event = event_of(op, frame)
        if event is None or event.kind not in ("step", "scaler_step"):
            return
        region = region_around(frame)
        if region is None or not isinstance(region.data, tuple) or _keeps_nothing(region):
            return
        if frame.loops > region.data[1]:
            message = "the step changes weights of which the autocast region around the loop keeps half copies"
            self.report(frame, event.node, message, here=True)


def _keeps_nothing(region: Value) -> bool:
    """Whether a region is told not to keep copies."""
    given = region.kwargs.get("cache_enabled") if region.kwargs else None
    return given is not None and given.is_const and given.const is False
