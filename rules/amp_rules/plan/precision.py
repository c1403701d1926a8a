"""Deciding on mixed precision: autocast, scaled backward passes, steps, gradient accesses."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from amp_rules.plan import (
    declining,
    geometry,
    gradient_functions,
    gradients_in_regions,
    left_unfollowed,
    method_values,
    other_frameworks,
    own_mixed_steps,
    own_off,
    worker_functions,
)
from amp_rules.plan.declining import Declined
from amp_rules.plan.library_uses import first_import, first_use
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.model_homes.homes import Homes
from amp_rules.plan.model_parts import has_parameters
from amp_rules.plan.notebook_regions import within_cells
from amp_rules.plan.own_half.helpers import is_copied
from amp_rules.plan.perturbations import Perturbation, perturbations
from amp_rules.plan.refused_types import Refusing, refusing
from amp_rules.plan.scale_free import keeps_scale
from amp_rules.plan.tight_loops import into_loops
from amp_rules.plan.unprepared import without_parts_alone, without_unprepared
from amp_rules.plan.unresolved import model_trail, optimizer_trail, trail_end
from amp_rules.plan.unscale_places import Unscale, unscales
from amp_rules.roles.evaluation_regions import EvaluationRegions
from amp_rules.roles.given_computations import Given
from amp_rules.roles.gradient_accesses import gradient_accesses
from amp_rules.roles.in_regions import nodes_in
from amp_rules.roles.loss_regions import Regions
from amp_rules.roles.statement_runs import StatementRun, merged
from amp_rules.roles.steps import Backward, Program, Site, Step, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import own_name, walk
from amp_rules.torch.containers import MADE_BY_SETTINGS
from amp_rules.torch.distributed import AVERAGES_BY_ITSELF, OWN_SHARDING
from amp_rules.torch.frameworks import OWN_FRAMEWORK, runs_no_step
from amp_rules.torch.gradients import GRADIENT_HOOK_FUNCTIONS, GRADIENT_HOOKS, TESTS_OF_NUMBERS
from amp_rules.torch.mixed_precision import (
    APEX,
    APEX_LAYERS,
    FOLLOWS_AUTOCAST,
    TORCH_AMP,
    is_off,
    runs_whole_step,
)

_HELPERS = 2
"""Functions that hand the outputs on to the one that differentiates them: a penalty is one, or behind one."""


@dataclass
class Precision:
    """What mixed precision takes in one program.

    ``scales_itself`` says that the program has a scaler of its own, which goes on stepping its optimizers.
    """

    runs: list[StatementRun] = field(default_factory=list)
    training: list[StatementRun] = field(default_factory=list)
    full_precision: list[StatementRun] = field(default_factory=list)
    backwards: list[Backward] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    unscales: list[Unscale] = field(default_factory=list)
    homes: list[Home] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    refusing: list[Refusing] = field(default_factory=list)
    perturbations: list[Perturbation] = field(default_factory=list)
    scales_itself: bool = False

    @property
    def in_float32(self) -> frozenset[ast.AST]:
        """The functions that get float32, and no autocast, as a whole."""
        return frozenset(item.info.node for item in self.refusing)

    def nodes(self, program: Program) -> list[Site]:
        """Every node that runs within regions and not in full precision, in the order of files and lines."""
        return nodes_in(program, self.runs, self.full_precision, self.in_float32)


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
        declining.decline_at_first(_frameworks(program))
    if not program.backwards:
        declining.decline_at_first(_stepping_scalers(program))
        declining.decline_at_first(_made_by_settings(program))
        declining.decline_at_first(left_unfollowed.reasons(program))
        return None
    if not from_apex:
        declining.decline_at_first(_migrated_with_another(program))
    declining.decline_at_first(_own_precision(program))
    reasons = declining.Reasons()
    if not initialised:
        reasons.extend(_half_models(program))
        reasons.extend(_gradient_hooks(program))
        reasons.extend(gradient_functions.reasons(program))
    reasons.extend(_unreadable(program))
    reasons.extend(worker_functions.reasons(program))
    not_understood = list(_steps_not_understood(program))
    reasons.extend(not_understood)
    losses = Regions(program)
    runs, lost = losses.training(program.backwards)
    reasons.extend(own_off.reasons(program, runs))
    runs = into_loops(program, own_off.without_off(program, runs))
    if over_losses:
        reasons.extend(geometry.reasons_in_torch(program, runs))
    else:
        runs = geometry.before_geometry(program, runs)
    reasons.extend(_unknown_loss(program, site) for site in lost)
    given = list(losses.given.values())
    reasons.extend(_given_among_others(item) for item in given if not item.can_go_before)
    found = Precision(
        runs=runs, given=given, training=runs, backwards=list(program.backwards), steps=list(program.steps)
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
    reasons.decline()
    evaluation = EvaluationRegions(program, over_losses=over_losses)
    found.full_precision = within_cells(program, _full_precision(program, evaluation))
    regions = evaluation.with_evaluation(found.runs)
    if not over_losses:
        regions = geometry.before_geometry(program, regions)
        # In plain PyTorch no model casts what it gives, so there a region goes on to what is made of it.
        regions = without_parts_alone(program, found.training, regions) if found.homes else regions
    regions = without_unprepared(program, found.homes, found.training, own_off.without_off(program, regions))
    regions = [run for run in regions if run in found.training or not _runs_within(program, run, found.given)]
    alone = gradients_in_regions.alone(program, regions, found.full_precision)
    found.full_precision = within_cells(program, merged([*found.full_precision, *alone]))
    found.runs = within_cells(program, _without_idle(regions, found.full_precision))
    found.refusing = refusing(program, found.runs, found.full_precision)
    return found


def keep(program: Program) -> Precision:
    """What several processes need to know of a program that keeps its own mixed precision.

    Raises:
        Declined: with all reasons found.
    """
    reasons = declining.Reasons()
    reasons.extend(_steps_not_understood(program))
    reasons.decline()
    kept = Precision(backwards=list(program.backwards), steps=list(program.steps), scales_itself=True)
    kept.training, _ = Regions(program).training(program.backwards)
    kept.full_precision = _full_precision(program, EvaluationRegions(program))
    kept.homes = homes(program)
    return kept


# ---- what is there already ---------------------------------------------------------------------------------


def _frameworks(program: Program) -> Iterator[Declined]:
    # Where no backward pass is found, settings may make what a framework runs.
    first = first_use if program.backwards else first_import
    found = first(program, OWN_FRAMEWORK, lambda name, _node, _module: runs_no_step(name))
    if found is not None:
        module, node, name = found
        yield declining.decline(
            declining.FRAMEWORK,
            module,
            node,
            f"`{name}` runs the training step, and has its own mixed precision and distributed training",
            f"turn them on in {name.split('.')[0]}'s own options",
            already=True,
        )


# What only a migrated step or distribution uses of the runtime; its optimizers and layers stand for Apex's alone, too.
_OF_A_MIGRATION = frozenset(
    {
        "autocast",
        "barrier",
        "device",
        "drawn_alike",
        "from_main_process",
        "is_main_process",
        "main_process_first",
        "on_main",
        "prepare_loader",
        "prepare_model",
        "reduce_mean",
        "scaler",
        "same_hash",
        "same_order",
        "same_seed",
        "seed_alike",
        "seed_by_rank",
        "seed_of_rank",
        "unwrap",
        "world_size",
    }
)


def _made_by_settings(program: Program) -> Iterator[Declined]:
    """What only settings name and may train, where nothing else does as far as is known."""
    for site in program.calls_to(MADE_BY_SETTINGS):
        node = site.node
        if isinstance(node, ast.expr) and not MADE_BY_SETTINGS & {
            value.name for value in program.flow.values(node, site.scope)
        }:
            continue
        yield declining.decline(
            declining.UNKNOWN_STEP,
            site.module,
            site.node,
            f"no backward pass was found, but `{site.module.text(site.node)}` makes what only the settings name, "
            "and that may train",
            "import its class and make it in the script, then migrate again; or migrate the file that trains by itself",
        )


def _migrated_with_another(program: Program) -> Iterator[Declined]:
    """Modules that the script shares with another one and that were migrated with that one."""
    for module in program.flow.modules:
        names = {
            alias.asname or alias.name: node
            for node in module.tree.body
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name == "amp_runtime"
        }
        for node in module.nodes if names else ():
            if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
                continue
            if node.value.id in names and node.attr in _OF_A_MIGRATION:
                yield declining.decline(
                    declining.ALREADY_MIXED,
                    module,
                    names[node.value.id],
                    f"{module.path.name} was migrated together with another script; this one only shares it",
                    "give this script the same `amp.init`, `amp.prepare_loader` and `amp.prepare_model` as the other's "
                    "diff shows",
                )


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


def _stepping_scalers(program: Program) -> Iterator[Declined]:
    """Objects of a library that run the whole training step, scaled: ``loss_scaler(loss, optimizer)`` of timm."""
    for call, _, scope in program.calls():
        name = next((name for name in sorted(program.callee_names(call, scope)) if runs_whole_step(name)), None)
        if name is not None and not program.flow.callees(call):
            yield declining.decline(
                declining.ALREADY_MIXED,
                scope.module,
                call,
                f"the script has its own mixed precision (`{name}` scales the loss, goes backward and steps)",
                "nothing to do; a second scaler would scale the gradients twice",
                already=True,
            )


def has_torch_amp(program: Program) -> bool:
    """Whether the program trains with the mixed precision of PyTorch."""
    return bool(program.backwards) and first_use(program, TORCH_AMP, _mixes_nothing) is not None


def beside_own_steps(program: Program) -> Iterator[Declined]:
    """Why the precision is not "already" there: some steps have their own, others none."""
    if has_torch_amp(program):
        yield from own_mixed_steps.reasons(program, _mixes_nothing)


def _mixes_nothing(name: str, node: ast.AST, module: Module) -> bool:
    """Whether a use of ``torch.amp`` leaves the precision to others: ``autocast(enabled=False)``, ``custom_fwd``."""
    if name.rpartition(".")[2] in FOLLOWS_AUTOCAST:
        return True
    call = module.parents.get(node)
    if not isinstance(call, ast.Call):
        return False
    # `partial(autocast, enabled=False)` is kept for later, and says the same.
    is_kept = own_name(call.func) == "partial" and call.args == [node]
    given = ast.Call(call.func, [], call.keywords) if is_kept else call
    return (call.func is node or is_kept) and is_off(name, given)


def _is_layer_of_apex(name: str, node: ast.AST, module: Module) -> bool:
    """Whether an import is of a part of Apex that has nothing to do with precision: ``apex.parallel``."""
    return name.startswith(APEX_LAYERS)


def _own_precision(program: Program) -> Iterator[Declined]:
    yield from beside_own_steps(program)
    yield from own_mixed_steps.scaled_by_others(program)
    found = first_use(program, TORCH_AMP, _mixes_nothing) or first_import(program, APEX, _is_layer_of_apex)
    if found is not None:
        module, node, name = found
        yield declining.decline(
            declining.ALREADY_MIXED,
            module,
            node,
            f"the script has its own mixed precision (`{name}`)",
            "nothing to do; a second scaler would scale the gradients twice",
            already=True,
        )
    yield from _of_framework(
        program,
        OWN_SHARDING,
        "keeps a shard of each gradient on each rank, which a single scaler cannot check",
        "use the mixed precision policy of the sharded model",
    )
    yield from _of_framework(
        program,
        AVERAGES_BY_ITSELF,
        "averages over processes that the scaler does not know: it would unscale the gradients before the average, "
        "and the processes would not agree on an overflow",
        "let `DistributedDataParallel` average the gradients, in processes of `torch.distributed`",
    )


def _of_framework(program: Program, names: tuple[str, ...], why: str, remedy: str) -> Iterator[Declined]:
    """The first use of what takes gradients out of the scaler's hands."""
    found = first_use(program, names)
    if found is not None:
        module, node, name = found
        yield declining.decline(declining.FRAMEWORK, module, node, f"`{name}` {why}", remedy)


def _half_models(program: Program) -> Iterator[Declined]:
    """Places where the script makes its model half by hand."""
    for node, _, scope in program.nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "half":
            if is_copied(program, node.func.value, scope):
                continue
            made = program.roles.modules(node.func.value, scope)
            # A loss without parameters holds nothing to be made half.
            if any(map(has_parameters, made)) and not node.args:
                yield declining.decline(
                    declining.ALREADY_MIXED,
                    scope.module,
                    node,
                    f"`{scope.module.text(node)}` makes the model half already",
                    "remove the call, and migrate with --opt-level O2 or O3",
                    already=True,
                )
        elif isinstance(node, ast.Assign) and _halves_data(node):
            yield declining.decline(
                declining.ALREADY_MIXED,
                scope.module,
                node,
                f"`{scope.module.text(node)}` makes parameters half already",
                "remove the script's own half precision, then migrate with --opt-level O2",
                already=True,
            )


def is_half_by_hand(program: Program) -> bool:
    """Whether the script makes its model half by hand, and trains it as any other."""
    return next(_half_models(program), None) is not None


def _halves_data(node: ast.Assign) -> bool:
    """``weight.data = weight.data.half()``."""
    target, value = node.targets[0], node.value
    return (
        isinstance(target, ast.Attribute)
        and target.attr == "data"
        and isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr == "half"
        and not value.args
        and blocks.path_of(value.func.value) == blocks.path_of(target)
    )


def _gradient_hooks(program: Program) -> Iterator[Declined]:
    """Hooks that would see scaled gradients; scripts for Apex had them so all along."""
    for node, _, scope in program.nodes():
        if not (isinstance(node, ast.Attribute) and node.attr in GRADIENT_HOOKS and isinstance(node.ctx, ast.Load)):
            continue
        call = scope.module.parents.get(node)
        if isinstance(call, ast.Call) and call.func is node:
            if program.flow.callees(call) or (call.args and _is_right_in_any_unit(program, call, scope)):
                continue
            if _only_tests_the_scale(program, call, scope):
                continue
            yield _sees_scaled(scope.module, call)
        elif not any(value.kind == "function" for value in program.flow.values(node, scope)):
            yield _sees_scaled(scope.module, node)
    for site in program.calls_to(GRADIENT_HOOK_FUNCTIONS):
        yield _sees_scaled(site.module, site.node)


def _sees_scaled(module: Module, node: ast.AST) -> Declined:
    return declining.decline(
        declining.GRADIENT_ACCESS,
        module,
        node,
        f"`{module.text(node)}` reads gradients while they are scaled",
        "divide by `amp.scaler.get_scale()` in the hook, then migrate by hand",
    )


def _is_right_in_any_unit(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a hook looks at nothing that it is given, or what a tensor's hook gives back grows with the gradient."""
    if _ignores_gradients(program, call.args[0], scope):
        return True
    is_tensors = isinstance(call.func, ast.Attribute) and call.func.attr == "register_hook"
    values = program.flow.values(call.args[0], scope)
    return is_tensors and bool(values) and all(value.kind == "function" and keeps_scale(value.ref) for value in values)


def _only_tests_the_scale(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a hook of the loss itself asks for no more than whether a number is one, and gives nothing back.

    The gradient of what the backward pass starts from is the scale, which is always a number. Any other gradient may
    overflow, as the scaler expects; a hook that raises then would end the training.
    """
    assert isinstance(call.func, ast.Attribute)
    owner = blocks.path_of(call.func.value) if isinstance(call.func.value, (ast.Name, ast.Attribute)) else None
    following = blocks.place(scope.module, blocks.statement_of(scope.module, call))
    starts = False
    for later in following.suite[following.index + 1 :]:
        if owner in blocks.writes(later):
            break
        starts = any(
            isinstance(item.loss, (ast.Name, ast.Attribute)) and blocks.path_of(item.loss) == owner
            for item in program.backwards
            if item.statement is later
        )
        if starts:
            break
    values = program.flow.values(call.args[0], scope) if call.args and starts else set()
    return bool(values) and all(value.kind == "function" and _only_asks_for_numbers(value.ref) for value in values)


def _only_asks_for_numbers(info: FunctionFacts) -> bool:
    """``if torch.isnan(grad).any(): raise ...``."""
    if isinstance(info.node, ast.Lambda) or info.cls is not None or info.yields or any(info.returns):
        return False
    given = set(info.parameters)
    parents = info.module.module.parents
    for node in walk(info.node):
        if isinstance(node, ast.Name) and node.id in given:
            parent = parents[node]
            call = parents.get(parent) if isinstance(parent, ast.Attribute) else parent
            if not (isinstance(call, ast.Call) and own_name(call.func) in TESTS_OF_NUMBERS):
                return False
    return True


def _ignores_gradients(program: Program, hook: ast.expr, scope: Scope) -> bool:
    """Whether a hook is a function of the project that looks at nothing of what it is given."""
    values = program.flow.values(hook, scope)
    for value in values:
        if value.kind != "function":
            return False
        info: FunctionFacts = value.ref
        given = set(info.parameters) - ({"self"} if info.cls is not None else set())
        if any(isinstance(node, ast.Name) and node.id in given for node in walk(info.node)):
            return False
        if any(program.runs_step(part) for part in blocks.own_parts(info.node)):
            return False  # it steps while other gradients are still to come
    return bool(values)


# ---- steps -------------------------------------------------------------------------------------------------


def _own_arguments(program: Program, step: Step) -> str:
    """What a step of the project's own is given beside a closure, in words; nothing where it is given a closure."""
    names: set[str] = set()
    callees = program.flow.callees(step.call)
    for info in callees:
        given = {name for name in info.parameters[1:] if info.argument(step.call, name) is not None}
        if any(_is_closure(info, name) for name in given):
            return ""
        names |= given
    if not callees:
        for item in step.call.args:
            held = program.flow.values(item, step.scope)
            is_data = isinstance(item, ast.Attribute) and "closure" not in item.attr.lower()
            if item is step.optimizer or not is_data or any(value.kind in ("function", "partial") for value in held):
                return ""
            names.add(step.module.text(item))
    return ", ".join(f"`{name}`" for name in sorted(names))


def _is_closure(info: FunctionFacts, name: str) -> bool:
    """Whether a step calls what it is given, or gives it to another step."""
    return "closure" in name.lower() or any(
        isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id == name)
            or (
                own_name(node.func) == "step"
                and any(isinstance(item, ast.Name) and item.id == name for item in node.args)
            )
        )
        for node in walk(info.node)
    )


def _steps_not_understood(program: Program) -> Iterator[Declined]:
    """Steps that cannot be scaled, calls that may be steps, and backward passes that no step follows."""
    for step in program.steps:
        given = [item for item in step.call.args if item is not step.optimizer]
        others = _own_arguments(program, step)
        if others:
            yield declining.decline(
                declining.UNKNOWN_STEP,
                step.module,
                step.node,
                f"`{step.module.text(step.call)}` gives the optimizer's own `step` {others}: what it does with scaled "
                "gradients beside it was not followed",
                "step with `amp.scaler.step(optimizer, ...)` by hand, which hands the arguments on, then "
                "`amp.scaler.update()`",
            )
        elif given or step.call.keywords:
            yield declining.decline(
                declining.CLOSURE,
                step.module,
                step.node,
                f"`{step.module.text(step.call)}` evaluates the loss several times in one step, and the loss scale "
                "could change in between",
                "keep this optimizer in FP32, or evaluate the closure without scaling and autocast the forward pass",
            )
        if isinstance(step.body, ast.Lambda):
            yield declining.decline(
                declining.UNKNOWN_STEP,
                step.module,
                step.node,
                f"`{step.module.text(step.call)}` is inside a lambda, which has no room for `amp.scaler.update()`",
                "write a function in place of the lambda, with `amp.scaler.step(...)`, then `amp.scaler.update()`",
            )
        statement = step.statement
        if isinstance(statement, ast.Return) and statement.value is not step.call:
            yield declining.decline(
                declining.UNKNOWN_STEP,
                step.module,
                step.node,
                f"`{step.module.text(step.call)}` is part of a return statement, so no `amp.scaler.update()` can "
                "follow it",
                "step on a line of its own, with `amp.scaler.step(...)`, then `amp.scaler.update()`, and return below",
            )
    for site in program.unknown_steps:
        yield _unknown_step(program, site)
    handed_around = list(method_values.reasons(program))
    yield from handed_around
    if not program.steps and not program.unknown_steps and not handed_around:
        backward = program.backwards[0]
        yield declining.decline(
            declining.NO_OPTIMIZER,
            backward.module,
            backward.node,
            f"no optimizer steps after `{backward.module.text(backward.call)}`: its gradients are used by hand",
            "use an optimizer of torch.optim; scaled gradients must be unscaled before anything reads them",
        )
        return  # what starts from gradients of its own belongs to a step that the first reason asks for
    for backward in program.backwards:
        if backward.loss in backward.call.args and len(backward.call.args) + len(backward.call.keywords) > 1:
            message = "starts from its own gradients, and not all of them are scaled"
            recipe = "sum what is to be differentiated into one loss and call its backward()"
            if gradient_functions.runs_in_backward(program, backward.body):
                message = "differentiates what the backward pass of an `autograd.Function` computes again: that runs "
                message += "without autocast, so it would not be what the forward pass computed"
                recipe = "give the function's `forward` and `backward` `torch.amp.custom_fwd` and `custom_bwd`, whose "
                recipe += "autocast is the same, then migrate by hand"
            yield declining.decline(
                declining.GRADIENT_ACCESS,
                backward.module,
                backward.node,
                f"`{backward.module.text(backward.call)}` {message}",
                recipe,
            )
        if any(item.arg == "create_graph" and not _is_false(item.value) for item in backward.call.keywords):
            yield declining.decline(
                declining.GRADIENT_ACCESS,
                backward.module,
                backward.node,
                f"`{backward.module.text(backward.call)}` keeps a graph of the scaled gradients: a second derivative "
                "stays scaled",
                "use `torch.autograd.grad(loss, parameters, create_graph=True)`, whose gradients are not scaled",
            )


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _unknown_step(program: Program, site: Step) -> Declined:
    trail = trail_end(program, site.optimizer, site.scope, site.body)
    return declining.decline(
        declining.UNKNOWN_STEP,
        site.module,
        site.node,
        f"it is not known whether `{site.module.text(site.optimizer)}` is an optimizer{trail}",
        "if it is one, step it with `amp.scaler.step(...)`; else rename the method, or make the object where it can "
        "be followed",
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
    return declining.decline(
        declining.UNKNOWN_LOSS,
        site.module,
        site.node,
        f"the computation of `{site.module.text(site.loss)}` was not found",
        "put `with amp.autocast():` around the forward pass and the loss, then scale, step and update with "
        "`amp.scaler`",
    )


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
        outputs = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "outputs"), None)
        if outputs is None:
            continue
        site = Site(scope.module, scope, body, call)
        for place, paths in _given_from(program, site, blocks.reads(outputs), _HELPERS):
            run = regions.computation_before(place, paths)
            if run is not None:
                found.append(run)
    return merged(found)


def _given_from(program: Program, site: Site, paths: set[str], depth: int) -> Iterator[tuple[Site, set[str]]]:
    """A place and the variables that it reads, and those of the callers who give the function what they hold."""
    yield site, paths
    info = program.function_of(site.body)
    given = paths & set(info.parameters) if info is not None else set()
    for caller in program.flow.callers(info) if info is not None and given and depth else ():
        arguments = [info.argument(caller.call, name) for name in sorted(given)] if info is not None else []
        read = {path for item in arguments if item is not None for path in blocks.reads(item)}
        yield from _given_from(program, calling(caller), read, depth - 1)


def _without_idle(runs: list[StatementRun], full_precision: list[StatementRun]) -> list[StatementRun]:
    """Drop regions in which everything runs in FP32 anyway."""
    covered = {statement for run in full_precision for statement in run.statements()}
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
    for item in missing:
        if item.kind == "instance":
            step = next((step for step, models in wholes if item in models), None)
            reasons.extend([_unknown_model(program, f" ({item.ref})", step=step)])
        else:
            reasons.extend([_unknown_model(program, "", model_trail(program))])
    if not found and not missing:
        reasons.extend([_unknown_model(program, "", model_trail(program) or optimizer_trail(program))])
    reasons.decline()
    return found


def _unknown_model(program: Program, what: str, trail: str = "", step: Step | None = None) -> Declined:
    step = step or program.steps[0]
    return declining.decline(
        declining.UNKNOWN_MODEL,
        step.module,
        step.node,
        f"the model{what} that `{step.module.text(step.optimizer)}` trains was not found in any variable{trail}",
        "write `model = amp.prepare_model(model)` where the model is on its device and has its weights",
    )
