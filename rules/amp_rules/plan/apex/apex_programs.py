"""Migrating a program that uses Apex: by rewriting it, or by changing its imports."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from amp_rules.plan import declining, left_unfollowed, notes
from amp_rules.plan.apex import stages
from amp_rules.plan.apex.beyond_conditions import prepared_beyond
from amp_rules.plan.apex.extensions import extension_notes
from amp_rules.plan.apex.file import HelperOfHalf, NotUnderstood
from amp_rules.plan.apex.kept_imports import kept_notes
from amp_rules.plan.apex.kept_in_place import HalfWrite, weights_stay, writes_into_half
from amp_rules.plan.apex.level_reached import level_condition
from amp_rules.plan.apex.options_left import advice_left, options_kept, options_left
from amp_rules.plan.apex.told_owners import told_optimizers, told_owners
from amp_rules.plan.apex.wrapping import wrapper_notes
from amp_rules.plan.declining import Declined
from amp_rules.plan.drafts import Draft, changes_of, drafted, edits_of, joined
from amp_rules.plan.file_names import name_of
from amp_rules.plan.float32_functions import in_float32
from amp_rules.plan.kept_levels import STARTS
from amp_rules.plan.mixed_already import trains_with_torch_amp
from amp_rules.plan.report import Outcome, Refusal, Report
from amp_rules.plan.selection import Selection, step_for_apex
from amp_rules.plan.vocabularies import chosen
from amp_rules.roles.program import Program
from amp_rules.roles.widened import widened_parts
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.notebook import cell_at
from amp_rules.source.resolver import names_of
from amp_rules.source.syntax import is_none, walk
from amp_rules.torch import apex as api
from amp_rules.torch.frameworks import OWN_FRAMEWORK
from amp_rules.torch.wrappers import DATA_PARALLEL, DISTRIBUTED_DATA_PARALLEL

MigratePlain = Callable[[Program, bool], Report]

_INITIALIZE, _SCALE_LOSS, _BESIDE_TORCH = "AMP404", "AMP402", "AMP414"
_COMPAT = "migrate with --apex compat, which changes the imports only"
_BY_HAND = "replace this part by PyTorch's own, then migrate again"


class _Left(Exception):
    """The program cannot be rewritten; says why, in one reason or more."""

    def __init__(self, *refusals: Refusal) -> None:
        super().__init__(refusals[0].message)
        self.refusals = refusals


def migrate_apex(
    program: Program,
    selection: Selection,
    migrate_plain: MigratePlain,
    distribution: Callable[[Program], Outcome],
    half: tuple[Refusal, ...] = (),
    *,
    was_half: bool = False,
) -> Report:
    """Migrate a program that uses Apex.

    Where nothing comes to what its files do with Apex, it is migrated as one without.

    Args:
        program: the program.
        selection: what was asked for.
        migrate_plain: the migration of a program without Apex; told whether it is initialised already.
        distribution: what is to be said about several processes when nothing is done about them.
        half: why the helpers of Apex for half precision by hand, which it may use, were not taken out.
        was_half: whether they were, so that the runtime starts where those did, and not at ``amp.initialize``.
    """
    reasons: tuple[Refusal, ...] = ()
    options = selection.options
    older = options.apex != "compat" and stages.leaves_apex_to_older_torch(program)
    if older:
        own = _beside_torch(program, selection, migrate_plain, reasons)
        if own is not None:
            return own
    if options.apex != "compat":
        try:
            return _by_idiom(program, selection, migrate_plain, was_half=was_half)
        except NotUnderstood as left:
            reasons = (_refusal(left.module, left, f"{_COMPAT}, or rewrite this place by hand"),)
            reasons = half if half and isinstance(left, HelperOfHalf) else reasons
        except (_Left, Declined) as left:
            # Why half precision by hand stays says more than that there is some.
            stays_half = half and left.refusals[0].code == declining.ALREADY_MIXED.code
            reasons = half if stays_half else left.refusals
    if options.apex != "compat" and stages.only_imports_apex(program):
        plain = _beside_idle(program, selection, migrate_plain)
        if plain is not None:
            return plain
    if options.apex != "compat" and not older:
        # What the script does today, where Apex's `amp` cannot be imported, and what it has to do it with.
        own = _beside_torch(program, selection, migrate_plain, reasons)
        if own is not None:
            return own
    if options.apex == "idiom":
        return _declined(program, distribution(program), reasons)
    try:
        kept = _by_imports(program, selection, reasons[0] if reasons else None, distribution(program))
        # A part of Apex that the runtime does not have, behind ``try``, makes no script one for Apex.
        return kept if kept.changes or stages.calls_amp(program) else migrate_plain(program, False)
    except Declined as left:
        reasons = _of_both(reasons, left.refusals)
    except NotUnderstood as left:
        missing = _refusal(left.module, left, _BY_HAND)
        reasons = _of_both(reasons, (missing,))
    return _declined(program, distribution(program), reasons)


def bring_up_to_date(program: Program, selection: Selection, report: Report, migrate_plain: MigratePlain) -> Report:
    """The report for a program that keeps its own mixed precision, now under its present names."""
    drafts = {draft.original.path: draft for draft in stages.up_to_date(program, selection)}
    # Without the substitutes of an older torch, more is known of what steps.
    if drafts and (report.changes or any(map(stages.has_substitutes, program.flow.modules))):
        return joined(drafts, migrate_plain(drafted(program, drafts), False))
    if drafts:
        return replace(report, changes=changes_of(drafts.values()), edits=edits_of(drafts.values()))
    return report


def _of_both(idiom: tuple[Refusal, ...], imports: tuple[Refusal, ...]) -> tuple[Refusal, ...]:
    """The reasons where neither way goes: each place once, and no advice to try the other way."""
    told = {(item.path, item.span.start.line) for item in imports if item.span is not None}
    kept = [
        item
        for item in idiom
        # What the user keeps is told whatever else stands in the way there.
        if item.code == declining.ASKED_APEX.code or item.span is None or (item.path, item.span.start.line) not in told
    ]
    others = (replace(item, recipe=_BY_HAND) if "--apex compat" in item.recipe else item for item in kept)
    return (*others, *imports)


def _declined(program: Program, distribution: Outcome, reasons: tuple[Refusal, ...]) -> Report:
    # What is asked for gives no advice.
    recipe = declining.STEP_FIRST if reasons[0].recipe else ""
    refusals = (*reasons, *_not_distributed(program, distribution, reasons[0].message, recipe))
    return Report(program.entry.path, "declined", distribution, refusals=refusals)


def _not_distributed(program: Program, distribution: Outcome, message: str, recipe: str) -> tuple[Refusal, ...]:
    """The reason for leaving the distribution alone, where it was asked for and is not there."""
    if distribution != "declined":
        return ()
    rule = declining.NEEDS_PRECISION
    return (Refusal(program.entry.path, None, rule.code, rule.name, rule.unit, message, recipe),)


def _refusal(module: Module, left: NotUnderstood, recipe: str) -> Refusal:
    rule = declining.APEX
    return Refusal(module.path, left.span, rule.code, rule.name, rule.unit, left.reason, recipe)


def _by_idiom(program: Program, selection: Selection, migrate_plain: MigratePlain, *, was_half: bool = False) -> Report:
    with_amp = stages.calls_amp(program)
    if with_amp and not selection.precision:
        raise _Left(step_for_apex(program.entry.path))
    kept = writes_into_half(program) if with_amp else None
    if kept is not None:
        raise _Left(_lost_writes(kept))
    widened = next(widened_parts(program), None) if with_amp and not weights_stay(program) else None
    if widened is not None:
        raise _Left(_narrowed_again(*widened))
    drafts = {draft.original.path: draft for draft in stages.idiom(program, selection)}
    initialised = any(edit.code == _INITIALIZE for draft in drafts.values() for edit in draft.edits)
    # What the script says in words of Apex is gone from the drafts.
    program.told_owners, program.told_optimizers = told_owners(program), told_optimizers(program)
    plain = drafted(program, drafts)
    unreached = _unreached(plain, drafts.values())
    if unreached is not None:
        raise _Left(unreached)
    report = joined(drafts, migrate_plain(plain, initialised))
    if initialised and selection.options.ddp:
        report = _prepared_always(plain, drafts, selection, migrate_plain, report)
    if with_amp and (not (initialised or was_half) or report.precision != "migrated"):
        raise _Left(*_why_not(program, report.refusals))
    if initialised:
        text = "the level stays the script's own, as it was given to amp.initialize; AMP_OPT_LEVEL overrides it"
        asked = "" if _starts_always(report) else level_condition(plain)
        if asked:
            text += f" where `{asked}` holds, and is not read elsewhere: there the script trains in full precision"
        text += _unused(program, selection, report.distribution)
        text += in_float32(report, "on half tensors too, which Apex left as they were")
        told = notes.note(notes.APEX_LEVEL, program.entry, None, text)
        report = replace(report, notes=(*report.notes, told), in_full=_is_in_full(plain), level_if=asked)
    wrapped = wrapper_notes(program) if selection.options.target != "torch" else ()
    return replace(report, notes=(*report.notes, *extension_notes(program), *wrapped))


def _beside_idle(program: Program, selection: Selection, migrate_plain: MigratePlain) -> Report | None:
    """The report for a program without Apex, of which a file imports it for what nothing in the program runs.

    Apex's interface comes from the runtime there. None where that lacks a part.
    """
    try:
        drafts = {draft.original.path: draft for draft in stages.compatible(program, selection)}
    except (NotUnderstood, Declined):
        return None
    return joined(drafts, migrate_plain(drafted(program, drafts), False))


def _lost_writes(kept: HalfWrite) -> Refusal:
    rule, module = declining.APEX, kept.module
    half = "at O3 a buffer of batch norm is half" if kept.of_batch_norm else "at O2 and O3 a buffer is half"
    message = (
        f"`{kept.name}` writes into what it is given (`{module.text(kept.node)}`): {half}, and in FP32 the function "
        "would write into a copy of it"
    )
    return Refusal(module.path, module.span(kept.node), rule.code, rule.name, rule.unit, message, _COMPAT)


def _narrowed_again(call: ast.Call, module: Module) -> Refusal:
    rule = declining.APEX
    message = (
        f"the model makes a part of itself float32 as it runs (`{module.text(call)}`): at O2 and O3 Apex left it so, "
        "and `amp.autocast` computes it in half again"
    )
    return Refusal(module.path, module.span(call), rule.code, rule.name, rule.unit, message, _COMPAT)


def _starts_always(report: Report) -> bool:
    """Whether the runtime starts on the main path too, where the processes join."""
    return report.distribution == "migrated"


def _is_in_full(plain: Program) -> bool:
    """Whether the program, once it is without Apex, gives no level but O0, which stands at the call."""
    calls = [site.node for site in plain.calls_to(STARTS)]
    levels = [literal(keyword(call, "opt_level")) for call in calls if isinstance(call, ast.Call)]
    return bool(levels) and set(levels) == {"O0"}


def _prepared_always(
    plain: Program, drafts: dict[Path, Draft], selection: Selection, migrate_plain: MigratePlain, report: Report
) -> Report:
    """The report of the program whose models are prepared whatever the script gave to Apex, where that is needed.

    Where something else stands in the way of several processes, that is told, and the models stay where they are.
    """
    if report.precision != "migrated" or report.distribution != "declined":
        return report
    beyond = prepared_beyond(plain, drafts, chosen(selection.options).preparing)
    if beyond is None:
        return report
    moved = joined(beyond[1], migrate_plain(beyond[0], True))
    if moved.precision == moved.distribution == "migrated":
        return moved
    others = [item for item in moved.refusals if item.unit == "distribution"]
    kept = [item for item in report.refusals if item.unit != "distribution"]
    return replace(report, refusals=(*kept, *others)) if others else report


def _beside_torch(
    program: Program, selection: Selection, migrate_plain: MigratePlain, reasons: tuple[Refusal, ...]
) -> Report | None:
    """The report for a program that has torch's mixed precision too, which stays; None where it needs Apex."""
    if not trains_with_torch_amp(program):
        return None
    try:
        found = stages.beside_torch(program, selection)
    except Declined as left:
        return _declined(program, "absent", (*left.refusals, *reasons))
    if found is None:
        return None
    drafts = {draft.original.path: draft for draft in found}
    report = joined(drafts, migrate_plain(drafted(program, drafts), False))
    if report.precision != "already":
        return None
    is_gone = any(edit.code == _BESIDE_TORCH for edit in report.edits)
    if is_gone:
        return replace(report, notes=(*report.notes, *options_left(program), *advice_left(found)))
    kept = tuple(options_kept(program)) if stages.calls_amp(program) else ()
    return replace(
        report, notes=(*report.notes, *kept), refusals=_choosing(report.refusals) if kept else report.refusals
    )


def _choosing(refusals: tuple[Refusal, ...]) -> tuple[Refusal, ...]:
    """The reasons, where an option chooses between Apex, which is left in the script, and torch."""
    advice = {declining.NO_SECOND_SCALER: declining.TORCH_NOT_APEX}
    return tuple(replace(item, recipe=advice.get(item.recipe, item.recipe)) for item in refusals)


def _unused(program: Program, selection: Selection, distribution: Outcome, *, compat: bool = False) -> str:
    """What is said of options that the script's own calls stand against."""
    options, found = selection.options, ""
    if options.loss_scale != "dynamic" and (compat or _gives_scale(program)):
        found += f"; so does its loss scale: {options.loss_scale!r} is not used"
    if not options.sync_bn and (compat or distribution != "migrated" or stages.converts_batch_norm(program)):
        found += "; whether batch norm is synchronised stays the script's own choice too"
    return found


def _gives_scale(program: Program) -> bool:
    """Whether the script gives ``amp.initialize`` a loss scale."""
    return any(
        item.arg == "loss_scale" and not is_none(item.value)
        for call in stages.initializing(program)
        for item in call.keywords
    )


def _unreached(plain: Program, drafts: Iterable[Draft]) -> Refusal | None:
    """Why the loss of some step would no longer be scaled: nothing that the entry runs leads to it."""
    known = {(site.module.path, site.module.start(site.call)) for site in (*plain.backwards, *plain.looks.backwards)}
    for draft in drafts:
        scaled = {
            line
            for edit in draft.edits
            if edit.code == _SCALE_LOSS
            for line in range(edit.span.start.line, edit.span.end.line + 1)
        }
        for node in walk(draft.module.tree) if scaled else ():
            if not (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"
            ):
                continue
            place = draft.place(draft.module.span(node))
            if (draft.module.path, draft.module.start(node)) not in known and place.start.line in scaled:
                rule = declining.APEX
                message = "the script imports a training step with `amp.scale_loss` that it does not run itself"
                recipe = "migrate the script that runs it, or this one with --apex compat, which changes imports only"
                return Refusal(draft.original.path, place, rule.code, rule.name, rule.unit, message, recipe)
    return None


def _why_not(program: Program, refusals: tuple[Refusal, ...]) -> tuple[Refusal, ...]:
    of_the_step = tuple(item for item in refusals if item.unit == "precision")
    if of_the_step:
        return of_the_step
    rule = declining.APEX
    message = (
        "no training step was found that uses what `amp.initialize` prepares"
        if stages.initializing(program)
        else "no `amp.initialize` was found: which step Apex would scale is not known"
    )
    recipe = _COMPAT
    return (Refusal(program.entry.path, None, rule.code, rule.name, rule.unit, message, recipe),)


def _by_imports(program: Program, selection: Selection, reason: Refusal | None, distribution: Outcome) -> Report:
    _decline_half(program)
    drafts = stages.compatible(program, selection)
    text = "Apex's interface stays: the runtime has it"
    if reason is not None:
        text = f"Apex's interface stays, from the runtime, because {_told(program, reason)}: {reason.message}"
    text += _unused(program, selection, distribution, compat=True)
    return Report(
        program.entry.path,
        "migrated",
        distribution,
        changes=changes_of(drafts),
        edits=edits_of(drafts),
        refusals=_not_distributed(
            program,
            distribution,
            _one_process(program),
            _several_by_hand(reason),
        ),
        notes=(
            notes.note(notes.APEX_KEPT, program.entry, None, text),
            *kept_notes(program, selection.options),
            *extension_notes(program),
        ),
        reads_level=not stages.is_half_by_hand(program),
    )


def _decline_half(program: Program) -> None:
    """Decline where the scaled step may stand in a file that was not found: it would stay with another Apex.

    Raises:
        Declined: optimizers are initialised, nothing that was found scales a loss, and an import leads nowhere.
    """
    for site in program.calls_to(api.SCALERS_OF_LIBRARIES):
        raise declining.decline(
            declining.APEX,
            site.module,
            site.node,
            f"`{site.module.text(site.node)}` scales losses with the Apex that its library imports: with this file "
            "alone, only half of the program would be migrated away from Apex",
            "keep only torch's branch, by hand, or run the script as it is by `python -m amp_runtime.apex`",
        )
    optimizers = [
        call
        for call in stages.initializing(program)
        if len(call.args) > 1 or any(item.arg == "optimizers" for item in call.keywords)
    ]
    if not optimizers or any("scale_loss" in module.source.text for module in program.flow.modules):
        return
    for module, owner, name in _derived_from_libraries(program, optimizers):
        raise declining.decline(
            declining.APEX,
            module,
            owner.bases[0],
            f"`{owner.name}` gives an optimizer to `amp.initialize`, and leaves the loss to `{name}`, whose library "
            "imports Apex itself: with this file alone, only half of the program would be migrated away from Apex",
            "keep only torch's branch, by hand, or run the script as it is by `python -m amp_runtime.apex`",
        )
    for module, statement, name in left_unfollowed.unfound_imports(program):
        if name.split(".")[0] == "apex":
            continue
        raise declining.decline(
            declining.APEX,
            module,
            statement,
            f"`amp.initialize` is given an optimizer, nothing that was found calls `amp.scale_loss`, and `{name}` was "
            "not found in this project: with this file alone, only half of the program would be migrated away from "
            "Apex",
            "start from a folder that has it, or say where it is: in `sys.path`, the packaging, or `PYTHONPATH` in a "
            "script of the project",
        )


def _derived_from_libraries(program: Program, calls: list[ast.Call]) -> Iterator[tuple[Module, ast.ClassDef, str]]:
    """The classes around some calls whose first base is a framework's: its step is not of the project."""
    for module in program.flow.modules:
        for call in calls:
            for owner in module.ancestors(call) if call in module.parents else ():
                if isinstance(owner, ast.ClassDef) and owner.bases:
                    name = names_of(module).target(owner.bases[0])
                    if name is not None and name.startswith(OWN_FRAMEWORK):
                        yield module, owner, name


def _one_process(program: Program) -> str:
    """Why a program that keeps Apex's interface is not distributed."""
    kept = "Apex's interface stays (AMP480 says why)"
    wrapped = next(iter(program.calls_to(api.WRAPPERS | DATA_PARALLEL | DISTRIBUTED_DATA_PARALLEL)), None)
    if wrapped is None:
        return f"{kept}, and the model stays in one process"
    place = f"{name_of(program, wrapped.module)}:{wrapped.told_line}"
    if program.callee_names(wrapped.node, wrapped.scope) & DATA_PARALLEL:  # type: ignore[arg-type]
        return f"{kept}, and the script's `DataParallel` spreads the model over GPUs in one process ({place})"
    return f"{kept}, which the script's own wrapper of the model belongs to ({place})"


def _several_by_hand(reason: Refusal | None) -> str:
    """What to do for several processes where Apex's interface stays.

    How a wrapper would have to average is not known: a second backward pass through one forward, modules that take no
    part and methods of the model each need something else of it. The idiom finds that out.
    """
    if reason is None:
        return "migrate without `--apex compat`, which changes the imports only"
    return "change the place that AMP480 names, then migrate again"


def _told(program: Program, reason: Refusal) -> str:
    """The place of a reason, for people."""
    module = next((item for item in program.flow.modules if item.path == reason.path), None)
    name = name_of(program, module) if module is not None else reason.path.name
    if reason.span is None:
        return name
    line = reason.span.start.line
    cell = cell_at(program.entry.cells, line) if reason.path == program.entry.path else None
    where = f"cell {cell.number}:{line - cell.start + 1}" if cell else str(line)
    return f"{name}:{where}"
