"""Migrating a program that uses Apex: by rewriting it, or by changing its imports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from amp_rules.legacy import stages
from amp_rules.legacy.file import NotUnderstood
from amp_rules.legacy.stages import Draft
from amp_rules.options import Options
from amp_rules.planning import refusal
from amp_rules.program.modules import Module
from amp_rules.program.project import Project
from amp_rules.program.steps import Program
from amp_rules.report import Edit, FileChange, Outcome, Refusal, Report, in_order

MigratePlain = Callable[[Program, bool], Report]

_INITIALIZE = "AMP404"


class _Left(Exception):
    """The program cannot be rewritten; says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def migrate_apex(
    program: Program,
    options: Options,
    migrate_plain: MigratePlain,
    distribution: Callable[[Program], Outcome],
) -> Report:
    """Migrate a program that uses Apex.

    Args:
        program: the program.
        options: what was asked for.
        migrate_plain: the migration of a program without Apex; told whether it is initialised already.
        distribution: what is to be said about several processes when nothing is done about them.
    """
    reason: Refusal | None = None
    if options.apex != "compat":
        try:
            return _by_idiom(program, options, migrate_plain)
        except NotUnderstood as left:
            reason = _refusal(
                left.module,
                left,
                "migrate with --apex compat, which changes the imports only, or rewrite this place by hand",
            )
        except _Left as left:
            reason = left.refusal
        if options.apex == "idiom":
            return _declined(program, distribution(program), (reason,))
    try:
        return _by_imports(program, options, reason, distribution(program))
    except NotUnderstood as left:
        missing = _refusal(left.module, left, "replace this part by PyTorch's own, then migrate again")
        reasons = (missing,) if reason is None else (reason, missing)
        return _declined(program, distribution(program), reasons)


def bring_up_to_date(program: Program, options: Options, report: Report, migrate_plain: MigratePlain) -> Report:
    """The report for a program that keeps its own mixed precision, now under its present names."""
    drafts = {draft.original.path: draft for draft in stages.up_to_date(program, options)}
    if drafts and report.changes:
        return _joined(program, drafts, migrate_plain(_drafted(program, drafts), False))
    if drafts:
        return replace(report, changes=_changes(drafts.values()), edits=_edits(drafts.values()))
    return report


def _declined(program: Program, distribution: Outcome, reasons: tuple[Refusal, ...]) -> Report:
    refusals = (*reasons, *_not_distributed(program, distribution, reasons[0].message, reasons[0].recipe))
    return Report(program.entry.path, "declined", distribution, refusals=refusals)


def _not_distributed(program: Program, distribution: Outcome, message: str, recipe: str) -> tuple[Refusal, ...]:
    """The reason for leaving the distribution alone, where it was asked for and is not there."""
    if distribution != "declined":
        return ()
    rule = refusal.NEEDS_PRECISION
    return (Refusal(program.entry.path, None, rule.code, rule.name, rule.unit, message, recipe),)


def _drafted(program: Program, drafts: Mapping[Path, Draft]) -> Program:
    texts = {path: draft.module.source for path, draft in drafts.items()}
    return Program(Project(program.entry.path, program.project.files.with_texts(texts)))


def _refusal(module: Module, left: NotUnderstood, recipe: str) -> Refusal:
    rule = refusal.APEX
    return Refusal(module.path, left.span, rule.code, rule.name, rule.unit, left.reason, recipe)


def _by_idiom(program: Program, options: Options, migrate_plain: MigratePlain) -> Report:
    with_amp = stages.calls_amp(program)
    drafts = {draft.original.path: draft for draft in stages.idiom(program, options)}
    initialised = any(edit.code == _INITIALIZE for draft in drafts.values() for edit in draft.edits)
    report = _joined(program, drafts, migrate_plain(_drafted(program, drafts), initialised))
    if with_amp and (not initialised or report.precision != "migrated"):
        raise _Left(_why_not(program, report.refusals))
    if initialised:
        note = "the level stays the script's own, as it was given to amp.initialize; AMP_OPT_LEVEL overrides it"
        report = replace(report, notes=(*report.notes, note))
    return report


def _joined(program: Program, drafts: Mapping[Path, Draft], report: Report) -> Report:
    """The report of the drafted program as one of the program on disk."""
    changes = {change.path: change.after for change in report.changes}
    files = []
    for module in program.flow.modules:
        after = changes.get(module.path)
        if after is None and module.path in drafts:
            after = drafts[module.path].module.source.text
        if after is not None and after != module.source.text:
            files.append(FileChange(module.path, module.source.text, after))
    edits = [edit for draft in drafts.values() for edit in draft.edits]
    for edit in report.edits:
        draft = drafts.get(edit.path)
        edits.append(edit if draft is None else replace(edit, span=draft.place(edit.span)))
    return replace(
        report,
        changes=tuple(sorted(files, key=lambda item: str(item.path))),
        edits=in_order(edits),
        refusals=tuple(_placed(item, drafts) for item in report.refusals),
    )


def _placed(item: Refusal, drafts: Mapping[Path, Draft]) -> Refusal:
    """A refusal of the drafted program at its place in the program on disk."""
    draft = drafts.get(item.path)
    if draft is None or item.span is None:
        return item
    return replace(item, span=draft.place(item.span))


def _why_not(program: Program, refusals: tuple[Refusal, ...]) -> Refusal:
    for item in refusals:
        if item.unit == "precision":
            return item
    rule = refusal.APEX
    message = "no training step was found that what `amp.initialize` prepares belongs to"
    recipe = "migrate with --apex compat, which changes the imports only"
    return Refusal(program.entry.path, None, rule.code, rule.name, rule.unit, message, recipe)


def _by_imports(program: Program, options: Options, reason: Refusal | None, distribution: Outcome) -> Report:
    drafts = stages.compatible(program, options)
    notes: tuple[str, ...] = ("Apex's interface stays: the runtime has it",)
    if reason is not None:
        line = f":{reason.span.start.line}" if reason.span is not None else ""
        notes = (f"Apex's interface stays, from the runtime, because {reason.path.name}{line}: {reason.message}",)
    return Report(
        program.entry.path,
        "migrated",
        distribution,
        changes=_changes(drafts),
        edits=_edits(drafts),
        refusals=_not_distributed(
            program,
            distribution,
            "Apex's interface stays, which the script's own wrapper of the model belongs to",
            "wrap the model in `DistributedDataParallel` after `amp.initialize`, and give its loader a "
            "`DistributedSampler`",
        ),
        notes=notes,
    )


def _changes(drafts: Iterable[Draft]) -> tuple[FileChange, ...]:
    found = [FileChange(draft.original.path, draft.original.source.text, draft.module.source.text) for draft in drafts]
    return tuple(sorted(found, key=lambda item: str(item.path)))


def _edits(drafts: Iterable[Draft]) -> tuple[Edit, ...]:
    return in_order(edit for draft in drafts for edit in draft.edits)
