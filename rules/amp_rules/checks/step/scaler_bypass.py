"""Stepping around the scaler."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

from amp_rules.checks.common.step_events import PLAIN, SCALED, Event, StepCheck, hangs_on_precision
from amp_rules.checks.common.step_roles import is_disabled, is_optimizer
from amp_rules.checks.common.step_text import calls_of
from amp_rules.lattice.abstract_values import alternatives
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.paths import Path
from amp_rules.lint.check import replacement
from amp_rules.source import blocks
from amp_rules.source.facts import ModuleFacts

_FROM_ELSEWHERE = frozenset({"param", "attr", "name", "element", "starargs", "other"})


class ScalerBypass(StepCheck):
    """The optimizer steps with scaled gradients, or the scaler with gradients that never were scaled.

    ## What it does

    Finds `optimizer.step()` after `scaler.scale(loss).backward()`, and `scaler.step(optimizer)` after a plain
    `loss.backward()`, be it the only one or one that is added to a scaled one.

    ## Why

    With `optimizer.step()` the gradients go into the weights 65536 times too large, infinities included: one step of
    SGD with a learning rate of 0.1 leaves weights of 19661 where 0.3 were due. The other way round `scaler.step`
    divides gradients by a scale that was never in them, or raises when `scale` was not called at all.

    ## Example

        scaler.scale(loss).backward()
        optimizer.step()
        scaler.update()

    ## Use instead

        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    ## When it is silent

    After `scaler.unscale_`, where the loss comes from outside of the function, and where a test that asks for mixed
    precision stands between.

    ## Source

    https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.step
    """

    code = "AMP815"
    name = "scaler-bypass"
    severity = "error"
    message = "The step does not match the backward pass: one is scaled and the other is not."
    advice = "Use `scaler.scale(loss).backward()` together with `scaler.step(optimizer)`, or neither."
    fix_title = "Step through the scaler"
    fix_safety = "unsafe"
    states = ("$bypass",)

    def advance(self, state: Any, event: Event, frame: Frame) -> tuple[bool | None, Any]:
        """Keep what the last backward pass was of."""
        kind = event.kind
        if kind == "backward":
            if event.how == SCALED:
                is_added = state is not None and state[0] in ("plain", "mixed") and not _steps_plainly(frame.module)
                return None, ("mixed", state[1]) if is_added else ("scaled", event.node, event.scaler)
            return None, ("plain", event.node) if _is_plain(event) else None
        if kind in ("unscale", "update", "escape", "zero_grad"):
            return None, None
        if kind == "scaler_step":
            disabled = event.value is not None and is_disabled(event.value.args[0])
            return (True if state is not None and state[0] in ("plain", "mixed") and not disabled else None), None
        if kind == "step" and state is not None:
            return (True if state[0] == "scaled" and not _is_given_scaler(event.node, state[1]) else None), state
        return None, state

    def _certain(self, wrong: list[Path], others: list[Path], rest: int, frame: Frame) -> bool:
        """Of two backward passes, one scaled: no test for the precision may have told them apart."""
        tests = frame.machine.tests
        left = [
            item
            for item in wrong
            if item.state[0] != "mixed"
            or not any(hangs_on_precision(tests[number], said) for number, said in item.assumed)
        ]
        return bool(left) and super()._certain(left, others, rest + len(wrong) - len(left), frame)

    def is_wrong_alone(self, path: Path, frame: Frame) -> bool:
        """No scaler of the file steps: whichever turn of the loop it is, `optimizer.step()` is all that happens."""
        return path.state is not None and path.state[0] == "scaled" and not _scaler_steps(frame.module)

    def found(self, state: Any, event: Event, frame: Frame) -> None:
        """Report at the step."""
        holder = frame.text(event.node.func.value)  # type: ignore[attr-defined]
        if event.kind == "scaler_step" and state[0] == "mixed":
            loss = frame.text(state[1].func.value)
            message = f"`{loss}` is backpropagated without the scale, and `{holder}.step` divides its gradients by it"
            self.report(frame, state[1], message, here=True)
            return
        if event.kind == "scaler_step":
            message = f"`{holder}.step` unscales gradients of a backward pass that was not scaled"
            self.report(frame, event.node, message, here=True)
            return
        scaler = state[1].func.value
        message = f"`{holder}.step()` applies gradients that are multiplied by the loss scale"
        fix = None
        scale = getattr(scaler, "func", None)
        if scale is not None and not event.node.args and _is_alone(frame):  # type: ignore[attr-defined]
            text = f"{frame.text(scale.value)}.step({holder})"
            fix = replacement(frame, f"Call `{text}`", "unsafe", (event.node, text))
        self.report(frame, event.node, message, fix=fix, here=True)


def _is_given_scaler(step: ast.AST, backward: ast.AST) -> bool:
    """Whether a step is handed the scaler of the backward pass: ``optimizers.step("generator", scaler=scaler)``."""
    assert isinstance(step, ast.Call) and isinstance(backward, ast.Call) and isinstance(backward.func, ast.Attribute)
    scale = getattr(backward.func.value, "func", None)
    scaler = blocks.path_of(scale.value) if isinstance(scale, ast.Attribute) else None
    given = [*step.args, *(item.value for item in step.keywords)]
    return scaler is not None and any(blocks.path_of(item) == scaler for item in given)


@lru_cache(maxsize=8)
def _scaler_steps(module: ModuleFacts) -> bool:
    """Whether anything in the file is given an optimizer to step."""
    return any(call.args and is_optimizer(None, call.args[0]) for call in module.index.named.get("step", ()))


@lru_cache(maxsize=8)
def _steps_plainly(module: ModuleFacts) -> bool:
    """Whether an optimizer of the file steps by itself: a loss that is not scaled may be for that one."""
    steps = [call.func for call in module.index.named.get("step", ()) if not call.args]
    return any(isinstance(item, ast.Attribute) and is_optimizer(None, item.value) for item in steps)


def _is_alone(frame: Frame) -> bool:
    """Whether the function has a single backward pass, so that its step can only be that one's."""
    root = frame.function.node if frame.function is not None else frame.module.module.tree
    return len(list(calls_of(root, "backward"))) == 1


def _is_plain(event: Event) -> bool:
    """Whether the loss is known to be unscaled: it was computed here."""
    if event.how != PLAIN or event.value is None:
        return False
    return all(item.op not in _FROM_ELSEWHERE for item in alternatives(event.value))
