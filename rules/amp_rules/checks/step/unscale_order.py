"""Unscaling twice, or stepping twice, before the scaler is updated."""

from __future__ import annotations

from typing import Any

from amp_rules.checks.common.step_events import Event, StepCheck, is_wrapped
from amp_rules.checks.common.step_roles import is_disabled
from amp_rules.checks.common.step_text import step_state
from amp_rules.lattice.frame import Frame


class UnscaleOrder(StepCheck):
    """An optimizer's gradients are unscaled twice, or after its step, before the scaler is updated.

    ## What it does

    Follows each pair of scaler and optimizer: between two calls of `scaler.update()` there may be one
    `scaler.unscale_(optimizer)` and, after it, one `scaler.step(optimizer)`.

    ## Why

    Whatever else comes raises `RuntimeError`: "unscale_() has already been called on this optimizer since the last
    update()", "unscale_() is being called after step()", "step() has already been called since the last update()".
    With gradient accumulation this shows at the second micro batch only, with a conditional step after hours.

    ## Example

        for i, batch in enumerate(loader):
            scaler.scale(compute_loss(batch)).backward()
            scaler.unscale_(optimizer)
            if i % 4 == 3:
                scaler.step(optimizer)
                scaler.update()

    ## Use instead

        for i, batch in enumerate(loader):
            scaler.scale(compute_loss(batch)).backward()
            if i % 4 == 3:
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()

    ## When it is silent

    For different optimizers, after calls that are given the scaler, and where two tests would have to agree.

    ## Source

    https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.unscale_
    """

    code = "AMP813"
    name = "unscale-order"
    severity = "error"
    message = "A scaler's `unscale_` or `step` is called a second time before `update`."
    advice = "Call `unscale_` once, then `step` once, then `update`, all three for the same micro batches."
    states = ("$order",)
    slack = 1

    def advance(self, state: Any, event: Event, frame: Frame) -> tuple[bool | None, Any]:
        """Keep the optimizers that were unscaled or stepped since the last update."""
        held: frozenset[Any] = state or frozenset()
        if event.kind == "escape":
            return None, None
        if event.kind == "update":
            return None, frozenset(item for item in held if item[1] != event.scaler) or None
        if event.kind not in ("unscale", "scaler_step") or event.value is None or is_disabled(event.value.args[0]):
            return None, state
        entry = (event.kind, event.scaler, event.optimizer, event.node)
        before = [item for item in held if item[1:3] == entry[1:3]]
        bad = any(item[0] == "scaler_step" or event.kind == "unscale" for item in before)
        if bad and event.kind == "scaler_step" and any(item[3] is event.node for item in before):
            # The same call in the next turn of the loop: there is no update at all.
            return None, state
        return bad, held | {entry}

    def found(self, state: Any, event: Event, frame: Frame) -> None:
        """Report at the second call."""
        before = next(item for item in state if item[1:3] == (event.scaler, event.optimizer))
        method = "unscale_" if event.kind == "unscale" else "step"
        if method == "step":
            message = "`step` is called a second time for this optimizer before `update`, which raises"
        elif any(item[0] == "scaler_step" for item in state if item[1:3] == before[1:3]):
            message = "`unscale_` is called after `step` and before `update`, which raises"
        elif before[3] is event.node:
            message = "`unscale_` is called again in the next iteration before `update`, which raises"
        else:
            message = "`unscale_` is called a second time for this optimizer before `update`, which raises"
        self.report(frame, event.node, message, here=True)

    def visit_function(self, function: Any, frame: Frame) -> None:
        """A function that unscales each time and updates at times fails when it is called again."""
        ends = step_state(frame, self.key)
        if ends is None or is_wrapped(frame.module):
            return
        updated = [item for item in ends if item.state is None]
        for item in ends:
            asked = {number: frame.machine.tests[number] for number, _ in item.assumed}
            tests = [number for number, outcome in item.assumed if not outcome]
            tests = [number for number in tests if any((number, True) in other.assumed for other in updated)]
            if (
                item.state is None
                or len(tests) != 1
                or any(getattr(key, "op", "") != "param" for key in asked.values())
            ):
                continue
            for kind, *_, node in item.state:
                if kind == "unscale":
                    test = getattr(asked[tests[0]], "data", None)
                    message = f"`unscale_` is called even where `{test}` is false and no `update` follows"
                    self.report(frame, node, f"{message}, so the next call raises", here=True)
