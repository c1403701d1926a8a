"""One migration: from an entry script to the changed files and a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from amp_rules import rewrites
from amp_rules.plain_torch.written import joins_as_written
from amp_rules.plan import (
    carried_state,
    declining,
    draft_check,
    exchanges_alone,
    local_directions,
    looking_passes,
    loose_parameters,
    mixed_already,
    models_from_outside,
    next_methods,
    notes,
    own_processes,
    own_step_faults,
    prepared_always,
    rank_decisions,
    steps_apart,
    weights_of_forward,
    weights_of_libraries,
    written_buffers,
)
from amp_rules.plan import precision as precision_plan
from amp_rules.plan.added_since import with_added
from amp_rules.plan.apex.apex_programs import bring_up_to_date, migrate_apex
from amp_rules.plan.apex.stages import loads_apex_by_name, uses_apex
from amp_rules.plan.context import Change, Context
from amp_rules.plan.declining import Declined, Reasons, decline_at_first
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.migrated_before import migrated_before, without_runtime
from amp_rules.plan.notebooks import is_notebook, migrate_notebook
from amp_rules.plan.npu_notes import npu_notes
from amp_rules.plan.old_torch.modernizing import Modernized, modernized
from amp_rules.plan.options import Options
from amp_rules.plan.own_ddp.launched import launched
from amp_rules.plan.own_ddp.stage import Extended, extended
from amp_rules.plan.own_half.programs import migrate_own_half, own_half_beside_apex, prepared_in_a_branch
from amp_rules.plan.own_half.start import OwnStart
from amp_rules.plan.precision import Precision
from amp_rules.plan.report import Edit, FileChange, Note, Outcome, Refusal, Report, Unit, in_order
from amp_rules.plan.selection import Selection, without_step
from amp_rules.plan.shards.embeddings import has_large, of_whole_tables, tables_not_sharded
from amp_rules.plan.shards.sharding import not_to_be_sharded, of_whole_models
from amp_rules.plan.skipped import with_skipped
from amp_rules.plan.vocabularies import chosen
from amp_rules.roles.program import Program
from amp_rules.roles.uncalled import without_idle_steps
from amp_rules.source.digest import digest_of
from amp_rules.source.files import Files
from amp_rules.source.modules import Module
from amp_rules.source.phases import measured, phase
from amp_rules.source.project import Project
from amp_rules.source.text import SourceError, SourceFile
from amp_rules.text.actions import Action
from amp_rules.text.applying import apply


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
    of_npus = npu_notes(modules) if report.changes else ()
    of_iterators = next_methods.notes(program) if report.changes else ()
    of_steps = own_step_faults.notes(program, modules) if report.precision == "already" else ()
    read = {module.path: digest_of(module.source.data) for module in _as_read(program, originals)}
    reach = replace(program.reach(), read=read)
    started = launched(own.program, options) if report.precision == "migrated" else ""
    told = notes.in_order([*report.notes, *of_comments, *of_npus, *of_iterators, *of_steps])
    return replace(report, notes=told, launched=started, reach=reach)


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
    return replace(report, refusals=refusals)


def _without_own_half(program: Program, selection: Selection, start: OwnStart) -> Report:
    """The report for a program that had half precision by hand a moment ago."""
    if not uses_apex(program):
        return _migrate(program, selection, from_apex=True, own_start=start)
    # Apex's interface would prepare nothing any more.
    only_idiom = replace(selection, options=replace(selection.options, apex="idiom"))
    return migrate_apex(
        program,
        only_idiom,
        lambda plain, initialised: _migrate(
            plain, only_idiom, from_apex=True, initialised=initialised, own_start=start
        ),
        lambda left: _distribution_left_alone(left, selection.options),
    )


def _decided_as_it_is(program: Program, selection: Selection, half: tuple[Refusal, ...] = ()) -> Report:
    """The report for a program whose half precision by hand, if it has any, stays, for the reasons given."""
    options = selection.options
    if uses_apex(program):
        report = migrate_apex(
            program,
            selection,
            lambda plain, initialised: _migrate(plain, selection, from_apex=True, initialised=initialised),
            lambda left: _distribution_left_alone(left, options),
            half,
        )
        return _without_switch(report, program, options)
    report = _migrate(program, selection)
    if report.precision != "already":
        return report
    return bring_up_to_date(program, selection, report, lambda plain, _: _migrate(plain, selection))


def _without_switch(report: Report, program: Program, options: Options) -> Report:
    """The report, with the word that nothing was added where Apex's interface stays."""
    kept = any(item.code == notes.APEX_KEPT.code and item.span is None for item in report.notes)
    if not options.switch or not kept:
        return report
    text = "no switch in the script's arguments: `amp.initialize` stays, and the level with it"
    return replace(report, notes=(*report.notes, notes.note(notes.NO_SWITCH, program.entry, None, text)))


def _migrate(
    program: Program,
    selection: Selection,
    *,
    from_apex: bool = False,
    initialised: bool = False,
    own_start: OwnStart | None = None,
) -> Report:
    """Migrate a program without Apex, or without it by now: see :func:`precision.plan`."""
    options = selection.options
    if initialised and own_start is not None:
        raise own_half_beside_apex(program)
    refusals: list[Refusal] = []
    precision = None
    precision_outcome: Outcome = "absent"
    distribution_outcome: Outcome = "absent" if options.ddp else "not requested"
    if options.ddp and not initialised and mixed_already.has_torch_amp(program):
        return _distribute_only(program, selection)
    if not selection.precision:
        return _without_precision(program, options)
    try:
        plain = options.target == "torch"
        precision = precision_plan.plan(program, from_apex=from_apex, initialised=initialised, over_losses=plain)
        if precision is not None:
            precision_outcome = "migrated"
    except Declined as declined:
        precision_outcome = "already" if declined.already else "declined"
        refusals.extend(declined.refusals)
        # A script of another framework is told from one of PyTorch in one sentence.
        if options.ddp and declined.already and mixed_already.is_half_by_hand(program):
            beside = _distribute_only(program, selection)
            return replace(beside, precision="already", refusals=(*refusals, *beside.refusals))
        if options.ddp and declined.refusal.code != declining.OTHER_FRAMEWORK.code:
            distribution_outcome, why = _distribution_without_step(program, declined)
            refusals.append(why)
    if precision is None:
        return Report(program.entry.path, precision_outcome, distribution_outcome, refusals=tuple(refusals))
    distribution = None
    if options.ddp:
        try:
            decline_at_first(own_processes.reasons(program))
            if options.shard and initialised:
                raise not_to_be_sharded(program, "`amp.initialize` stands behind the optimizers of the models")
            if (initialised or own_start is not None) and has_large(program, options):
                raise tables_not_sharded(program, "the script says its own level, at which rows may not be float32")
            located = precision
            if initialised:
                decline_at_first(prepared_always.reasons(program, chosen(options).preparing))
                # The models are prepared already, but where they live decides how gradients are averaged.
                located = replace(precision, homes=precision_plan.homes(program))
            distribution = _distribution(program, options, located)
            distribution_outcome = "migrated"
        except Declined as declined:
            declined = (
                of_whole_models(program, declined) if options.shard else of_whole_tables(program, declined, options)
            )
            distribution_outcome = "already" if declined.already else "declined"
            # The step is migrated; whatever the reason was about, it is the distribution that is left alone.
            refusals.extend(replace(item, unit="distribution") for item in declined.refusals)
    try:
        if own_start is not None:
            decline_at_first(prepared_in_a_branch(program, precision))
        is_sharded = distribution is not None and (distribution.sharding or distribution.table_sharding) is not None
        placed = distribution.precision if distribution is not None and is_sharded else precision
        context = Context(program, options, placed, distribution, initialised, own_start=own_start)
        changes, files = _made(context, selection)
    except Declined as declined:
        refusals.extend(declined.refusals)
        if declined.refusal.unit == "distribution":
            distribution_outcome = "declined"
            try:
                context = Context(program, options, precision, None, initialised, own_start=own_start)
                changes, files = _made(context, selection)
            except Declined as step:
                declined = step
                refusals.extend(step.refusals)
        if declined.refusal.unit == "precision":
            if distribution_outcome == "migrated":
                distribution_outcome, why = _distribution_without_step(program, declined)
                refusals.append(why)
            return Report(program.entry.path, "declined", distribution_outcome, refusals=tuple(refusals))
    return Report(
        program.entry.path,
        precision_outcome,
        distribution_outcome,
        changes=files,
        edits=_edits(changes),
        refusals=tuple(refusals),
        notes=tuple(rewrites.all_notes(context)),
    )


def _made(
    context: Context, selection: Selection, unit: Unit | None = None
) -> tuple[list[Change], tuple[FileChange, ...]]:
    """What the rewrites do, as far as it is asked for, and the new texts of the files.

    Raises:
        Declined: something is not asked for that cannot be left out, or a new text is no program that could be right.
    """
    changes = rewrites.all_changes(context, lambda made: selection.settled(made, unit))
    with phase("writing texts"):
        drafts = _carry_out(changes)
    reasons = Reasons()
    with phase("checking drafts"):
        reasons.extend(draft_check.reasons(context.program, drafts, context.distribution is not None))
    reasons.decline()
    files = [FileChange(module.path, module.source.text, new.text) for module, new in drafts.items()]
    return changes, tuple(sorted(files, key=lambda item: str(item.path)))


def _without_precision(program: Program, options: Options) -> Report:
    """The report for a program whose training step is not asked for."""
    path = program.entry.path
    if not program.backwards:
        return Report(path, "absent", "absent" if options.ddp else "not requested")
    outcome: Outcome = "already" if mixed_already.has_torch_amp(program) else "not requested"
    if not options.ddp:
        return Report(path, outcome, "not requested")
    own = own_processes.own_distribution(program)
    if own is not None and own.already:
        return Report(path, outcome, "already", refusals=own.refusals)
    if own is not None:
        return Report(path, outcome, "declined", refusals=own.refusals)
    return Report(path, outcome, "declined", refusals=(without_step(path),))


def _distribution(program: Program, options: Options, precision: Precision) -> Distribution:
    """What several processes take.

    Raises:
        Declined: with every reason that was found.
    """
    distribution = Distribution(program, precision, sharded=options.shard, table_rows=options.shard_embeddings)
    reasons = Reasons()
    if distribution.sharding is not None:
        reasons.extend(distribution.sharding.reasons(distribution.reached, keeps_names=distribution.keeps_names))
    if distribution.table_sharding is not None:
        reached, ranks, keeps = distribution.reached, distribution.ranks, distribution.keeps_names
        reasons.extend(distribution.table_sharding.reasons(reached, ranks, keeps_names=keeps))
    reasons.extend(rewrites.all_refused(Context(program, options, precision, distribution)))
    reasons.extend(exchanges_alone.reasons(distribution))
    reasons.extend(rank_decisions.reasons(distribution))
    reasons.extend(loose_parameters.reasons(program))
    reasons.extend(weights_of_forward.reasons(program))
    reasons.extend(weights_of_libraries.reasons(program))
    reasons.extend(local_directions.reasons(distribution))
    reasons.extend(models_from_outside.reasons(program))
    reasons.extend(carried_state.reasons(program, distribution.batches, distribution.data))
    reasons.extend(written_buffers.reasons(program, precision, sync_bn=options.sync_bn))
    reasons.extend(steps_apart.reasons(distribution))
    reasons.extend(looking_passes.reasons_in_processes(program))
    reasons.decline()
    return distribution


def _distribute_only(program: Program, selection: Selection) -> Report:
    """Migrate a program with PyTorch's own mixed precision to several processes; its scaler stays the only one."""
    refusals: list[Refusal] = []
    changes: list[Change] = []
    told: list[Note] = []
    files: tuple[FileChange, ...] = ()
    precision: Outcome = "already"
    outcome: Outcome = "migrated"
    try:
        decline_at_first(mixed_already.beside_own_steps(program))
    except Declined as declined:
        precision = "declined"
        refusals.extend(declined.refusals)
    try:
        decline_at_first(own_processes.reasons(program))
        if selection.options.shard:
            raise not_to_be_sharded(program, "the script keeps its own scaler, which does not support shards")
        if has_large(program, selection.options):
            raise tables_not_sharded(program, "the script keeps its own scaler, which does not support sharded rows")
        kept = precision_plan.keep(program)
        distribution = _distribution(program, selection.options, kept)
        if distribution.averaging.delayed:
            raise declining.decline(
                declining.GRADIENTS_OUTSIDE,
                program.entry,
                None,
                f"{distribution.averaging.reason}: only the runtime's scaler can average the gradients at the step",
                "migrate the script without its own mixed precision, or wrap the models in DistributedDataParallel",
            )
        homes_only = Precision(homes=kept.homes)
        context = Context(program, selection.options, homes_only, distribution, keeps_precision=True)
        changes, files = _made(context, selection, "distribution")
        told.extend(rewrites.all_notes(context))
    except Declined as declined:
        options = selection.options
        declined = of_whole_models(program, declined) if options.shard else of_whole_tables(program, declined, options)
        outcome = "already" if declined.already else "declined"
        # Its precision is there; whatever the reason was about, it is the distribution that is left alone.
        refusals.extend(replace(item, unit="distribution") for item in declined.refusals)
    return Report(
        program.entry.path,
        precision,
        outcome,
        changes=files,
        edits=_edits(changes),
        refusals=tuple(refusals),
        notes=tuple(told),
    )


def _distribution_left_alone(program: Program, options: Options) -> Outcome:
    if not options.ddp:
        return "not requested"
    own = own_processes.own_distribution(program)
    return "already" if own is not None and own.already else "declined"


def _distribution_without_step(program: Program, declined: Declined) -> tuple[Outcome, Refusal]:
    """Why distribution is left alone when the step itself was not migrated."""
    try:
        decline_at_first(own_processes.reasons(program, is_understood=False))
    except Declined as own:
        return "already" if own.already else "declined", own.refusal
    cause = declined.refusal
    rule = declining.NEEDS_PRECISION
    if declined.already:
        message, recipe = (
            "the training step is run by something else, which must also distribute it",
            cause.recipe,
        )
    else:
        was_asked = cause.code == declining.ASKED_PRECISION.code
        was = "is left alone" if was_asked else "was not understood"
        # What a region or a scaler would mend for one process does not distribute anything.
        recipe = cause.recipe if was_asked or not cause.recipe else declining.STEP_FIRST
        message = f"the training step {was}: {cause.message}"
    return (
        "already" if cause.code == declining.FRAMEWORK.code else "declined",
        Refusal(cause.path, cause.span, rule.code, rule.name, "distribution", message, recipe),
    )


def _carry_out(changes: list[Change]) -> dict[Module, draft_check.New]:
    """The new texts of the files that change."""
    actions: defaultdict[Module, list[Action]] = defaultdict(list)
    for change in changes:
        actions[change.module].extend(change.actions)
    texts = {module: draft_check.New(todo, apply(module, todo)) for module, todo in actions.items()}
    return {module: new for module, new in texts.items() if new.text != module.source.text}


def _edits(changes: list[Change]) -> tuple[Edit, ...]:
    found = [
        Edit(
            change.module.path,
            change.module.span(change.node),
            change.rule.code,
            change.rule.name,
            change.message,
        )
        for change in changes
    ]
    return in_order(found)
