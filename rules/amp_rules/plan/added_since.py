"""What came into a migrated script after its migration, and goes around the scaler or autocast.

A script is known as migrated by what a migration writes alone: the start of the runtime, or in plain PyTorch the
variable of the environment that chooses the level. Who mixes precision in words of their own is not judged here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from amp_rules.plan import declining, notes
from amp_rules.plan.mixed_already import has_torch_amp
from amp_rules.plan.own_mixed_steps import is_instead_of
from amp_rules.plan.report import Note, Outcome, Report
from amp_rules.roles.autocast_contexts import AutocastContexts
from amp_rules.roles.loss_regions import Regions
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward, Site, Step
from amp_rules.source import blocks
from amp_rules.source.syntax import own_name
from amp_rules.torch.mixed_precision import LEVEL_VARIABLE

_SWITCHES = frozenset({"torch.set_autocast_enabled", "torch.set_autocast_gpu_dtype", "torch.set_autocast_dtype"})
"""Functions that switch autocast on for all that follows: where it is on is not seen by the text."""


def with_added(report: Report, program: Program) -> Report:
    """The report of a script with torch's own mixed precision, with the steps that came after its migration to it."""
    if report.precision not in ("already", "declined") or not _reads_level(program) or not has_torch_amp(program):
        return report
    if not any(map(is_scaled, program.backwards)):
        return report  # in bfloat16 nothing is scaled
    found = tuple(added(program, "scaler", "torch.autocast(...)"))
    places = {(item.path, item.span) for item in found}
    # That a step has no precision of its own is said once.
    left = tuple(
        item
        for item in report.refusals
        if item.code != declining.ALREADY_MIXED.code or (item.path, item.span) not in places
    )
    precision: Outcome = "already" if len(left) < len(report.refusals) else report.precision
    return replace(report, precision=precision, refusals=left, notes=(*report.notes, *found))


def _reads_level(program: Program) -> bool:
    """Whether some file asks the environment for the level, as a migration to plain PyTorch writes it."""
    return any(
        isinstance(node, ast.Constant) and node.value == LEVEL_VARIABLE
        for module in program.flow.modules
        for node in module.nodes
    )


def added(program: Program, scaler: str, autocast: str) -> Iterator[Note]:
    """What to say of steps that came after the migration.

    Args:
        program: a program that was migrated.
        scaler: the scaler as it is written there.
        autocast: the context, as it is written there.
    """
    scaled = [site for site in program.backwards if is_scaled(site)]
    looking = {site.node for site in program.looks_beside_any.backwards}
    plain = [site for site in program.backwards if not is_scaled(site) and site.node not in looking]
    loose = [site for site in plain if not _has_twin(program, site, scaled)]
    for site in loose:
        yield notes.note(
            notes.NOT_SCALED,
            site.module,
            site.node,
            f"`{site.module.text(site.node)}` is not scaled: this step came after the migration; {_how(site, scaler)}",
        )
    if not scaled:
        return
    stepped = [site for site in program.steps if not _is_plain(site)]
    for step in program.steps:
        if _is_plain(step) and not _has_twin(program, step, stepped) and not _is_of(step, loose, scaled):
            optimizer = step.module.text(step.optimizer)
            yield notes.note(
                notes.NOT_SCALED,
                step.module,
                step.node,
                f"`{step.module.text(step.node)}` bypasses the scaler: this step came after the migration; write "
                f"`{scaler}.step({optimizer})` and `{scaler}.update()`",
            )
    yield from _outside_autocast(program, scaled, autocast)


def _how(site: Backward, scaler: str) -> str:
    """How a backward pass is written."""
    if isinstance(site.call.func, ast.Attribute) and site.call.func.value is site.loss:
        return f"write `{scaler}.scale({site.module.text(site.loss)}).backward()`, as `amp-lint --explain AMP103` shows"
    return "`amp-lint --explain AMP103` shows how it is written"


def is_scaled(site: Backward) -> bool:
    """Whether a scaler has a part in a backward pass, as in ``torch.autograd.backward(amp.scaler.scale(losses))``."""
    return site.is_scaled or (isinstance(site.loss, ast.Call) and own_name(site.loss.func) == "scale")


def _outside_autocast(program: Program, scaled: list[Backward], autocast: str) -> Iterator[Note]:
    """Forward passes of scaled losses that no autocast holds."""
    if any(name in _SWITCHES for call, _, scope in program.calls() for name in program.callee_names(call, scope)):
        return
    contexts = AutocastContexts(program)
    told: set[ast.Call] = set()
    for run in Regions(program).training(scaled)[0]:
        for statement in run.statements():
            if not program.runs_differentiable_forward(statement):
                continue
            call = contexts.forward_outside(statement)
            located = program.locate(call) if call is not None else None
            if call is None or located is None or call in told:
                continue
            told.add(call)
            module = located[1].module
            yield notes.note(
                notes.NOT_SCALED,
                module,
                call,
                f"`{module.text(call)}` is computed outside of autocast, in FP32: this step came after the migration; "
                f"put it into `with {autocast}:`, or if it is on purpose into the same with `enabled=False`",
            )


def _is_plain(step: Step) -> bool:
    """Whether an optimizer steps by itself: ``optimizer.step()``."""
    return isinstance(step.call.func, ast.Attribute) and step.call.func.value is step.optimizer


def _has_twin(program: Program, site: Backward | Step, others: list[Backward] | list[Step]) -> bool:
    """Whether a round that runs the place leaves out one that has a part in the scale: ``if scaler is None: ...``."""
    return any(is_instead_of(program, site, other) for other in others)


def _is_of(step: Step, loose: list[Backward], scaled: list[Backward]) -> bool:
    """Whether a step belongs to a backward pass that is named already: both are in one round of a loop."""
    mine = _round(step)
    return any(_round(site) == mine for site in loose) and not any(_round(site) == mine for site in scaled)


def _round(site: Site) -> tuple[ast.AST, ast.AST | None]:
    """The function that a place is in, and the nearest loop around it."""
    return site.body, blocks.loop_around(site.module, site.node)
