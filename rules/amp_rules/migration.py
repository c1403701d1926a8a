"""One migration: from an entry script to the changed files and a report."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from amp_rules import codemods
from amp_rules.codemods import init
from amp_rules.context import Change, Context
from amp_rules.legacy.migration import bring_up_to_date, migrate_apex
from amp_rules.legacy.stages import uses_apex
from amp_rules.modern.migration import Modernized, modernized
from amp_rules.notebooks import is_notebook, migrate_notebook
from amp_rules.options import Options
from amp_rules.planning import distribution as distribution_plan
from amp_rules.planning import precision as precision_plan
from amp_rules.planning import refusal
from amp_rules.planning.asked import Asked, place, without_step
from amp_rules.planning.refusal import Declined
from amp_rules.program import blocks
from amp_rules.program.files import Files
from amp_rules.program.flow import is_main_guard
from amp_rules.program.modules import Module
from amp_rules.program.project import Project
from amp_rules.program.source import SourceFile
from amp_rules.program.steps import Program
from amp_rules.report import Edit, FileChange, Outcome, Refusal, Report, Unit, in_order
from amp_rules.rewrite import Action, apply


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
    try:
        return _migrate_file(entry, options, files)
    except RecursionError:
        # One table nested by a program should not keep the scripts that import it from being understood.
        shallow = files.without_deep()
        if shallow is None:
            raise
    return _migrate_file(entry, options, shallow)


def _migrate_file(entry: Path, options: Options, files: Files) -> Report:
    if is_notebook(entry):
        source = files.source(entry.resolve())
        return migrate_notebook(source, options, lambda changed: _migrate_entry(entry, changed, files))
    return _migrate_entry(entry, options, files)


def _migrate_entry(entry: Path, options: Options, files: Files) -> Report:
    asked = Asked.of(options)
    modern = modernized(entry, files, asked) if asked.options.modernize else Modernized(Program(Project(entry, files)))
    program = modern.program
    report = modern.joined(_decided(program, asked))
    originals = {path: draft.original for path, draft in modern.drafts.items()}
    modules = [originals.get(module.path, module) for module in program.flow.modules]
    notes = tuple(asked.notes(modules, report.precision, report.distribution))
    return replace(report, notes=(*report.notes, *notes), reach=program.reach())


def _decided(program: Program, asked: Asked) -> Report:
    options = asked.options
    migrated = _migrated_before(program, options)
    if migrated is not None:
        return migrated
    if uses_apex(program):
        return migrate_apex(
            program,
            asked,
            lambda plain, initialised: _migrate(plain, asked, from_apex=True, initialised=initialised),
            lambda left: _distribution_left_alone(left, options),
        )
    report = _migrate(program, asked)
    if report.precision != "already":
        return report
    return bring_up_to_date(program, asked, report, lambda plain, _: _migrate(plain, asked))


def _migrate(program: Program, asked: Asked, *, from_apex: bool = False, initialised: bool = False) -> Report:
    """Migrate a program without Apex, or without it by now: see :func:`precision.plan`."""
    options = asked.options
    refusals: list[Refusal] = []
    precision = None
    precision_outcome: Outcome = "absent"
    distribution_outcome: Outcome = "absent" if options.ddp else "not requested"
    if options.ddp and not initialised and precision_plan.has_torch_amp(program):
        return _distribute_only(program, asked)
    if not asked.precision:
        return _without_precision(program, options)
    try:
        precision = precision_plan.plan(program, from_apex=from_apex, initialised=initialised)
        if precision is not None:
            precision_outcome = "migrated"
    except Declined as declined:
        precision_outcome = "already" if declined.already else "declined"
        refusals.append(declined.refusal)
        if options.ddp:
            distribution_outcome, why = _distribution_without_step(program, declined)
            refusals.append(why)
    if precision is None:
        return Report(program.entry.path, precision_outcome, distribution_outcome, refusals=tuple(refusals))
    distribution = None
    if options.ddp:
        try:
            distribution_plan.check_own(program)
            located = precision
            if initialised:
                _check_prepared_always(program)
                # The models are prepared already, but where they live decides how gradients are averaged.
                located = replace(precision, homes=precision_plan.homes(program))
            distribution = distribution_plan.plan(program, located)
            distribution_outcome = "migrated"
        except Declined as declined:
            distribution_outcome = "already" if declined.already else "declined"
            # The step is migrated; whatever the reason was about, it is the distribution that is left alone.
            refusals.append(replace(declined.refusal, unit="distribution"))
    try:
        changes = _changes(Context(program, options, precision, distribution, initialised), asked)
    except Declined as declined:
        refusals.append(declined.refusal)
        if declined.refusal.unit == "distribution":
            distribution_outcome = "declined"
            try:
                changes = _changes(Context(program, options, precision, None, initialised), asked)
            except Declined as step:
                declined = step
                refusals.append(step.refusal)
        if declined.refusal.unit == "precision":
            if distribution_outcome == "migrated":
                distribution_outcome, why = _distribution_without_step(program, declined)
                refusals.append(why)
            return Report(program.entry.path, "declined", distribution_outcome, refusals=tuple(refusals))
    return Report(
        program.entry.path,
        precision_outcome,
        distribution_outcome,
        changes=_carry_out(changes),
        edits=_edits(changes),
        refusals=tuple(refusals),
    )


def _changes(context: Context, asked: Asked, unit: Unit | None = None) -> list[Change]:
    """What the rewrites do, as far as it is asked for.

    Raises:
        Declined: something is not asked for that cannot be left out.
    """
    made = asked.settled(codemods.all_changes(context), unit)
    return [*asked.settled(init.start(context, made), unit), *made]


def _without_precision(program: Program, options: Options) -> Report:
    """The report for a program whose training step is not asked for."""
    path = program.entry.path
    if not program.backwards:
        return Report(path, "absent", "absent" if options.ddp else "not requested")
    outcome: Outcome = "already" if precision_plan.has_torch_amp(program) else "not requested"
    if not options.ddp:
        return Report(path, outcome, "not requested")
    return Report(path, outcome, "declined", refusals=(without_step(path),))


def _check_prepared_always(program: Program) -> None:
    """Decline when a model is prepared under a condition: without it, nothing would average its gradients."""
    for site in program.calls_to(frozenset({"amp_runtime.prepare_model"})):
        for parent in blocks.enclosing(site.module, site.node):
            if isinstance(parent, ast.If) and not is_main_guard(parent):
                raise refusal.decline(
                    refusal.GRADIENTS_OUTSIDE,
                    site.module,
                    parent,
                    f"the model is prepared only where `{site.module.text(parent.test)}` holds",
                    "move `amp.init(...)` and `amp.prepare_model(...)` out of the condition, with the condition in "
                    "`enabled=`",
                )


def _distribute_only(program: Program, asked: Asked) -> Report:
    """Migrate a program with PyTorch's own mixed precision to several processes; its scaler stays the only one."""
    refusals: list[Refusal] = []
    changes: list[Change] = []
    outcome: Outcome = "migrated"
    try:
        distribution_plan.check_own(program)
        kept = precision_plan.keep(program)
        distribution = distribution_plan.plan(program, kept)
        if distribution.delay:
            raise refusal.decline(
                refusal.GRADIENTS_OUTSIDE,
                program.entry,
                None,
                f"{distribution.delay_reason}: only the runtime's scaler can average the gradients at the step",
                "migrate the script without its own mixed precision, or wrap the models in DistributedDataParallel",
            )
        homes_only = precision_plan.Precision(homes=kept.homes, reloads=kept.reloads)
        context = Context(program, asked.options, homes_only, distribution, keeps_precision=True)
        changes = _changes(context, asked, "distribution")
    except Declined as declined:
        outcome = "already" if declined.already else "declined"
        # Its precision is there; whatever the reason was about, it is the distribution that is left alone.
        refusals.append(replace(declined.refusal, unit="distribution"))
    return Report(
        program.entry.path,
        "already",
        outcome,
        changes=_carry_out(changes),
        edits=_edits(changes),
        refusals=tuple(refusals),
    )


def _distribution_left_alone(program: Program, options: Options) -> Outcome:
    if not options.ddp:
        return "not requested"
    return "already" if _distributes_itself(program) else "declined"


def _distribution_without_step(program: Program, declined: Declined) -> tuple[Outcome, Refusal]:
    """Why distribution is left alone when the step itself was not migrated."""
    try:
        distribution_plan.check_own(program)
    except Declined as own:
        return "already", own.refusal
    cause = declined.refusal
    rule = refusal.NEEDS_PRECISION
    if declined.already:
        message, recipe = (
            "the training step is run by something else, which must also distribute it",
            cause.recipe,
        )
    else:
        was = "is left alone" if cause.code == refusal.ASKED_PRECISION.code else "was not understood"
        message, recipe = f"the training step {was}: {cause.message}", cause.recipe
    return (
        "already" if cause.code == refusal.FRAMEWORK.code else "declined",
        Refusal(cause.path, cause.span, rule.code, rule.name, "distribution", message, recipe),
    )


def _migrated_before(program: Program, options: Options) -> Report | None:
    """The report for a script that uses the runtime already."""
    if not any(_starts_runtime(module) for module in program.flow.modules):
        return None
    is_distributed = any(item.arg == "ddp" for _, call in _init_calls(program) for item in call.keywords)
    refusals: list[Refusal] = []
    outcome: Outcome = "not requested"
    if options.ddp:
        outcome = "already" if is_distributed or _distributes_itself(program) else "declined"
        if outcome == "declined":
            rule = refusal.NEEDS_PRECISION
            refusals.append(
                Refusal(
                    program.entry.path,
                    None,
                    rule.code,
                    rule.name,
                    "distribution",
                    "the script was migrated without several processes",
                    "migrate the original script with --ddp; the summary says why if it declines",
                )
            )
    return Report(program.entry.path, "already", outcome, refusals=tuple(refusals), notes=tuple(_added_since(program)))


def _added_since(program: Program) -> Iterator[str]:
    """What to say of backward passes that the scaler has no part in: steps that came after the migration."""
    if any(_imports_parts_of_runtime(module) for module in program.flow.modules):
        # Apex's interface scales in ways of its own.
        return
    for site in program.backwards:
        # As in `torch.autograd.backward(amp.scaler.scale(losses))`.
        function = site.loss.func if isinstance(site.loss, ast.Call) else None
        if not (site.is_scaled or (isinstance(function, ast.Attribute) and function.attr == "scale")):
            yield (
                f"{place(site.module, site.line)}: `{site.module.text(site.node)}` is not scaled: this step came after "
                "the migration; `amp-lint --explain AMP103` shows how it is written"
            )


def _init_calls(program: Program) -> list[tuple[Module, ast.Call]]:
    """Calls that look like those of the runtime's ``init``."""
    return [
        (module, node)
        for module in program.flow.modules
        for node in module.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "init"
    ]


def _distributes_itself(program: Program) -> bool:
    try:
        distribution_plan.check_own(program)
    except Declined:
        return True
    return False


def _starts_runtime(module: Module) -> bool:
    """Whether the file calls the runtime's ``init``, or has Apex's interface from it."""
    if _imports_parts_of_runtime(module):
        return True
    names = {
        alias.asname or alias.name
        for node in module.nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "amp_runtime"
    }
    return bool(names) and any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "init"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in names
        for node in module.nodes
    )


def _imports_parts_of_runtime(module: Module) -> bool:
    """Whether the file imports from the runtime, as scripts with Apex's interface do."""
    return any(
        (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("amp_runtime"))
        or (isinstance(node, ast.Import) and any(alias.name.startswith("amp_runtime.") for alias in node.names))
        for node in module.nodes
    )


def _carry_out(changes: list[Change]) -> tuple[FileChange, ...]:
    actions: defaultdict[Module, list[Action]] = defaultdict(list)
    for change in changes:
        actions[change.module].extend(change.actions)
    found = []
    for module, todo in actions.items():
        after = apply(module, todo)
        if after != module.source.text:
            ast.parse(after)
            found.append(FileChange(module.path, module.source.text, after))
    return tuple(sorted(found, key=lambda item: str(item.path)))


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
