"""Stepping without ever updating the scale, or updating without a step."""

from __future__ import annotations

import ast
from typing import Any

from amp_rules.checks.common.skipped_updates import skips_update
from amp_rules.checks.common.step_events import SCALED, Event, StepCheck, is_wrapped, statement_of
from amp_rules.checks.common.step_roles import is_disabled
from amp_rules.checks.common.step_text import scaler_methods, step_state
from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.paths import LOST
from amp_rules.lint.check import LintedFile
from amp_rules.lint.finding import Fix, TextEdit
from amp_rules.source.facts import FunctionFacts

_ADVICE = "Skip only the step: call `scaler.update()` after each `unscale_`."


class MissingScalerUpdate(StepCheck):
    """`scaler.step` without `scaler.update`, or the other way round.

    ## What it does

    Finds loops in which `scaler.step(optimizer)` comes round again without `scaler.update()`, functions that step
    in files which never update, `update()` twice with no step between, and loops in which a test that decides about the
    step leaves `update()` out after `unscale_`.

    ## Why

    Without `update` the scale never changes and the second `step` raises "step() has already been called since the
    last update()". A second `unscale_` raises as well, where a step that was skipped took its `update` along. An
    `update` with no step before it raises "No inf checks were recorded prior to update".

    ## Example

        for batch in loader:
            optimizer.zero_grad()
            scaler.scale(compute_loss(batch)).backward()
            scaler.step(optimizer)

    ## Use instead

        for batch in loader:
            optimizer.zero_grad()
            scaler.scale(compute_loss(batch)).backward()
            scaler.step(optimizer)
            scaler.update()

    ## When it is silent

    Where the scaler is handed to a function that is not known, and in files that leave the step to Accelerate,
    Lightning or DeepSpeed. A loop over optimizers that steps each of them counts as a step, though it may be empty, and
    so does a step around the scaler, of which AMP815 tells.

    ## Source

    https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.update
    """

    code = "AMP814"
    name = "missing-scaler-update"
    severity = "error"
    message = "The calls of `scaler.step` and `scaler.update` do not alternate."
    advice = "Call `scaler.update()` once after the steps of all optimizers."
    fix_title = "Update the scaler after the step"
    fix_safety = "safe"
    states = ("$update",)
    slack = 1

    def advance(self, state: Any, event: Event, frame: Frame) -> tuple[bool | None, Any]:
        """Keep the last call of each scaler."""
        held: frozenset[Any] = state or frozenset()
        if event.kind == "escape":
            return None, frozenset({("escape", None, None, None)})
        if event.kind == "backward" and event.how == SCALED:
            return None, held | {("scaled", event.scaler, None, None)}
        if event.kind == "step":
            return None, _bypassed(held)
        if event.kind not in ("update", "scaler_step", "unscale") or event.value is None:
            return None, state
        if is_disabled(event.value.args[0]) or any(item[0] == "escape" for item in held):
            return None, frozenset(item for item in held if item[0] != "escape") if event.kind == "update" else state
        own = [item for item in held if item[1] == event.scaler]
        entry = (event.kind, event.scaler, event.optimizer, event.node)
        if event.kind == "update":
            bad = any(item[0] == "update" for item in own)
            return bad, (held - set(own)) | {entry}
        held = frozenset(item for item in held if item not in own or item[0] != "update")
        bad = event.kind == "scaler_step" and any(item == entry for item in own)
        return bad, held | {entry}

    def found(self, state: Any, event: Event, frame: Frame) -> None:
        """Report at the call that raises."""
        if event.kind == "update":
            if _steps_in_a_loop_before(frame, event.node):
                return
            message = "`update` is called again without a `step` between, which raises"
            self.report(frame, event.node, message, here=True)
        else:
            message = "`step` is called again without `update`, which raises"
            self.report(frame, event.node, message, fix=self._fix(frame, event.node), here=True)

    def visit_function(self, function: FunctionFacts | None, frame: Frame) -> None:
        """A step in a file that never updates."""
        ends = step_state(frame, self.key)
        if not ends or scaler_methods(frame.module, "update") or is_wrapped(frame.module):
            return
        if any(item.state is LOST or any(entry[0] == "escape" for entry in item.state or ()) for item in ends):
            return
        for item in ends:
            for kind, scaler, _, node in item.state or ():
                # Who gives a scaler may update it; who calls from this file is judged as well.
                given = isinstance(scaler, Value) and scaler.op == "param"
                if kind == "scaler_step" and not given and node in frame.module.module.parents:
                    message = "`step` is called and nothing in this file calls `update`: the second call raises"
                    self.report(frame, node, message, fix=self._fix(frame, node), here=True)

    def visit_module(self, file: LintedFile) -> None:
        """A step that is skipped, and its update with it, when the gradients were unscaled already."""
        updates = scaler_methods(file.module, "update")
        if not updates or is_wrapped(file.module):
            return
        for unscale in scaler_methods(file.module, "unscale_"):
            skipped = skips_update(file.module, unscale, updates)
            if skipped is not None:
                update, (test, outcome) = skipped
                when = f"where `{file.module.module.text(test)}` is {'false' if outcome else 'true'}"
                message = f"`update` is left out {when}, after `unscale_`: the next `unscale_` raises"
                self.report_in(file, update, message, advice=_ADVICE)

    def _fix(self, frame: Frame, node: Any) -> Fix | None:
        statement = statement_of(frame, node)
        if statement is None or scaler_methods(frame.module, "update"):
            return None
        text = f"{frame.text(node.func.value)}.update()"
        return Fix(f"Call `{text}` after the step", "safe", (TextEdit("insert after", frame.span(statement), text),))


def _bypassed(held: frozenset[Any]) -> frozenset[Any]:
    """What is left when the optimizer steps around a scaler after its backward pass, which AMP815 tells of."""
    around = {item[1] for item in held if item[0] == "scaled"}
    return frozenset(item for item in held if item[1] not in around or item[0] not in ("scaled", "update"))


def _holder(call: ast.AST) -> str:
    """What a method is called of, as it is written: a scaler may have any name."""
    function = call.func if isinstance(call, ast.Call) else None
    return ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""


def _steps_in_a_loop_before(frame: Frame, update: ast.AST) -> bool:
    """Whether each round of the loop around an update has a loop of its own above, which steps."""
    index = frame.module.index
    if update not in frame.module.module.parents:
        return False
    around = index.loops_around(update)[:1]
    for step in index.named.get("step", ()):
        loops = index.loops_around(step)
        inner = loops[0] if loops else None
        if isinstance(inner, ast.For) and loops[1:2] == around and step.lineno < getattr(update, "lineno", 0):
            if _holder(step) == _holder(update):
                return True
    return False
