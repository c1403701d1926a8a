"""What is decided on one program in the runtime's words, without Apex: precision, distribution, and the new texts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from amp_rules import rewrites
from amp_rules.plan import (
    carried_state,
    declining,
    draft_check,
    drawn_on_import,
    exchanges_alone,
    idle_imports,
    local_directions,
    looking_passes,
    loose_parameters,
    mixed_already,
    models_from_outside,
    own_processes,
    prepared_always,
    prepared_some,
    rank_decisions,
    searched_settings,
    steps_apart,
    weights_of_forward,
    weights_of_libraries,
    written_buffers,
)
from amp_rules.plan import precision as precision_plan
from amp_rules.plan.context import Change, Context
from amp_rules.plan.declining import Declined, Reasons, decline_at_first
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.options import Options
from amp_rules.plan.own_half.programs import own_half_beside_apex, prepared_in_a_branch
from amp_rules.plan.own_half.start import OwnStart
from amp_rules.plan.precision import Precision
from amp_rules.plan.report import Edit, FileChange, Note, Outcome, Refusal, Report, Unit, in_order
from amp_rules.plan.selection import Selection, without_step
from amp_rules.plan.shards.embeddings import has_large, of_whole_tables, tables_not_sharded
from amp_rules.plan.shards.sharding import not_to_be_sharded, of_whole_models
from amp_rules.plan.vocabularies import chosen
from amp_rules.roles.program import Program
from amp_rules.roles.uncalled import uncalled
from amp_rules.source.modules import Module
from amp_rules.source.phases import phase
from amp_rules.text.actions import Action
from amp_rules.text.applying import apply


def decided_on(
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
        is_run_by_framework = declined.refusal.code == declining.FRAMEWORK.code
        if options.ddp and declined.already and not is_run_by_framework and mixed_already.is_half_by_hand(program):
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
                decline_at_first(prepared_some.reasons(program, chosen(options).preparing))
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
        texts = {module: new.text for module, new in drafts.items()}
        idle = selection.asked_for(idle_imports.changes(context, changes, texts))
        if idle:
            changes = [*changes, *idle]
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
    distribution = Distribution(program, precision, options)
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
    reasons.extend(searched_settings.reasons(program))
    reasons.extend(drawn_on_import.reasons(program, distribution.precision))
    reasons.extend(models_from_outside.reasons(program))
    reasons.extend(carried_state.reasons(program, distribution.batches, distribution.data))
    reasons.extend(written_buffers.reasons(program, precision, sync_bn=options.sync_bn))
    reasons.extend(steps_apart.reasons(distribution))
    reasons.extend(looking_passes.reasons_in_processes(program))
    reasons.drop(lambda refusal: _is_idle(program, refusal))
    reasons.decline()
    return distribution


def _is_idle(program: Program, refusal: Refusal) -> bool:
    """Whether the place of a reason is in a function that nothing calls: no process of this script comes there."""
    span = refusal.span
    return span is not None and any(
        module.span(body).start <= span.start and span.end <= module.span(body).end
        for body in uncalled(program)
        if (module := program.module_of(body)) is not None and module.path == refusal.path
    )


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
        decline_at_first(mixed_already.frameworks(program))
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


def left_alone(program: Program, options: Options) -> Outcome:
    """What becomes of the distribution of a program whose Apex is left as it is."""
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
