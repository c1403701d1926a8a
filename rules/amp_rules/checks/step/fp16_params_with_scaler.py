"""Scalers and weights that are float16 themselves."""

from __future__ import annotations

import ast
from typing import Any

from amp_rules.checks.common.step_events import Event, StepCheck, key_of
from amp_rules.lattice.abstract_values import Value, alternatives
from amp_rules.lattice.frame import Frame
from amp_rules.source.syntax import last_name
from amp_rules.torch.models import RETURNS_RECEIVER

_HALF = frozenset({"torch.float16", "torch.half"})

_RETURNS_ITSELF = RETURNS_RECEIVER - {"clone", "detach", "contiguous"}


class Fp16ParamsWithScaler(StepCheck):
    """A scaler is to unscale the gradients of weights that were converted to float16.

    ## What it does

    Finds `scaler.step(optimizer)` and `scaler.unscale_(optimizer)` where the optimizer was given the parameters of a
    model that `.half()` or `.to(torch.float16)` converted before.

    ## Why

    Gradients have the type of their weights, and `unscale_` refuses float16: "Attempting to unscale FP16 gradients".
    It would have to write quotients that float16 cannot hold. Autocast wants float32 weights; it casts by itself.

    ## Example

        model = Net().half()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)

    ## Use instead

        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cuda"):
            loss = model(x).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)

    ## When it is silent

    Where the optimizer holds other parameters, master copies for example, and where the weights become bfloat16.

    ## Source

    https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.unscale_
    """

    code = "AMP820"
    name = "fp16-params-with-scaler"
    severity = "error"
    message = "The scaler is to unscale gradients of float16 weights, which raises."
    advice = "Keep the weights in float32 and let autocast convert."
    states = ("$halved",)
    triggers = ("scaler.step(", "scaler.unscale_(")
    operations = (*StepCheck.operations, "half", "to", "layer_half", "layer_to")

    def visit(self, op: Value, frame: Frame) -> None:
        """Note conversions and optimizers, then follow events."""
        name = last_name(getattr(op.node, "func", None))
        if name in ("half", "to") and op.args:
            if name == "half" or _to_half(op):
                if _is_model(op, frame):
                    self._note(frame, "half", key_of(_made(op)))
            return
        if op.op == "call" and isinstance(op.data, str) and op.data.startswith("torch.optim.") and op.args:
            self._optimizer(op, frame)
            return
        super().visit(op, frame)

    def _note(self, frame: Frame, kind: str, what: Any) -> None:
        frame.machine.notes.setdefault((self.code, kind), set()).add(what)

    def _optimizer(self, op: Value, frame: Frame) -> None:
        given = op.args[0]
        if given.op == "method" and given.data == "parameters" and given.args:
            held = frame.machine.notes.get((self.code, "half"), ())
            if key_of(_made(given.args[0])) in held:
                self._note(frame, "optimizer", op)

    def advance(self, state: Any, event: Event, frame: Frame) -> tuple[bool | None, Any]:
        """Judge by the optimizer alone."""
        if event.kind not in ("scaler_step", "unscale"):
            return None, state
        held = frame.machine.notes.get((self.code, "optimizer"), ())
        return (True if event.optimizer in held else None), state

    def found(self, state: Any, event: Event, frame: Frame) -> None:
        """Report at the scaler's call."""
        method = last_name(event.node.func)  # type: ignore[attr-defined]
        self.report(frame, event.node, f"`{method}` raises, as the weights were converted to float16", here=True)


def _to_half(op: Value) -> bool:
    given = [*op.args[1:], *((op.kwargs or {}).values())]
    return any(item.sym in _HALF for item in given)


def _made(value: Value) -> Value:
    """The model behind methods that give the model itself: ``Net().half().cuda()``."""
    while value.args and last_name(getattr(value.node, "func", None)) in _RETURNS_ITSELF and value.op != "instance":
        value = value.args[0]
    return value


def _is_model(op: Value, frame: Frame) -> bool:
    receiver = _made(op.args[0])
    if any(item.op in ("layer", "instance") for item in alternatives(receiver)):
        return True
    holder = op.node.func.value  # type: ignore[union-attr]
    while isinstance(holder, ast.Call) and last_name(holder.func) in _RETURNS_ITSELF:
        holder = holder.func.value if isinstance(holder.func, ast.Attribute) else None
    if isinstance(holder, ast.Call):
        return last_name(holder.func)[:1].isupper()
    if receiver.op in ("call", "param", "attr", "name", "method"):
        name = last_name(holder).lower()
        return "model" in name or name in ("net", "network", "generator", "discriminator", "netg", "netd")
    return False
