"""Deciding on mixed precision: autocast, scaled backward passes, steps, gradient accesses."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from amp_rules.planning import refusal
from amp_rules.planning.cells import within_cells
from amp_rules.planning.homes import Home, Homes
from amp_rules.planning.unknown import model_trail, trail_end
from amp_rules.planning.unscale import Unscale, unscales
from amp_rules.program import blocks
from amp_rules.program.head import torch_name
from amp_rules.program.modules import Module
from amp_rules.program.regions import Regions, Run, merged
from amp_rules.program.scopes import Scope, arguments_of
from amp_rules.program.steps import Backward, Program, Site, Step
from amp_rules.program.syntax import walk
from amp_rules.program.values import FunctionInfo, Value
from amp_rules.tables import torch_api as api


@dataclass
class Precision:
    """What mixed precision takes in one program."""

    runs: list[Run] = field(default_factory=list)
    training: list[Run] = field(default_factory=list)
    full_precision: list[Run] = field(default_factory=list)
    backwards: list[Backward] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    updates: list[tuple[Module, ast.stmt]] = field(default_factory=list)
    unscales: list[Unscale] = field(default_factory=list)
    probability_losses: list[Site] = field(default_factory=list)
    probabilities: list[Site] = field(default_factory=list)
    computed_norms: list[Site] = field(default_factory=list)
    constants: list[Site] = field(default_factory=list)
    homes: list[Home] = field(default_factory=list)
    reloads: list[tuple[Module, ast.stmt, str]] = field(default_factory=list)


def plan(program: Program, *, from_apex: bool = False, initialised: bool = False) -> Precision | None:
    """Decide; None when the program has no backward pass.

    Args:
        program: the program.
        from_apex: whether Apex was taken out of it just now.
        initialised: whether the script calls ``init`` and prepares its models already, as it did with Apex.

    Raises:
        Declined: with the first reason found.
    """
    if not initialised or not program.backwards:
        # With Apex in it, the step is the script's own, whatever calls it.
        _check_frameworks(program)
    if not program.backwards:
        _check_settings(program)
        return None
    if not from_apex:
        _check_shared(program)
    _check_own_precision(program)
    if not initialised:
        _check_half_model(program)
        _check_gradient_hooks(program)
    _check_unreadable(program)
    steps = _steps(program)
    regions = Regions(program)
    runs, lost = regions.training(program.backwards)
    if lost:
        site = lost[0]
        raise refusal.decline(
            refusal.UNKNOWN_LOSS,
            site.module,
            site.node,
            f"the computation of `{site.module.text(site.loss)}` was not found",
            "put `with amp.autocast():` around the forward pass and the loss, then scale, step and update with "
            "`amp.scaler`",
        )
    plan = Precision(runs=runs, training=runs, backwards=list(program.backwards), steps=steps)
    plan.full_precision = within_cells(program, _full_precision(program, regions))
    plan.updates = _updates(program)
    plan.unscales = unscales(program)
    plan.probability_losses = _probability_losses(program)
    plan.probabilities = _probabilities(program, plan.probability_losses)
    plan.computed_norms = program.calls_to(api.FUNCTIONAL_NORMS)
    plan.constants = _constants(program)
    plan.runs = within_cells(program, _without_idle(regions.with_evaluation(plan.runs), plan.full_precision))
    if not initialised:
        plan.homes = homes(program)
        plan.reloads = _reloads(program, plan.homes)
    return plan


def keep(program: Program) -> Precision:
    """What several processes need to know of a program that keeps its own mixed precision.

    Raises:
        Declined: with the first reason found.
    """
    kept = Precision(backwards=list(program.backwards), steps=_steps(program))
    regions = Regions(program)
    kept.training, _ = regions.training(program.backwards)
    kept.full_precision = _full_precision(program, regions)
    kept.homes = homes(program)
    kept.reloads = _reloads(program, kept.homes)
    return kept


# ---- what is there already ---------------------------------------------------------------------------------


def first_use(program: Program, prefixes: tuple[str, ...]) -> tuple[Module, ast.AST, str] | None:
    """The first use of a library by the names that the reachable code resolves."""
    for module in program.flow.modules:
        for node in module.nodes:
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
                located = program.locate(node)
                if located is not None and (blocks.path_of(node) or "").count("."):
                    names = sorted(program.names(node, located[1]))
            for name in names:
                if any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes):
                    if program.project.find(module, name.split(".")[0]) is None:
                        return module, node, name
    return None


def _check_frameworks(program: Program) -> None:
    found = first_use(program, api.OWN_FRAMEWORK)
    if found is not None:
        module, node, name = found
        raise refusal.decline(
            refusal.FRAMEWORK,
            module,
            node,
            f"`{name}` runs the training step and has mixed precision and several processes of its own",
            f"turn them on in {name.split('.')[0]}'s own options",
            already=True,
        )


# What only a migrated step or distribution uses of the runtime; its optimizers and layers stand for Apex's alone, too.
_OF_A_MIGRATION = frozenset(
    {
        "autocast",
        "barrier",
        "device",
        "is_main_process",
        "main_process_first",
        "on_main",
        "prepare_loader",
        "prepare_model",
        "scaler",
        "seed_by_rank",
        "unwrap",
        "world_size",
    }
)


def _check_settings(program: Program) -> None:
    """Decline when nothing trains as far as is known, and something is made that only settings name."""
    for site in program.calls_to(api.MADE_BY_SETTINGS):
        raise refusal.decline(
            refusal.UNKNOWN_STEP,
            site.module,
            site.node,
            f"no backward pass was found, but `{site.module.text(site.node)}` makes what only the settings name, "
            "and that may train",
            "import its class and make it in the script, then migrate again; or migrate the file that trains by itself",
        )


def _check_shared(program: Program) -> None:
    """Decline when a module that the script shares with another one was migrated with that one."""
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
                raise refusal.decline(
                    refusal.ALREADY_MIXED,
                    module,
                    names[node.value.id],
                    f"{module.path.name} was migrated together with another script; this one only shares it",
                    "give this script the same `amp.init`, `amp.prepare_loader` and `amp.prepare_model` as the other's "
                    "diff shows",
                )


def _check_unreadable(program: Program) -> None:
    """Decline when a module of the project could not be read: what it holds is not known."""
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
                    raise refusal.decline(
                        refusal.UNREADABLE,
                        module,
                        node,
                        f"`{module.text(node)}` leads to {error.path.name}, which cannot be read: {error.message}",
                        "mend that file first, then migrate again",
                    )


def has_torch_amp(program: Program) -> bool:
    """Whether the program trains with the mixed precision of PyTorch."""
    return bool(program.backwards) and first_use(program, api.TORCH_AMP) is not None


def _check_own_precision(program: Program) -> None:
    found = first_use(program, api.OWN_PRECISION)
    if found is not None:
        module, node, name = found
        raise refusal.decline(
            refusal.ALREADY_MIXED,
            module,
            node,
            f"the script has mixed precision of its own (`{name}`)",
            "nothing to do; a second scaler would scale the gradients twice",
            already=True,
        )
    found = first_use(program, api.OWN_SHARDING)
    if found is not None:
        module, node, name = found
        raise refusal.decline(
            refusal.FRAMEWORK,
            module,
            node,
            f"`{name}` keeps a share of each gradient on each rank, which one scaler for all cannot see",
            "use the mixed precision policy of the sharded model",
        )


def _check_half_model(program: Program) -> None:
    """Decline when the script makes its model half by hand."""
    for node, _, scope in program.nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "half":
            if program.roles.modules(node.func.value, scope) and not node.args:
                raise refusal.decline(
                    refusal.ALREADY_MIXED,
                    scope.module,
                    node,
                    f"`{scope.module.text(node)}` makes the model half already",
                    "remove the call, and migrate with --opt-level O2 or O3",
                    already=True,
                )


def _check_gradient_hooks(program: Program) -> None:
    """Decline when a hook would see scaled gradients; scripts for Apex had them so all along."""
    for node, _, scope in program.nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in api.GRADIENT_HOOKS:
            if node.args and _ignores_gradients(program, node.args[0], scope):
                continue
            raise refusal.decline(
                refusal.GRADIENT_ACCESS,
                scope.module,
                node,
                f"`{scope.module.text(node)}` sees gradients while they are scaled",
                "divide by `amp.scaler.get_scale()` in the hook, then migrate by hand",
            )


def _ignores_gradients(program: Program, hook: ast.expr, scope: Scope) -> bool:
    """Whether a hook is a function of the project that looks at nothing of what it is given."""
    values = program.flow.values(hook, scope)
    for value in values:
        if value.kind != "function" or not isinstance(value.ref, FunctionInfo):
            return False
        info = value.ref
        given = {argument.arg for argument in arguments_of(info.node)}
        given -= {"self"} if info.owner is not None else set()
        if any(isinstance(node, ast.Name) and node.id in given for node in walk(info.node)):
            return False
    return bool(values)


# ---- steps -------------------------------------------------------------------------------------------------


def _steps(program: Program) -> list[Step]:
    for step in program.steps:
        given = [item for item in step.call.args if item is not step.optimizer]
        if given or step.call.keywords:
            raise refusal.decline(
                refusal.CLOSURE,
                step.module,
                step.node,
                f"`{step.module.text(step.call)}` evaluates the loss several times in one step: its scale would change "
                "in between",
                "keep this optimizer in FP32, or evaluate the closure without scaling and autocast the forward pass",
            )
    if not program.steps:
        if program.unknown_steps:
            site = program.unknown_steps[0]
            raise _unknown_step(program, site)
        backward = program.backwards[0]
        raise refusal.decline(
            refusal.NO_OPTIMIZER,
            backward.module,
            backward.node,
            f"no optimizer steps after `{backward.module.text(backward.call)}`: its gradients are used by hand",
            "use an optimizer of torch.optim; scaled gradients must be unscaled before anything reads them",
        )
    if program.unknown_steps:
        raise _unknown_step(program, program.unknown_steps[0])
    for backward in program.backwards:
        if backward.loss in backward.call.args and len(backward.call.args) + len(backward.call.keywords) > 1:
            raise refusal.decline(
                refusal.GRADIENT_ACCESS,
                backward.module,
                backward.node,
                f"`{backward.module.text(backward.call)}` starts from gradients of its own, not all of them scaled",
                "sum what is to be differentiated into one loss and call its backward()",
            )
    return program.steps


def _unknown_step(program: Program, site: Step) -> refusal.Declined:
    trail = trail_end(program, site.optimizer, site.scope, site.body)
    return refusal.decline(
        refusal.UNKNOWN_STEP,
        site.module,
        site.node,
        f"it is not known whether `{site.module.text(site.optimizer)}` is an optimizer{trail}",
        "if it is one, step it with `amp.scaler.step(...)`; else rename the method, or make the object where it can "
        "be followed",
    )


def _updates(program: Program) -> list[tuple[Module, ast.stmt]]:
    """The statements after which the scale is updated: once a round, after the last step."""
    found: dict[ast.stmt, Module] = {}
    for step in program.steps:
        statement = step.statement
        suite: tuple[ast.stmt, ...] | None = None
        for parent in blocks.enclosing(step.module, statement):
            if isinstance(parent, blocks.LOOPS) and program.runs_backward(parent):
                suite = tuple(parent.body)
                break
        if suite is None:
            suite = tuple(getattr(step.body, "body", ()))
            if isinstance(step.body, ast.Module):
                suite = next(
                    (
                        tuple(parent.body)
                        for parent in blocks.enclosing(step.module, statement)
                        if isinstance(parent, ast.If) and blocks.place(step.module, parent).parent is step.body
                    ),
                    suite,
                )
        for target in _last_steps(program, suite, {site.statement for site in program.steps}):
            found[target] = step.module
    return [(module, statement) for statement, module in found.items()]


def _last_steps(program: Program, suite: tuple[ast.stmt, ...], steps: set[ast.stmt]) -> list[ast.stmt]:
    """The last statements of a round that step, alone or as a whole."""

    def own_steps(statement: ast.stmt) -> bool:
        return any(node in steps for node in blocks.walk_own(statement) if isinstance(node, ast.stmt))

    def is_round(statement: ast.stmt) -> bool:
        """Loops with a backward pass of their own are rounds of their own."""
        return isinstance(statement, blocks.LOOPS) and program.runs_backward(statement)

    holding = [item for item in suite if own_steps(item) and not is_round(item)]
    if not holding:
        return []
    last = holding[-1]
    found: list[ast.stmt] = []
    for item in holding[:-1]:
        # A round that ends early must have its update too.
        if item not in steps and _leaves(item):
            found.extend(_last_steps(program, (item,), steps))
        elif any(_leaves(between) for between in suite[suite.index(item) + 1 : suite.index(last)]):
            found.append(item)
    if len(holding) > 1 or last in steps or isinstance(last, blocks.LOOPS):
        rounds = [node for node in walk(last) if isinstance(node, ast.stmt) and is_round(node)]
        if len(holding) > 1 and rounds:
            return [target for item in holding for target in _last_steps(program, (item,), steps)]
        return [*found, last]
    for inner in blocks.suites(last):
        found.extend(_last_steps(program, tuple(inner), steps))
    return found


def _leaves(statement: ast.stmt) -> bool:
    """Whether the statement can end the round."""
    return any(isinstance(node, (ast.Continue, ast.Break, ast.Return)) for node in blocks.walk_own(statement))


# ---- numerics ----------------------------------------------------------------------------------------------


def _full_precision(program: Program, regions: Regions) -> list[Run]:
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
        run = regions.computation_before(site, blocks.reads(outputs))
        if run is not None:
            found.append(run)
    return merged(found)


def _without_idle(runs: list[Run], full_precision: list[Run]) -> list[Run]:
    """Drop regions in which everything runs in FP32 anyway."""
    covered = {statement for run in full_precision for statement in run.statements()}
    found = []
    for run in runs:
        statements = run.statements()
        while statements and statements[0] in covered:
            statements.pop(0)
        if statements:
            found.append(Run(run.module, statements[0], run.last))
    return found


def _probability_losses(program: Program) -> list[Site]:
    """Constructors and calls of binary cross entropy on probabilities."""
    found = []
    for call, body, scope in program.calls():
        names = program.callee_names(call, scope)
        if (
            any(n.startswith("torch.nn.") and n.rpartition(".")[2] in api.PROBABILITY_LOSSES for n in names)
            or names & api.PROBABILITY_LOSS_FUNCTIONS
        ):
            found.append(Site(scope.module, scope, body, call))
    return found


def _probabilities(program: Program, losses: list[Site]) -> list[Site]:
    """Sigmoids at the end of a trained model whose output is taken for a probability by a loss or a logarithm."""
    if not losses and not program.calls_to(frozenset({"torch.log"})):
        return []
    found: dict[ast.AST, Site] = {}
    seen: set[object] = set()
    for value in program.trained:
        _endings(program, value, found, seen)
    return sorted(found.values(), key=lambda site: (str(site.module.path), site.line))


_SHAPE_ONLY = frozenset({"view", "squeeze", "unsqueeze", "reshape", "flatten", "contiguous", "clone", "t", "transpose"})


def _endings(program: Program, model: Value, found: dict[ast.AST, Site], seen: set[object]) -> None:
    """Mark what the model's output comes from, as far as that is a sigmoid."""
    if (model.ref, model.site) in seen or len(seen) > 200:
        return
    seen.add((model.ref, model.site))
    if model.kind == "instance":
        forward = model.ref.find_method("forward")
        for returned in forward.returns if forward is not None else ():
            _ending(program, returned, forward.scope, forward.node, found, seen)
    elif model.kind == "object" and model.ref == "torch.nn.Sigmoid":
        _mark(program, model.site, found)
    elif model.kind == "object" and model.ref == "torch.nn.Sequential" and isinstance(model.site, ast.Call):
        located = program.locate(model.site)
        if located is not None and model.site.args:
            for last in program.flow.values(model.site.args[-1], located[1]):
                _endings(program, last, found, seen)


def _ending(
    program: Program, node: ast.expr, scope: Scope, body: ast.AST, found: dict[ast.AST, Site], seen: set[object]
) -> None:
    if isinstance(node, (ast.Tuple, ast.List)):
        for element in node.elts:
            _ending(program, element, scope, body, found, seen)
    elif isinstance(node, ast.Subscript):
        _ending(program, node.value, scope, body, found, seen)
    elif isinstance(node, ast.Name) and (body, node.id) not in seen:
        seen.add((body, node.id))
        for other in program.nodes_of(body):
            if isinstance(other, ast.Assign) and any(blocks.path_of(item) == node.id for item in other.targets):
                _ending(program, other.value, scope, body, found, seen)
    elif isinstance(node, ast.Call):
        names = program.callee_names(node, scope)
        if names & api.SIGMOIDS:
            _mark(program, node, found)
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _SHAPE_ONLY:
            _ending(program, node.func.value, scope, body, found, seen)
        else:
            for value in program.called_models(node, scope):
                _endings(program, value, found, seen)
            for info in program.flow.callees(node):
                if info.node not in seen:
                    seen.add(info.node)
                    for returned in info.returns:
                        _ending(program, returned, info.scope, info.node, found, seen)


def _mark(program: Program, node: ast.AST | None, found: dict[ast.AST, Site]) -> None:
    located = program.locate(node) if node is not None else None
    if located is not None and node is not None:
        found[node] = Site(located[1].module, located[1], located[0], node)


_LARGEST_HALF = 65504.0


def _constants(program: Program) -> list[Site]:
    """Fill values of masks that fp16 cannot hold."""
    found = []
    for call, body, scope in program.calls():
        if not (isinstance(call.func, ast.Attribute) and call.func.attr in ("masked_fill", "masked_fill_")):
            continue
        value = (
            call.args[1] if len(call.args) == 2 else next((k.value for k in call.keywords if k.arg == "value"), None)
        )
        number = value.operand if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub) else value
        if not isinstance(number, ast.Constant) or not isinstance(number.value, (int, float)) or value is number:
            continue
        if number.value > _LARGEST_HALF and blocks.path_of(call.func.value) is not None and torch_name(scope.module):
            found.append(Site(scope.module, scope, body, value))  # type: ignore[arg-type]
    return found


# ---- models ------------------------------------------------------------------------------------------------


def homes(program: Program) -> list[Home]:
    """Where the models of the program are prepared.

    Raises:
        Declined: a model that an optimizer trains was not found.
    """
    found, missing = Homes(program).find()
    if missing or not found:
        step = program.steps[0]
        what = f" ({missing[0].ref})" if missing and missing[0].kind == "instance" else ""
        raise refusal.decline(
            refusal.UNKNOWN_MODEL,
            step.module,
            step.node,
            f"the model{what} that `{step.module.text(step.optimizer)}` trains is not held by a variable that could be "
            f"followed{'' if missing else model_trail(program)}",
            "write `model = amp.prepare_model(model)` before the optimizer is built",
        )
    return found


def _reloads(program: Program, homes: list[Home]) -> list[tuple[Module, ast.stmt, str]]:
    """Assignments of a whole model from a file to a prepared variable: what was loaded is not prepared."""
    keys = {home.key for home in homes}
    found: list[tuple[Module, ast.stmt, str]] = []
    for site in program.calls_to(frozenset({"torch.load"})):
        statement = site.statement
        if not isinstance(statement, ast.Assign) or statement.value is not site.node:
            continue
        targets = [
            element
            for target in statement.targets
            for element in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
        for target in targets:
            path = blocks.path_of(target)
            if path is not None and program.flow.key(target, site.scope) in keys:
                found.append((site.module, statement, path))
    return found
