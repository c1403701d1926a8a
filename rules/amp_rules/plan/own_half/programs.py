"""Migrating a program with half precision by hand: as the plain one that it is with its flag off."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from amp_rules import rewrites
from amp_rules.flow.statements import is_main_guard
from amp_rules.plan import declining, notes
from amp_rules.plan.apex.file import NotUnderstood
from amp_rules.plan.apex.stages import is_part_of_apex, uses_apex
from amp_rules.plan.declining import Declined
from amp_rules.plan.drafts import Draft, drafted, joined
from amp_rules.plan.float32_functions import in_float32
from amp_rules.plan.own_half.edits import HalfProgram, edits
from amp_rules.plan.own_half.own import OwnHalf
from amp_rules.plan.own_half.start import OwnStart, start_of
from amp_rules.plan.own_half.understood import understood
from amp_rules.plan.precision import Precision
from amp_rules.plan.report import Refusal, Report
from amp_rules.plan.selection import Selection
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name

MigratePlain = Callable[[Program, OwnStart], Report]

_MARKS = (".half(", "_to_half", "FP16", "convert_network")
_SAVING = frozenset({"load_state_dict", "save", "save_checkpoint", "save_model", "save_pretrained", "state_dict"})
_WRAPPING = "network_to_half"
"""What makes ``nn.Sequential(tofp16(), model)`` of a model."""
_PART_OF_A_DRAFT: frozenset[str] = frozenset()


@dataclass
class Attempt:
    """What came of taking half precision by hand out.

    Attributes:
        report: the report, where the whole was migrated.
        refusals: why it was not, where the script has half precision of its own.
    """

    report: Report | None = None
    refusals: tuple[Refusal, ...] = ()


def migrate_own_half(program: Program, selection: Selection, migrate_plain: MigratePlain) -> Attempt:
    """Migrate a program with half precision by hand, where it has any and the whole is understood.

    Args:
        program: the program.
        selection: what was asked for.
        migrate_plain: the migration of the program without it, told the level that the script's own flag asks for.
    """
    modules = [module for module in program.flow.modules if not is_part_of_apex(program, module)]
    if not selection.precision or not any(mark in module.source.text for module in modules for mark in _MARKS):
        return Attempt()
    try:
        own = understood(program)
        if own is None:
            return Attempt()
        start = start_of(own)
        half = HalfProgram(program, edits(own))
    except NotUnderstood as left:
        return Attempt(refusals=(_refusal(left, bool(uses_apex(program))),))
    drafts: dict[Module, Draft] = {}
    try:
        for rewrite in rewrites.of_own_half():
            changes = defaultdict(list)
            for change in selection.settled(rewrite.changes(half)):
                changes[change.module].append(change)
            for module, made in changes.items():
                drafts[module] = Draft.of(module, _PART_OF_A_DRAFT)
                drafts[module].make(made)
    except Declined as left_out:
        return Attempt(refusals=left_out.refusals)
    by_path = {module.path: draft for module, draft in drafts.items()}
    report = joined(by_path, migrate_plain(drafted(program, by_path), start))
    if report.precision != "migrated":
        return Attempt(refusals=tuple(item for item in report.refusals if item.unit == "precision"))
    whose = "O2, as half precision by hand was" if own.flag.is_always else "the script's own flag"
    text = f"the level stays {whose}, which AMP_OPT_LEVEL overrides"
    if _saves(program):
        text += "; checkpoints hold float32 weights at every level, under the names of the plain model"
    text += _told(own, report, _loads_what_is_wrapped(program))
    return Attempt(replace(report, notes=(*report.notes, notes.note(notes.APEX_LEVEL, program.entry, None, text))))


def _saves(program: Program) -> bool:
    """Whether the program saves or loads anything, by a method of what it saves or by torch."""
    names = _SAVING | {"load"}
    return any(isinstance(node, ast.Attribute) and node.attr in names for node, _, _ in program.nodes()) or any(
        isinstance(node, ast.Name) and node.id in _SAVING for node, _, _ in program.nodes()
    )


def _loads_what_is_wrapped(program: Program) -> bool:
    """Whether a model is given saved weights, and ``network_to_half`` has put one behind a part that casts."""
    loads = wraps = False
    for call, _, scope in program.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr == "load_state_dict":
            loads = loads or bool(program.roles.modules(call.func.value, scope))
        elif last_name(call.func) == _WRAPPING:
            given_back = [value for info in program.flow.callees(call) for value in info.returns]
            wraps = wraps or not given_back or any(map(_makes_chain, given_back))
    return loads and wraps


def _makes_chain(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and last_name(value.func) == "Sequential"


def _told(own: OwnHalf, report: Report, loads_what_is_wrapped: bool) -> str:
    """What else is another thing than with half precision by hand."""
    text = ""
    if loads_what_is_wrapped:
        text += f"; weights that were saved behind `{_WRAPPING}` have `1.` before each name, so they do not load"
    codes = {edit.code for edit in report.edits}
    if own.keeps_state:
        text += "; the state of an optimizer is that of the plain one, so what `FP16_Optimizer` saved does not load"
        if "AMP118" not in codes:
            text += ", and it holds no loss scale: a run that goes on begins with the first one"
    return text + in_float32(report, "also where the script gave a half model's tensors")


def own_half_beside_apex(program: Program) -> Declined:
    """The reason against a program that chooses between ``amp.initialize`` and half precision by hand."""
    return declining.decline(
        declining.ALREADY_MIXED,
        program.entry,
        None,
        "the script chooses between `amp.initialize` and half precision by hand",
        "remove one of the two, then migrate again",
    )


def prepared_in_a_branch(program: Program, precision: Precision) -> Iterator[Declined]:
    """Models that would be prepared under a condition alone: without it, O2 would train what nothing made half."""
    for home in precision.homes:
        others = [other for other in precision.homes if other.key == home.key and other is not home]
        for parent in blocks.enclosing(home.module, home.statement):
            if not isinstance(parent, ast.If) or is_main_guard(parent) or program.runs_backward(parent):
                continue
            if not others:
                yield declining.decline(
                    declining.ALREADY_MIXED,
                    home.module,
                    home.statement,
                    f"`{home.variable}` would get its precision only where `{home.module.text(parent.test)}` holds",
                    "hold the model in one variable, above that condition, then migrate again",
                )


def _refusal(left: NotUnderstood, with_apex: bool) -> Refusal:
    rule = declining.APEX if with_apex else declining.ALREADY_MIXED
    recipe = "take the half precision out, by hand, as the script runs with it switched off; then migrate again"
    return Refusal(left.module.path, left.span, rule.code, rule.name, rule.unit, left.reason, recipe)
