"""Deciding on mixed precision: autocast, scaled backward passes, steps, gradient accesses."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from amp_rules.flow.values import Value
from amp_rules.plan import (
    declining,
    double_precision,
    geometry,
    gradient_functions,
    gradient_hooks,
    gradients_in_regions,
    left_unfollowed,
    looking_passes,
    mixed_already,
    other_frameworks,
    own_off,
    unknown_callees,
    unscalable_steps,
    worker_functions,
)
from amp_rules.plan.declining import Declined
from amp_rules.plan.evaluated_methods import EvaluatedMethods
from amp_rules.plan.file_names import line_of, name_of
from amp_rules.plan.finite_differences import Differences, finite_differences
from amp_rules.plan.joined_regions import joined
from amp_rules.plan.kept_levels import within_levels
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.model_homes.homes import Homes
from amp_rules.plan.model_homes.variables import HoldingVariable
from amp_rules.plan.notebook_regions import within_cells
from amp_rules.plan.old_kernels import passing_messages
from amp_rules.plan.own_regions import around_branches, without_preparation
from amp_rules.plan.perturbations import Perturbation, perturbations
from amp_rules.plan.refused_types import Refusing, refusing
from amp_rules.plan.saving_apart import without_saving
from amp_rules.plan.tight_loops import into_loops
from amp_rules.plan.unprepared import makes_model, without_others, without_parts_alone, without_unprepared
from amp_rules.plan.unresolved import given_in_settings, model_trail, optimizer_trail, owned_unseen, unheld
from amp_rules.plan.unscale_places import Unscale, unscales
from amp_rules.roles.evaluation_regions import EvaluationRegions
from amp_rules.roles.given_computations import Given
from amp_rules.roles.gradient_accesses import gradient_accesses
from amp_rules.roles.in_regions import nodes_in
from amp_rules.roles.loss_regions import Regions
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward, Site, Step, calling
from amp_rules.roles.statement_runs import StatementRun, merged, outermost
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import argument_at
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.autograd_functions import FLOAT_FUNCTIONS
from amp_rules.torch.models import FORWARD_HOOKS

_HELPERS = 2
"""Functions that hand the outputs on to the one that differentiates them: a penalty is one, or behind one."""


@dataclass
class Precision:
    """What mixed precision takes in one program.

    ``losses`` are the runs of ``training``, with what of a loss is left outside of the regions, for its digits.
    ``inline`` are those of ``runs`` that compute a loss and differentiate it in one statement: it is taken out of that.
    ``widened`` are calls whose results in half are to be made float32 again, ``left`` those
    of methods and parts of models that stay in full precision outside of all regions. ``casting`` are functions that
    the script has made get float32 by itself.
    ``scales_itself`` says that the program has a scaler of its own, which goes on stepping its optimizers.
    """

    runs: list[StatementRun] = field(default_factory=list)
    training: list[StatementRun] = field(default_factory=list)
    losses: list[StatementRun] = field(default_factory=list)
    inline: list[StatementRun] = field(default_factory=list)
    full_precision: list[StatementRun] = field(default_factory=list)
    differences: Differences = field(default_factory=Differences)
    backwards: list[Backward] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    unscales: list[Unscale] = field(default_factory=list)
    homes: list[Home] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    refusing: list[Refusing] = field(default_factory=list)
    casting: list[FunctionFacts] = field(default_factory=list)
    perturbations: list[Perturbation] = field(default_factory=list)
    widened: list[Site] = field(default_factory=list)
    left: list[Site] = field(default_factory=list)
    scales_itself: bool = False

    @property
    def in_float32(self) -> frozenset[ast.AST]:
        """The functions that get float32, and no autocast, as a whole."""
        functions = (*(item.info for item in self.refusing), *self.differences.functions, *self.casting)
        return frozenset(info.node for info in functions)

    def nodes(self, program: Program) -> list[Site]:
        """Every node that runs within regions and not in full precision, in the order of files and lines."""
        return nodes_in(program, self.runs, [*self.full_precision, *self.differences.runs], self.in_float32)


def plan(
    program: Program, *, from_apex: bool = False, initialised: bool = False, over_losses: bool = False
) -> Precision | None:
    """Decide; None when the program has no backward pass.

    Args:
        program: the program.
        from_apex: whether Apex was taken out of it just now.
        initialised: whether the script calls ``init`` and prepares its models already, as it did with Apex.
        over_losses: whether a region that evaluates goes on to the loss, see :class:`EvaluationRegions`.

    Raises:
        Declined: with the reason that settles the question, or with all that can be mended.
    """
    declining.decline_at_first(other_frameworks.reasons(program))
    if not initialised or not program.backwards:
        # With Apex in it, the step is the script's own, whatever calls it.
        declining.decline_at_first(mixed_already.frameworks(program))
    if all(site in program.whole_steps for site in program.backwards):
        declining.decline_at_first(mixed_already.stepping_scalers(program))
        declining.decline_at_first(mixed_already.made_by_settings(program))
        declining.decline_at_first(mixed_already.taken_gradients(program))
        declining.decline_at_first(left_unfollowed.reasons(program))
        return None
    if not from_apex:
        declining.decline_at_first(mixed_already.migrated_with_another(program))
    declining.decline_at_first(mixed_already.own_precision(program))
    reasons = declining.Reasons()
    if not initialised:
        reasons.extend(mixed_already.half_models(program))
        reasons.extend(gradient_hooks.reasons(program))
        reasons.extend(gradient_functions.reasons(program))
    reasons.extend(_unreadable(program))
    reasons.extend(worker_functions.reasons(program))
    not_understood = list(unscalable_steps.reasons(program))
    reasons.extend(not_understood)
    losses = Regions(program)
    runs, lost = losses.training(program.backwards)
    reasons.extend(looking_passes.reasons(program, runs))
    reasons.extend(own_off.reasons(program, runs))
    runs = without_preparation(program, into_loops(program, own_off.without_off(program, runs)))
    whole = runs
    if over_losses:
        reasons.extend(geometry.reasons_in_torch(program, runs))
    else:
        runs = geometry.before_geometry(program, runs)
        runs = within_levels(program, runs) if initialised else runs
    reasons.extend(_unknown_loss(program, site) for site in lost)
    given = list(losses.given.values())
    reasons.extend(_given_among_others(item) for item in given if not item.can_go_before)
    inline = _inline(program)
    found = Precision(
        runs=runs,
        given=given,
        training=[*runs, *inline],
        losses=[*whole, *inline],
        inline=inline,
        backwards=list(program.backwards),
        steps=list(program.steps),
    )
    # Whose gradients nothing steps as far as is known, nothing unscales either, and its model is not known to be
    # trained: these reasons would only follow from the first.
    if not not_understood:
        perturbed = perturbations(program, gradient_accesses(program))
        found.perturbations = perturbed.found
        with reasons.collecting():
            found.unscales = unscales(program, perturbed)
    if not initialised and program.steps and not program.unknown_steps:
        with reasons.collecting():
            found.homes = homes(program)
    unfound = left_unfollowed.unfound_optimizers(program)
    reasons.begin_with(unfound, declining.GRADIENT_ACCESS, declining.UNKNOWN_MODEL)
    reasons.decline()
    # A factory may give the model together with the criterion, of which the loss is made.
    making = [run for run in found.training if makes_model(program, found.homes, run)]
    if len(making) < len(found.training):
        found.training = [run for run in found.training if run not in making]
        found.runs = [run for run in found.runs if run not in making]
    evaluation = EvaluationRegions(program, over_losses=over_losses)
    found.full_precision = within_cells(program, _full_precision(program, evaluation))
    regions = evaluation.with_evaluation(found.runs)
    if not over_losses:
        regions = geometry.before_geometry(program, regions)
        regions = within_levels(program, regions) if initialised else regions
    if found.homes:
        regions = without_parts_alone(program, found.training, regions)
        regions = without_others(program, found.homes, found.training, regions)
        methods = EvaluatedMethods(program, found.training, regions, found.full_precision, found.homes)
        regions, found.widened, found.left = merged(methods.found), methods.widened, methods.left
    regions = around_branches(regions, found.training)
    regions = without_unprepared(program, found.homes, found.training, own_off.without_off(program, regions))
    regions = [run for run in regions if run in found.training or not _runs_within(program, run, found.given)]
    alone = gradients_in_regions.alone(program, regions, found.full_precision)
    found.full_precision = within_cells(program, outermost(merged([*found.full_precision, *alone])))
    found.differences = finite_differences(program, regions, found.full_precision)
    exact = [*found.full_precision, *found.differences.runs]
    regions = joined(program, _without_idle(regions, exact), found.training)
    found.runs = [*within_cells(program, without_saving(program, regions)), *inline]
    found.casting = [item for item in program.flow.functions.values() if casts_to_float32(item)]
    found.refusing = [item for item in refusing(program, found.runs, exact) if not casts_to_float32(item.info)]
    known = found.in_float32
    messages = passing_messages(program, found.runs, exact)
    found.refusing += [item for item in messages if item.info.node not in known]
    return found


def keep(program: Program) -> Precision:
    """What several processes need to know of a program that keeps its own mixed precision.

    Raises:
        Declined: with all reasons found.
    """
    reasons = declining.Reasons()
    reasons.extend(unscalable_steps.reasons(program))
    reasons.decline()
    kept = Precision(backwards=list(program.backwards), steps=list(program.steps), scales_itself=True)
    kept.training = [*Regions(program).training(program.backwards)[0], *_inline(program)]
    kept.losses = kept.training
    kept.full_precision = _full_precision(program, EvaluationRegions(program))
    kept.homes = homes(program)
    return kept


def _inline(program: Program) -> list[StatementRun]:
    """The statements whose backward pass computes its loss by a model: ``criterion(model(x), y).backward()``."""
    return [
        StatementRun(site.module, site.statement, site.statement)
        for site in program.backwards
        if not site.is_scaled and program.runs_model(site.loss)
    ]


def _unreadable(program: Program) -> Iterator[Declined]:
    """Imports of modules of the project that could not be read: what they hold is not known."""
    unreadable = {}
    for error in program.project.unreadable:
        is_package = error.path.stem == "__init__"
        unreadable[error.path.parent.name if is_package else error.path.stem] = error
    if not unreadable:
        return
    for module in program.flow.modules:
        for node in module.nodes:
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            names = [part for alias in node.names for part in alias.name.split(".")]
            names += (node.module or "").split(".") if isinstance(node, ast.ImportFrom) else []
            for name in names:
                if name in unreadable:
                    error = unreadable[name]
                    yield declining.decline(
                        declining.UNREADABLE,
                        module,
                        node,
                        f"`{module.text(node)}` leads to {error.path.name}, which cannot be read: {error.message}",
                        "fix that file first, then migrate again",
                    )


def _unknown_loss(program: Program, site: Backward) -> Declined:
    maker = _maker_elsewhere(program, site)
    if maker is not None:
        return declining.decline(
            declining.UNKNOWN_LOSS,
            site.module,
            site.node,
            f"`{site.module.text(site.call)}` is a method of `{maker}`, whose code was not found: whether it scales "
            "the loss itself is not known",
            "if it does, the script has its own mixed precision: leave that out and call `loss.backward()`, then "
            "run again; else add the code to the project",
        )
    double = next(iter(double_precision.places(program)), None)
    if double is not None:
        place, what = double
        text, line = place.module.text(place.node), f"{name_of(program, place.module)}:{place.told_line}"
        return declining.decline(
            declining.UNKNOWN_LOSS,
            site.module,
            site.node,
            f"{_what_is_unknown(program, site)}, and `{text}` ({line}) {what}, which autocast leaves as they are",
            "half precision gains nothing there: remove that first where float32 is enough, else keep the precision",
        )
    return declining.decline(
        declining.UNKNOWN_LOSS,
        site.module,
        site.node,
        _what_is_unknown(program, site),
        "put `with amp.autocast():` around the forward pass and the loss, then scale, step and update with "
        "`amp.scaler`",
    )


def _what_is_unknown(program: Program, site: Backward) -> str:
    """That nothing computes a loss, as far as is known; or that what does calls no model."""
    computing = _computing(site)
    if computing is None:
        return f"the computation of `{site.module.text(site.loss)}` was not found"
    unknown = unknown_callees.what_is_loaded(program, site, computing)
    unknown = unknown or unknown_callees.what_is_given(program, site, computing)
    if unknown:
        return unknown
    line = site.module.line_on_disk(computing.lineno)
    run = unknown_callees.forward_of_unknown(computing)
    if run is not None:
        return (
            f"`{site.module.text(site.loss)}` is computed by `{site.module.text(run)}` (line {line}), and what "
            f"`{site.module.text(run.value)}` is was not found"
        )
    hooked = any(last_name(call.func) in FORWARD_HOOKS for call, _, _ in program.calls())
    kept = "; what forward hooks keep of a model's layers is not followed" if hooked else ""
    return f"no call of a model was found in the computation of `{site.module.text(site.loss)}` (line {line}){kept}"


def _computing(site: Backward) -> ast.Assign | None:
    """The assignment of the same function that computes a loss, by way of copies: ``loss = hint``."""
    path = blocks.path_of(site.loss)
    found: ast.Assign | None = None
    line = site.line
    while path is not None:
        given = [
            node
            for node in blocks.walk_body(site.body)
            if isinstance(node, ast.Assign) and node.lineno < line and path in blocks.writes(node)
        ]
        if not given:
            return None
        found = max(given, key=lambda node: node.lineno)
        path, line = blocks.path_of(found.value), found.lineno
    return found if found is not None and not isinstance(found.value, ast.Constant) else None


def _maker_elsewhere(program: Program, site: Backward) -> str | None:
    """The class or function of another package that made the object whose ``backward`` is handed the loss."""
    call = site.call
    if not isinstance(call.func, ast.Attribute) or call.func.value is not site.loss or not call.args:
        return None
    made = (value.ref for value in program.flow.values(site.loss, site.scope) if value.kind == "object")
    return next((name for name in made if isinstance(name, str) and not name.startswith("torch.")), None)


def _runs_within(program: Program, run: StatementRun, given: Sequence[Given]) -> bool:
    """Whether a run stands in a function that nothing but such arguments calls: they run under autocast as a whole."""
    info = program.function_of(blocks.body_of(run.module, run.first))
    callers = program.flow.callers(info) if info is not None else []
    inside = {node for item in given for node in walk(item.argument)}
    return bool(callers) and all(caller.call in inside for caller in callers)


def _given_among_others(site: Given) -> Declined:
    return declining.decline(
        declining.UNKNOWN_LOSS,
        site.module,
        site.node,
        f"`{site.module.text(site.node)}` is computed in the same statement as the backward pass, among other calls: "
        "an autocast region cannot contain one without the other",
        f"compute it in a statement of its own above, and give `{site.module.text(site.call.func)}` the variable",
    )


# ---- numerics ----------------------------------------------------------------------------------------------


def _full_precision(program: Program, regions: EvaluationRegions) -> list[StatementRun]:
    """Runs that feed ``torch.autograd.grad``: their gradients are not scaled, so they stay in FP32."""
    found = []
    for call, body, scope in program.calls():
        if not isinstance(call.func, (ast.Name, ast.Attribute)) or "torch.autograd.grad" not in program.names(
            call.func, scope
        ):
            continue
        outputs, inputs = argument_at(call, "outputs", 0), argument_at(call, "inputs", 1)
        if outputs is None:
            continue
        site = Site(scope.module, scope, body, call)
        by = blocks.reads(inputs) if inputs is not None else set()
        for place, paths in _given_from(program, site, blocks.reads(outputs), by, _HELPERS):
            run = regions.computation_before(place, paths)
            if run is not None:
                found.append(run)
    return merged(found)


def _given_from(
    program: Program, site: Site, paths: set[str], by: set[str], depth: int
) -> Iterator[tuple[Site, set[str]]]:
    """A place and the variables that it reads, and those of the callers who give the function what they hold.

    ``by`` is what the derivatives are taken by.
    """
    yield site, paths
    info = program.function_of(site.body)
    if info is None or not depth:
        return
    given = _sources(program, site, paths, by) & set(info.parameters)
    for caller in program.flow.callers(info) if given else ():
        read, read_by = (
            {
                path
                for name in sorted(names)
                if (item := info.argument(caller.call, name))
                for path in blocks.reads(item)
            }
            for names in (given, by & set(info.parameters))
        )
        yield from _given_from(program, calling(caller), read, read_by, depth - 1)


def _sources(program: Program, site: Site, paths: set[str], by: set[str]) -> set[str]:
    """The variables, and what they are made of above the site: ``fields`` of ``u = fields[..., 0]``.

    What a model is given keeps the precision that it has, and so does what the derivatives are taken by.
    """
    found = set(paths)
    info = program.function_of(site.body)
    handed = set(info.parameters) if info is not None else set()
    for suite, index in blocks.suites_around(site.module, site.statement):
        for previous in reversed(suite[:index]):
            if not blocks.touches(blocks.writes(previous), found):
                continue
            if not (program.runs_model(previous) or _calls_what_is_given(previous, handed)):
                found |= blocks.read_for(previous, found) - by
    return found


def _calls_what_is_given(statement: ast.stmt, handed: set[str]) -> bool:
    """``net(x)`` of a function's parameter, ``net.forward(x)``: a model, though none may be known there."""
    return any(
        (isinstance(call.func, ast.Name) and call.func.id in handed) or last_name(call.func) == "forward"
        for call in blocks.walk_own(statement)
        if isinstance(call, ast.Call)
    )


def _without_idle(runs: list[StatementRun], full_precision: list[StatementRun]) -> list[StatementRun]:
    """Drop regions in which everything runs in FP32 anyway."""
    covered = {node for run in full_precision for statement in run.statements() for node in blocks.walk_own(statement)}
    found = []
    for run in runs:
        statements = run.statements()
        while statements and statements[0] in covered:
            statements.pop(0)
        if statements:
            found.append(StatementRun(run.module, statements[0], run.last))
    return found


# ---- models ------------------------------------------------------------------------------------------------


def homes(program: Program) -> list[Home]:
    """Where the models of the program are prepared.

    Raises:
        Declined: models that an optimizer trains were not found, with each of them.
    """
    places = Homes(program)
    found, missing = places.find()
    reasons = declining.Reasons()
    by_step = [(step, program.models_of_step(step)) for step in program.steps] if missing else []
    wholes = [(step, {whole for model in models for whole in places.wholes(model)}) for step, models in by_step]
    of_steps: dict[Step | None, list[Value]] = {}
    for item in missing:
        step = next((step for step, models in wholes if item in models), None)
        if item.kind == "instance":
            of_steps.setdefault(step, []).append(item)
        else:
            within = _trained_within(program, step) if step is not None else None
            reasons.extend([within or _unknown_model(program, "", model_trail(program), step)])
    for step, items in of_steps.items():
        late = {item: place for item in items if (place := places.given_too_late(item)) is not None}
        reasons.extend(_late_model(program, str(item.ref), place, step) for item, place in late.items())
        rest = [item for item in items if item not in late]
        reasons.extend(_unknown_model(program, what, trail, step) for what, trail in unheld(program, rest))
    if not found and not missing:
        tensors = [reason for step in program.steps if (reason := _of_tensors(program, step)) is not None]
        trail = "" if tensors else model_trail(program)
        unmade = "" if tensors or trail else optimizer_trail(program)
        given = "" if tensors or trail or unmade else given_in_settings(program)
        unknown = _unknown_model(program, "", trail)
        if unmade or given:
            unknown = _unknown_optimizer(program, unmade or given, is_made=not given)
        reasons.extend(tensors[:1] or [unknown])
    elif found:
        reasons.extend(_unknown_model(program, "", trail, step) for step, trail in owned_unseen(program))
    reasons.decline()
    return found


def _of_tensors(program: Program, step: Step) -> Declined | None:
    """An optimizer of tensors that are no parameters of a model: an image, for example."""
    made = [value.site for value in program.flow.values(step.optimizer, step.scope)]
    call = next((site for site in made if isinstance(site, ast.Call) and program.loose_parameters(site)), None)
    if call is None:
        return None
    return declining.decline(
        declining.UNKNOWN_MODEL,
        step.module,
        step.node,
        f"`{step.module.text(step.optimizer)}` trains tensors that belong to no model",
        "make them parameters of a module, and pass that to `amp.prepare_model`",
    )


def _unknown_optimizer(program: Program, trail: str, *, is_made: bool) -> Declined:
    """The model may stand in a variable: what the optimizer does with its parameters is not known, or which it has."""
    step = program.steps[0]
    how = "make the optimizer by the name of its class" if is_made else "give the optimizer its parameters at its place"
    return declining.decline(
        declining.UNKNOWN_MODEL,
        step.module,
        step.node,
        f"the model that `{step.module.text(step.optimizer)}` trains was not found{trail}",
        f"{how}: `torch.optim.SGD(model.parameters(), lr=lr)`",
    )


def _late_model(program: Program, what: str, place: HoldingVariable, step: Step | None) -> Declined:
    """A model that is in a variable, but for a training that is over: often a copy of what was trained."""
    step = step or program.steps[0]
    given = place.assignments[0]
    where = line_of(program, place.module, given.lineno, step.module)
    return declining.decline(
        declining.UNKNOWN_MODEL,
        step.module,
        step.node,
        f"the model ({what}) that `{step.module.text(step.optimizer)}` may train gets into `{place.path}` ({where}) "
        "only below the training",
        f"give `{place.path}` a model above the training, and load the weights there: "
        f"`{place.path}.load_state_dict(...)`",
    )


def _trained_within(program: Program, step: Step) -> Declined | None:
    """An optimizer that a module makes in its own method, for layers that it makes there: ``forward`` fits a head."""
    info = program.function_of(step.body)
    if info is None or info.cls is None or not program.is_model_code(step.body):
        return None
    where = f"{info.cls.name}.{info.name}"
    return declining.decline(
        declining.UNKNOWN_MODEL,
        step.module,
        step.node,
        f"`{step.module.text(step.optimizer)}` trains layers that `{where}` makes each time it runs, within a module: "
        "they are prepared nowhere",
        f"train them in a function that is no part of a module; or migrate a script that does not run `{where}`",
    )


def _unknown_model(program: Program, what: str, trail: str = "", step: Step | None = None) -> Declined:
    step = step or program.steps[0]
    return declining.decline(
        declining.UNKNOWN_MODEL,
        step.module,
        step.node,
        f"the model{what} that `{step.module.text(step.optimizer)}` trains was not found in any variable{trail}",
        "write `model = amp.prepare_model(model)` where the model is on its device and has its weights",
    )


def casts_to_float32(info: FunctionFacts) -> bool:
    """Whether a function's decorator gives it float32 arguments, with autocast off: ``@amp.float_function``."""
    return any(name in FLOAT_FUNCTIONS for name, _ in info.decorators)
