"""Training in float16 without scaling the loss."""

from __future__ import annotations

import ast
from typing import Any

from amp_rules.checks.common.autocast_regions import with_of
from amp_rules.checks.common.step_events import PLAIN, Event, StepCheck
from amp_rules.lattice.abstract_values import Value, alternatives
from amp_rules.lattice.frame import Frame

_SCALING = ("scaler", "Scaler", "scale_loss", "loss_scale", "accelerator", "no_grad_scal")
_CUDA_ONLY = ("torch.cuda.amp.autocast", "torch.cuda.amp.autocast_mode.autocast")


class Fp16BackwardWithoutScaler(StepCheck):
    """A loss from a float16 autocast region is backpropagated without a scale.

    ## What it does

    Finds a plain `loss.backward()` of a loss that was computed under float16 autocast in the same function, in files
    that never mention a scaler.

    ## Why

    Gradients of activations are float16 too. What is below 2.98e-8 becomes 0, and with the usual mean over a batch
    most are: a gradient of 1e-8 is lost, with a scale of 65536 it is 6.5e-4 and survives. The loss still falls, only
    more slowly and to a worse place.

    ## Example

        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()

    ## Use instead

        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    ## When it is silent

    Where the type is bfloat16 or not known, and in files that speak of scaling or never step an optimizer.

    ## Source

    https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    """

    code = "AMP816"
    name = "fp16-backward-without-scaler"
    severity = "warning"
    message = "A loss computed in float16 is backpropagated without a scale."
    advice = "Use `torch.amp.GradScaler`, or autocast to bfloat16."
    states = ("$unscaled",)
    triggers = (".backward(",)
    operations = (*StepCheck.operations, "autocast")

    def visit(self, op: Value, frame: Frame) -> None:
        """Note regions, then follow events."""
        if op.op == "autocast":
            if _is_half(op, frame) and (block := with_of(frame, op)) is not None:
                frame.machine.notes.setdefault((self.code, "blocks"), set()).add(block)
            return
        super().visit(op, frame)

    def advance(self, state: Any, event: Event, frame: Frame) -> tuple[bool | None, Any]:
        """Judge each backward pass by where its loss was computed."""
        if event.kind != "backward" or event.how != PLAIN or event.value is None:
            return None, state
        text = frame.module.module.source.text
        if ".step(" not in text or any(word in text for word in _SCALING):
            return None, state
        blocks = frame.machine.notes.get((self.code, "blocks"), ())
        made = all(any(_within(item, block) for block in blocks) for item in alternatives(event.value))
        return (True if made else None), state

    def found(self, state: Any, event: Event, frame: Frame) -> None:
        """Report at the backward pass."""
        loss = frame.text(event.node.func.value)  # type: ignore[attr-defined]
        self.report(frame, event.node, f"`{loss}` comes from a float16 region and is backpropagated without a scale")


def _within(value: Value, block: ast.With) -> bool:
    line = getattr(value.node, "lineno", 0)
    return block.body[0].lineno <= line <= (block.end_lineno or line) and value.op not in ("param", "attr", "name")


def _is_half(op: Value, frame: Frame) -> bool:
    """Whether a region is one of float16 for certain."""
    function = op.node.func if isinstance(op.node, ast.Call) else None
    name = frame.module.dotted(function) if function is not None else None
    given = op.kwargs or {}
    dtype = given.get("dtype")
    if frame.machine.autocast_enabled(op) is False:
        return False
    if name in _CUDA_ONLY:
        return dtype is None or dtype.sym in ("torch.float16", "torch.half")
    device = given.get("device_type", op.args[0] if op.args else None)
    if dtype is None and len(op.args) > 1:
        dtype = op.args[1]
    if dtype is not None:
        return dtype.sym in ("torch.float16", "torch.half")
    return device is not None and device.is_const and device.const == "cuda"
