"""Schedules that go on where the scaler skipped the step."""

from __future__ import annotations

import ast
from typing import Any

from amp_rules.checks.common.origins import origins
from amp_rules.checks.common.step_events import SCALED_BACKWARD, Event, StepCheck
from amp_rules.lattice.frame import Frame
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.idioms import NAMED_EPOCH
from amp_rules.torch.optimizers import SCHEDULES_OF_A_LENGTH


class SchedulerOnSkippedStep(StepCheck):
    """The learning rate schedule advances although the scaler may have skipped the step.

    ## What it does

    Finds `scheduler.step()` in the same loop as `scaler.step(optimizer)`, where nothing compares the scale before and
    after.

    ## Why

    `scaler.step` skips the optimizer when a gradient is infinite, as it is on purpose in the first steps, while the
    scale comes down from 65536. The schedule counts these steps; warm-up is shorter than it should be, and torch warns
    that `lr_scheduler.step()` was called before `optimizer.step()`. A handful of steps in most runs.

    ## Example

        scaler.step(optimizer)
        scaler.update()
        scheduler.step()

    ## Use instead

        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            scheduler.step()

    ## When it is silent

    For schedules that are stepped once an epoch or told the number of the step, and in files that call `get_scale`. For
    those of a fixed length, as `OneCycleLR` and `CosineAnnealingLR` are: they are laid out over the iterations, and
    what they leave out is missing at their end.

    ## Source

    https://discuss.pytorch.org/t/optimizer-step-before-lr-scheduler-step-error-using-gradscaler/92930
    """

    code = "AMP821"
    name = "scheduler-on-skipped-step"
    severity = "info"
    message = "The schedule advances although the scaler may have skipped the step."
    advice = "Step the schedule only if `scaler.get_scale()` did not fall."
    states = ("$schedule",)
    triggers = (SCALED_BACKWARD, "scaler.step(")

    def advance(self, state: Any, event: Event, frame: Frame) -> tuple[bool | None, Any]:
        """Look for a schedule's step in the loop of the scaler's, or in one around it that is not over epochs."""
        if event.kind == "scaler_step":
            return None, (frame.loops, event.node)
        if event.kind == "schedule" and state is not None and not _is_told(event.node):
            return 0 < frame.loops <= state[0] and (frame.loops == state[0] or _counts_steps(event.node, frame)), state
        return None, state

    def found(self, state: Any, event: Event, frame: Frame) -> None:
        """Report at the schedule."""
        if "get_scale" in frame.module.module.source.text:
            return
        if _has_length(frame.module, event.node):
            return
        holder = frame.text(event.node.func.value)  # type: ignore[attr-defined]
        self.report(frame, event.node, f"`{holder}` advances even where the scaler skipped the step", here=True)


def _has_length(module: ModuleFacts, node: ast.AST) -> bool:
    """Whether a schedule is laid out over as many iterations as there are: had it waited, its end would be missing."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    made = [item for item in origins(module, node.func.value) if isinstance(item.node, ast.Call)]
    names = [item.module.dotted(item.node.func) for item in made]  # type: ignore[attr-defined]
    return bool(names) and all(name in SCHEDULES_OF_A_LENGTH for name in names)


def _is_told(node: ast.AST) -> bool:
    """Whether a schedule is told where it is, and does not count: ``scheduler.step(iteration)``."""
    return isinstance(node, ast.Call) and bool(node.args or node.keywords)


def _counts_steps(node: ast.AST, frame: Frame) -> bool:
    """Whether the loop around a schedule, which has the one of the scaler in it, is over anything but epochs."""
    loops = frame.module.index.loops_around(node) if node in frame.module.module.parents else []
    if not loops or not isinstance(loops[0], (ast.For, ast.AsyncFor)):
        return False
    if isinstance(loops[0].target, ast.Name) and NAMED_EPOCH.search(loops[0].target.id):
        return False
    counted = [last_name(item) for item in walk(loops[0].iter) if isinstance(item, (ast.Name, ast.Attribute))]
    return any("step" in name or "iter" in name for name in counted)
