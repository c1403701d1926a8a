"""Gradients that are thrown away, or never divided, between backward pass and step."""

from __future__ import annotations

import ast
from typing import Any

from amp_rules.checks.common.step_events import SCALED, Event, StepCheck
from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.torch.idioms import ACCUMULATION


class LossDivideAfterScale(StepCheck):
    """The loss is divided after its backward pass, or its gradients are zeroed before the step.

    ## What it does

    Finds `loss = loss / accumulation_steps` after `scaler.scale(loss).backward()` took the undivided loss, and
    `optimizer.zero_grad()` between a scaled backward pass and `scaler.step(optimizer)`.

    ## Why

    A division that comes after the backward pass changes no gradient: over 4 micro batches they are 4 times too
    large. `zero_grad` in the wrong place leaves `scaler.step` without any gradient: "No inf checks were recorded for
    this optimizer", an `AssertionError`.

    ## Example

        scaler.scale(loss).backward()
        optimizer.zero_grad()
        scaler.step(optimizer)

    ## Use instead

        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)

    ## When it is silent

    Where the quotient gets a name of its own, and where another optimizer's gradients are zeroed.

    ## Source

    https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
    """

    code = "AMP827"
    name = "loss-divide-after-scale"
    severity = "warning"
    message = "What happens between the backward pass and the step comes too late or too early."
    advice = "Divide the loss before the backward pass, and zero gradients after the step."
    states = ("$divided",)
    operations = (*StepCheck.operations, "augment", "div")

    def visit(self, op: Value, frame: Frame) -> None:
        """Look at divisions, then follow events."""
        if op.op in ("augment", "div"):
            self._division(op, frame)
            return
        super().visit(op, frame)

    def _division(self, op: Value, frame: Frame) -> None:
        if op.op == "augment" and not isinstance(getattr(op.node, "op", None), ast.Div):
            return
        if op.node is None or len(op.args) < 2 or ACCUMULATION not in _divisor(op, frame).lower():
            return
        held = frame.machine.notes.get((self.code, "losses"), set())
        if op.args[0] not in held or op.args[0].op == "div" or not _rebinds(op, frame):
            return
        loss = frame.text(op.args[0].node) if op.op != "augment" else frame.text(op.node.target)  # type: ignore[attr-defined]
        self.report(frame, op.node, f"`{loss}` is divided after its backward pass, which changes no gradient")

    def advance(self, state: Any, event: Event, frame: Frame) -> tuple[bool | None, Any]:
        """Follow gradients from the backward pass to the step."""
        kind = event.kind
        if kind == "backward":
            if event.how == SCALED and event.value is not None:
                given = event.value.args[1] if len(event.value.args) > 1 else None
                if given is not None:
                    frame.machine.notes.setdefault((self.code, "losses"), set()).add(given)
                return None, ("scaled",)
            return None, None
        if kind == "zero_grad" and state == ("scaled",):
            return None, ("zeroed", event.optimizer, event.node)
        if kind == "scaler_step":
            wrong = state is not None and state[0] == "zeroed" and state[1] == event.optimizer
            return (True if wrong else None), None
        if kind in ("update", "escape"):
            return None, None
        return None, state

    def found(self, state: Any, event: Event, frame: Frame) -> None:
        """Report at the step that finds no gradients."""
        holder = frame.text(state[2].func.value)
        message = f"`{holder}.zero_grad()` clears the gradients before the step, which raises"
        self.report(frame, state[2], message, here=True)


def _divisor(op: Value, frame: Frame) -> str:
    return frame.text(op.args[1].node)


def _rebinds(op: Value, frame: Frame) -> bool:
    """Whether the quotient takes the name of the loss."""
    if op.op == "augment":
        return True
    root = frame.function.node if frame.function is not None else frame.module.module.tree
    for item in ast.walk(root):
        if isinstance(item, ast.Assign) and item.value is op.node and isinstance(op.node, ast.BinOp):
            return any(ast.unparse(target) == ast.unparse(op.node.left) for target in item.targets)
    return False
