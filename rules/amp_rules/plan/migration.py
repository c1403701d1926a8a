"""One migration: from an entry script to the changed files and a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from amp_rules.plain_torch.written import joins_as_written
from amp_rules.plan import (
    asserted_versions,
    declining,
    ends_early,
    methods_of_optimizers,
    modules_not_read,
    next_methods,
    notes,
    own_refused_losses,
    own_shard_faults,
    own_step_faults,
    own_unsaved_scale,
    parameters_of_replicas,
    undefined_names,
    unsaved_scale,
)
from amp_rules.plan.added_since import with_added
from amp_rules.plan.apex.apex_programs import bring_up_to_date, migrate_apex
from amp_rules.plan.apex.stages import initializing, loads_apex_by_name, uses_apex
from amp_rules.plan.migrated_before import migrated_before, without_runtime
from amp_rules.plan.notebooks import is_notebook, migrate_notebook
from amp_rules.plan.npu_notes import mps_notes, npu_notes
from amp_rules.plan.old_torch import refused
from amp_rules.plan.old_torch.modernizing import Modernized, modernized
from amp_rules.plan.options import Options
from amp_rules.plan.own_ddp.launched import asks_for_arguments, launched
from amp_rules.plan.own_ddp.stage import Extended, extended
from amp_rules.plan.own_half.programs import migrate_own_half
from amp_rules.plan.own_half.start import OwnStart
from amp_rules.plan.report import Note, Refusal, Report
from amp_rules.plan.selection import Selection
from amp_rules.plan.skipped import with_skipped
from amp_rules.plan.units import decided_on, left_alone
from amp_rules.roles.program import Program
from amp_rules.roles.uncalled import without_idle_steps
from amp_rules.source.digest import digest_of
from amp_rules.source.files import Files
from amp_rules.source.modules import Module
from amp_rules.source.phases import measured, phase
from amp_rules.source.project import Project
from amp_rules.source.text import SourceError, SourceFile


def migrate(
    entry: Path,
    options: Options,
    *,
    overrides: Mapping[Path, SourceFile] | None = None,
    files: Files | None = None,
) -> Report:
    """Decide on one entry script and what it imports, and carry the decision out in memory.

    Args:
        entry: the script that is run; of a notebook, ``overrides`` or ``files`` must hold the joined text.
        options: what was asked for.
        overrides: texts to use in place of what is on disk.
        files: what is on disk, with ``overrides`` in it, for all entries of a run together.

    Raises:
        SourceError: the entry cannot be read.
    """
    files = files or Files(overrides)
    with measured("deciding") as seconds:
        report = _migrate_known(entry, options, files)
    return replace(report, seconds=tuple(seconds.items()))


def _migrate_known(entry: Path, options: Options, files: Files) -> Report:
    try:
        return _migrate_file(entry, options, files)
    except RecursionError:
        # Values are followed by work lists, so this comes of a tree that is deep itself, as tables written by a program
        # are. One such table should not keep the scripts that import it from being understood.
        shallow = files.without_deep()
        if shallow is None:
            # No file is deep: the recursion is a mistake of this program, and is reported as one.
            raise
    return _migrate_file(entry, options, shallow)


def _migrate_file(entry: Path, options: Options, files: Files) -> Report:
    if is_notebook(entry):
        source = files.source(entry.resolve())
        return migrate_notebook(source, options, lambda changed: _migrate_entry(entry, changed, files))
    return _migrate_entry(entry, options, files)


def _migrate_entry(entry: Path, options: Options, files: Files) -> Report:
    if options.target == "torch":
        # What is not understood of Apex cannot have its interface from torch.
        options = replace(options, apex="idiom")
    selection = Selection.of(options)
    with phase("old interfaces"):
        modern = _modern(entry, files, selection)
    program = modern.program
    with phase("processes of its own"):
        own = Extended(program) if joins_as_written(program) else extended(program, selection)
    report = modern.joined(own.joined(_decided(own.program, selection)))
    originals = {path: draft.original for path, draft in modern.drafts.items()}
    modules = [originals.get(module.path, module) for module in program.flow.modules]
    report = with_skipped(report, modules, selection)
    of_comments = selection.notes(modules, report.precision, report.distribution)
    of_npus = [*npu_notes(modules), *mps_notes(modules)] if report.changes else []
    of_iterators = next_methods.notes(program) if report.changes else ()
    of_unread = modules_not_read.notes(program) if report.precision == "migrated" else ()
    of_ends = [*ends_early.notes(program), *undefined_names.notes(program)] if report.changes else []
    of_refused = (
        refused.notes(program) if report.changes and selection.options.modernize is None and not modern.drafts else ()
    )
    # With processes of its own for each GPU, a migrated script spreads its model no more.
    of_replicas = (
        parameters_of_replicas.notes(program, own.program)
        if report.changes and report.distribution != "migrated"
        else ()
    )
    of_optimizers = methods_of_optimizers.notes(program) if report.changes else ()
    # What becomes of half precision by hand is told where that goes.
    codes = {edit.code for edit in report.edits}
    is_told = not {"AMP118", "AMP420"}.isdisjoint(codes)
    if uses_apex(program):
        is_told = "AMP404" not in codes or not any(map(unsaved_scale.finds_scale, initializing(program)))
    is_scaled = report.precision == "migrated" and options.dtype != "bf16" and selection.wants("AMP118")
    of_scale = unsaved_scale.notes(program) if is_scaled and not is_told else ()
    of_versions = asserted_versions.notes(program) if report.changes else ()
    of_own: list[Note] = []
    if report.precision == "already":
        of_own += own_step_faults.notes(program, modules)
        of_own += own_shard_faults.notes(program)
        of_own += own_refused_losses.notes(program)
        of_own += own_unsaved_scale.notes(program)
    read = {module.path: digest_of(module.source.data) for module in _as_read(program, originals)}
    reach = replace(program.reach(), read=read)
    started = launched(own.program, options) if report.precision == "migrated" else ""
    told = notes.in_order(
        [
            *report.notes,
            *of_comments,
            *of_npus,
            *of_iterators,
            *of_unread,
            *of_ends,
            *of_refused,
            *of_replicas,
            *of_optimizers,
            *of_scale,
            *of_versions,
            *of_own,
        ]
    )
    asks = "migrated" in (report.precision, report.distribution) and asks_for_arguments(own.program)
    return replace(report, notes=told, launched=started, asks=asks, reach=reach)


def _as_read(program: Program, originals: Mapping[Path, Module]) -> list[Module]:
    """The files that the program rests on, without what a draft made of them."""
    return [originals.get(module.path, module) for module in program.project.modules]


def _modern(entry: Path, files: Files, selection: Selection) -> Modernized:
    """The program, brought up to a current PyTorch: where that is asked for, or by default where it uses Apex."""
    if selection.options.modernize:
        return modernized(entry, files, selection)
    try:
        program = without_idle_steps(Program(Project(entry, files)))
    except SourceError:
        modern = _readable(entry, files, selection)
        if modern is None:
            raise
        return modern
    if selection.options.modernize is None and (uses_apex(program) or loads_apex_by_name(program)):
        return modernized(entry, files, selection, program, is_asked=False)
    return Modernized(program)


def _readable(entry: Path, files: Files, selection: Selection) -> Modernized | None:
    """A program that uses Apex and does not parse before it is brought up to date: ``async=`` is an argument in it."""
    if selection.options.modernize is not None:
        return None
    try:
        modern = modernized(entry, files, selection, is_asked=False)
    except SourceError:
        return None
    return modern if uses_apex(modern.program) else None


def _decided(program: Program, selection: Selection) -> Report:
    options = selection.options
    migrated = migrated_before(program, options)
    if migrated is not None:
        return migrated if options.target == "runtime" else without_runtime(program, options, migrated)
    if options.target == "runtime":
        return with_added(_decided_now(program, selection), program)
    # Seventy files, which others do not need.
    from amp_rules.plain_torch.stage import in_plain_torch

    alone = Selection.of(replace(options, ddp=False))
    report = in_plain_torch(_decided_now(program, selection), program, options, lambda: _decided_now(program, alone))
    return with_added(report, program)


def _decided_now(program: Program, selection: Selection) -> Report:
    """The report for a program that does not use the runtime yet, in the runtime's words."""
    if selection.options.apex == "compat" and uses_apex(program):
        return _decided_as_it_is(program, selection)
    own = migrate_own_half(program, selection, lambda plain, start: _without_own_half(plain, selection, start))
    if own.report is not None:
        return own.report
    report = _decided_as_it_is(program, selection, own.refusals)
    if not own.refusals or report.precision == "migrated":
        return report
    refusals = (*own.refusals, *(item for item in report.refusals if item.unit != "precision"))
    if own.refusals[0].code == declining.ASKED_APEX.code:
        return replace(report, precision="declined", changes=(), edits=(), refusals=refusals)
    return replace(report, refusals=(*_says_already(report, own.refusals), *refusals))


def _says_already(report: Report, others: tuple[Refusal, ...]) -> tuple[Refusal, ...]:
    """What says that a program has its own half precision, where the others only say why that cannot be taken out."""
    code = declining.ALREADY_MIXED.code
    if report.precision != "already" or any(item.code == code for item in others):
        return ()
    return tuple(item for item in report.refusals if item.code == code)[:1]


def _without_own_half(program: Program, selection: Selection, start: OwnStart) -> Report:
    """The report for a program that had half precision by hand a moment ago."""
    if not uses_apex(program):
        return decided_on(program, selection, from_apex=True, own_start=start)
    # Apex's interface would prepare nothing any more.
    only_idiom = replace(selection, options=replace(selection.options, apex="idiom"))
    return migrate_apex(
        program,
        only_idiom,
        lambda plain, initialised: decided_on(
            plain, only_idiom, from_apex=True, initialised=initialised, own_start=start
        ),
        lambda left: left_alone(left, selection.options),
        was_half=True,
    )


def _decided_as_it_is(program: Program, selection: Selection, half: tuple[Refusal, ...] = ()) -> Report:
    """The report for a program whose half precision by hand, if it has any, stays, for the reasons given."""
    options = selection.options
    if uses_apex(program):
        report = migrate_apex(
            program,
            selection,
            lambda plain, initialised: decided_on(plain, selection, from_apex=True, initialised=initialised),
            lambda left: left_alone(left, options),
            half,
        )
        return _without_switch(report, program, options)
    report = decided_on(program, selection)
    if report.precision != "already":
        return report
    return bring_up_to_date(program, selection, report, lambda plain, _: decided_on(plain, selection))


def _without_switch(report: Report, program: Program, options: Options) -> Report:
    """The report, with the word that nothing was added where Apex's interface stays."""
    kept = any(item.code == notes.APEX_KEPT.code and item.span is None for item in report.notes)
    if not options.switch or not kept:
        return report
    text = "no switch in the script's arguments: `amp.initialize` stays, and the level with it"
    return replace(report, notes=(*report.notes, notes.note(notes.NO_SWITCH, program.entry, None, text)))
