"""Scalers and weights that are float16 themselves."""

from __future__ import annotations

from typing import Any

from amp_rules.checks.common.step_events import SCALED_BACKWARD, Event, StepCheck
from amp_rules.checks.common.step_roles import is_disabled, key_of, made_of
from amp_rules.lattice.abstract_values import Value, alternatives
from amp_rules.lattice.frame import Frame
from amp_rules.source.syntax import last_name
from amp_rules.torch.models import RETURNS_RECEIVER
from amp_rules.torch.optimizers import is_optimizer_name

_HALF = frozenset({"torch.float16", "torch.half"})
_OTHERS = frozenset({"torch.float32", "torch.float", "torch.float64", "torch.double", "torch.bfloat16"})

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
    message = "The scaler would unscale gradients of float16 weights, which raises."
    advice = "Keep the weights in float32 and let autocast convert."
    states = ("$halved",)
    triggers = (SCALED_BACKWARD, ".unscale_(", "scaler.step(")
    operations = (*StepCheck.operations, "half", "float", "to", "layer_half", "layer_float", "layer_to")

    def visit(self, op: Value, frame: Frame) -> None:
        """Note conversions, then follow events."""
        converted = _converts(op)
        if converted is None:
            super().visit(op, frame)
        elif op.args:
            held = frame.machine.notes.setdefault((self.code,), set())
            (held.add if converted else held.discard)(key_of(_made(op)))

    def advance(self, state: Any, event: Event, frame: Frame) -> tuple[bool | None, Any]:
        """Judge by the optimizer alone."""
        if event.kind not in ("scaler_step", "unscale") or event.value is None or is_disabled(event.value.args[0]):
            return None, state
        held = frame.machine.notes.get((self.code,), set())
        optimizer = event.value.arg(1, "optimizer")
        makers = [item for item in alternatives(optimizer) if not _is_nothing(item)] if optimizer is not None else []
        models = [model for item in makers for model in _models(item)]
        half = bool(models) and all(_is_half(model) or key_of(_made(model)) in held for model in models)
        return (True if half else None), state

    def found(self, state: Any, event: Event, frame: Frame) -> None:
        """Report at the scaler's call."""
        method = last_name(event.node.func)  # type: ignore[attr-defined]
        self.report(frame, event.node, f"`{method}` raises, as the weights were converted to float16", here=True)


def _converts(op: Value) -> bool | None:
    """Whether a call makes something float16 (True) or float32 (False); None for any other call."""
    name = last_name(getattr(op.node, "func", None))
    if name in ("half", "float"):
        return name == "half" if op.op in ("method", name, f"layer_{name}") else None
    if name == "to" and op.op in ("method", "to", "layer_to"):
        given = [*op.args[1:], *((op.kwargs or {}).values())]
        if any(item.sym in _HALF for item in given):
            return True
        return False if any((item.sym or "") in _OTHERS for item in given) else None
    return None


def _is_half(model: Value) -> bool:
    """Whether the last conversion on the way to a model is one to float16."""
    while model.op not in ("instance", "layer"):
        converted = _converts(model)
        if converted is not None:
            return converted
        if not model.args or last_name(getattr(model.node, "func", None)) not in _RETURNS_ITSELF:
            return False
        model = model.args[0]
    return False


def _made(value: Value) -> Value:
    """The model behind methods that give the model itself: ``Net().half().cuda()``."""
    while value.args and last_name(getattr(value.node, "func", None)) in _RETURNS_ITSELF and value.op != "instance":
        value = value.args[0]
    return value


def _models(optimizer: Value) -> list[Value]:
    """The models whose own parameters an optimizer was given; none where it may hold others, such as master copies."""
    if not is_optimizer_name(made_of(optimizer)) or optimizer.op != "call":
        return []
    given = optimizer.arg(0, "params")
    return _owners(given) if given is not None else []


def _owners(given: Value) -> list[Value]:
    if given.op == "method" and given.data in ("parameters", "named_parameters") and given.args:
        return [given.args[0]]
    if given.op in ("list", "tuple", "dict", "element", "alias") or _filters(given):
        found = [_owners(item) for item in given.args if not item.is_const]
        return [model for models in found for model in models] if all(found) or _filters(given) else []
    return []


def _filters(given: Value) -> bool:
    return given.op == "call" and last_name(getattr(given.node, "func", None)) == "filter"


def _is_nothing(value: Value) -> bool:
    return value.is_const and value.const is None
