"""The way from a report in the runtime's words to one in torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from amp_rules.plain_torch import by_hand, index_writes, leaving, raising, replicas, telling
from amp_rules.plain_torch.generators import DRAWS_FROM_NUMPY
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.unbound import unbound_names
from amp_rules.plain_torch.words import WORDS, unknown
from amp_rules.plan import declining, notes
from amp_rules.plan.declining import Declined, Reasons
from amp_rules.plan.drafts import Draft, drafted
from amp_rules.plan.options import Options
from amp_rules.plan.report import FileChange, Note, Refusal, Report
from amp_rules.roles.program import Program
from amp_rules.source.modules import Module


def in_plain_torch(
    report: Report, program: Program, options: Options, without_distribution: Callable[[], Report]
) -> Report:
    """The report of a migration, with torch's own words in the files.

    Args:
        report: the report in the runtime's words.
        program: the program that it is about, before the migration.
        options: what was asked for.
        without_distribution: decides again, for one process.
    """
    report = replace(report, refusals=telling.refusals_of_migration(report.refusals))
    if not report.changes:
        return report
    drafts = {module.path: Draft.of(module, frozenset()) for module in program.flow.modules}
    for change in report.changes:
        drafts[change.path].become(change.after)
    translation = Translation(drafted(program, drafts), options)
    try:
        if report.distribution == "migrated" and not translation.is_distributed:
            raise _defect(program.entry, "has several processes, and no place where they join")
        telling.of_several_gpus(report.edits, translation)
        texts = _texts(translation, drafts)
    except Declined as declined:
        refusals = tuple(_placed(item, drafts) for item in declined.refusals)
        return _declined(report, program, options, refusals, without_distribution)
    changes = {change.path: change for change in report.changes}
    for path, text in texts.items():
        before = changes[path].before if path in changes else drafts[path].original.source.text
        changes[path] = FileChange(path, before, text)
    kept = tuple(change for change in changes.values() if not _is_same(change.before, change.after))
    return replace(
        report,
        changes=kept,
        edits=telling.of_migration(report, kept, distributed=translation.is_distributed),
        notes=(*telling.notes_of_migration(report.notes), *_limits(translation, drafts)),
    )


def from_runtime(report: Report, program: Program, options: Options) -> Report:
    """The report for a program that uses the runtime since an earlier migration, and is to use torch alone.

    Args:
        report: what is to be said of it where it keeps the runtime.
        program: the program.
        options: what was asked for.
    """
    drafts = {module.path: Draft.of(module, frozenset()) for module in program.flow.modules}
    translation = Translation(program, options)
    try:
        texts = _texts(translation, drafts, by_hand.reasons(program, translation.uses))
    except Declined as declined:
        return replace(
            report,
            precision="declined",
            distribution="declined" if options.ddp or translation.is_distributed else report.distribution,
            refusals=(*report.refusals, *declined.refusals),
        )
    before = {path: drafts[path].original.source.text for path in texts}
    changes = [FileChange(path, before[path], text) for path, text in texts.items() if not _is_same(before[path], text)]
    has_precision = any(use.path.split(".")[0] in ("autocast", "scaler") for use in translation.uses)
    return replace(
        report,
        precision="migrated" if has_precision else report.precision,
        distribution="migrated" if translation.is_distributed else report.distribution,
        changes=tuple(sorted(changes, key=lambda item: str(item.path))),
        edits=telling.of_uses(translation.uses),
        notes=(*report.notes, *_limits(translation, drafts)),
    )


def _is_same(before: str, after: str) -> bool:
    """Whether two texts of a file differ in nothing but blank lines, as where a line that came to it went again."""
    return before == after or [row for row in before.splitlines() if row.strip()] == [
        row for row in after.splitlines() if row.strip()
    ]


def _texts(translation: Translation, drafts: dict[Path, Draft], known: Iterable[Declined] = ()) -> dict[Path, str]:
    """The new texts, unless one of them reads a name that is not bound there.

    Args:
        translation: the program on its way.
        drafts: its files.
        known: what stands against it already.

    Raises:
        Declined: something has no words in torch, or a text is wrong.
    """
    reasons = Reasons()
    reasons.extend(known)
    reasons.extend(by_hand.parts(translation.program))
    texts: dict[Path, str] = {}
    with reasons.collecting():
        translation.at_end(lambda: index_writes.convert(translation))
        translation.at_end(lambda: leaving.widen(translation))
        translation.at_end(lambda: raising.decline(translation))
        translation.at_end(lambda: replicas.decline(translation))
        texts = translation.texts(WORDS, unknown)
    reasons.decline()
    for path, text in texts.items():
        original = drafts[path].original
        names = sorted(unbound_names(text) - unbound_names(original.source.text))
        if names:
            raise _defect(original, f"reads `{names[0]}` where it may not be bound")
    _needs_numpy(translation, {drafts[path].original: text for path, text in texts.items()})
    return texts


def _needs_numpy(translation: Translation, texts: dict[Module, str]) -> None:
    """Note where the new code needs NumPy and nothing else of the program does: torch installs without it."""
    imported = {name.split(".")[0] for name in translation.program.flow.imported}
    if not imported & (DRAWS_FROM_NUMPY | {"numpy"}):
        for module, text in texts.items():
            if _OBJECTS in text and _OBJECTS not in module.source.text:
                translation.cannot_keep(
                    module, f"training without NumPy: with several processes, `{_OBJECTS}` needs it"
                )


_OBJECTS = "broadcast_object_list"


def _defect(module: Module, what: str) -> Declined:
    return declining.decline(
        declining.DRAFT,
        module,
        None,
        f"a bug in amp-migrate, not in the script: its draft {what}",
        "report it with the lines that it is about; until it is fixed, migrate with --target runtime",
    )


def _declined(
    report: Report,
    program: Program,
    options: Options,
    refusals: tuple[Refusal, ...],
    without_distribution: Callable[[], Report],
) -> Report:
    of_precision = any(item.unit == "precision" for item in refusals)
    if options.ddp and not of_precision and report.precision == "migrated":
        alone = in_plain_torch(without_distribution(), program, replace(options, ddp=False), without_distribution)
        return replace(alone, distribution="declined", refusals=(*alone.refusals, *refusals))
    return replace(
        report,
        precision="declined" if report.precision == "migrated" else report.precision,
        distribution="declined" if report.distribution == "migrated" else report.distribution,
        changes=(),
        edits=(),
        refusals=(*report.refusals, *refusals),
        notes=(),
    )


def _placed(item: Refusal, drafts: dict[Path, Draft]) -> Refusal:
    """A refusal that speaks of a draft, as one that speaks of the file on disk."""
    draft = drafts.get(item.path)
    if draft is None:
        return item
    span = draft.place(item.span) if item.span is not None else None
    return replace(item, span=span, message=telling.of_file(item.message, draft))


def _limits(translation: Translation, drafts: dict[Path, Draft]) -> list[Note]:
    rule = notes.PLAIN_TORCH
    return [
        Note(module.path, None, rule.code, rule.name, f"plain torch does not keep {sentence}")
        for module, sentences in translation.limits.items()
        for sentence in sorted(sentences, key=sentences.__getitem__)
    ]
