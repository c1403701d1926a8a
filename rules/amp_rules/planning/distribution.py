"""Deciding on several processes: who gets which data, what is kept equal, who writes files."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from amp_rules.planning import refusal
from amp_rules.planning.flags import flag_of, tell_apart
from amp_rules.planning.precision import Precision, first_use
from amp_rules.planning.reaching import reaches
from amp_rules.planning.sharing import Rebinding, share
from amp_rules.program import blocks
from amp_rules.program.data import DataFlow, TrainingData
from amp_rules.program.loaders import Loaders, is_loader
from amp_rules.program.modules import Module
from amp_rules.program.scopes import Scope, arguments_of
from amp_rules.program.steps import Program, Site, calling
from amp_rules.program.syntax import walk
from amp_rules.program.values import Value
from amp_rules.tables import torch_api as api

_LOOKS = frozenset({"exists", "isfile", "is_file", "lexists"})


@dataclass(frozen=True)
class Folder(Site):
    """A call that makes a folder.

    Attributes:
        looked: whether the script looked for it first.
        is_mkdir: whether it is ``os.mkdir``, which takes no ``exist_ok``.
    """

    looked: bool
    is_mkdir: bool


@dataclass
class Distribution:
    """What several processes take in one program.

    Attributes:
        delay: gradients are averaged when the optimizer steps, not by a wrapper during the backward pass.
        delay_reason: why, for the report.
        loaders: expressions to wrap in ``prepare_loader``.
        rebindings: variables that hold a loader made elsewhere.
        seed_before: statements before which each rank takes random numbers of its own.
        saves: statements that only the main process may run.
        reads: statements that read a file which the main process may still be writing.
        main_calls: calls that only the main process may make, with arguments that all must compute.
        unwraps: expressions of a prepared model that must be the model itself.
        parallel: calls of ``DataParallel``.
        spread: calls of the function ``data_parallel`` that a call of the model can stand for.
        devices: expressions that name a device by its index.
        downloads: statements that may download data.
        bars: calls that show a progress bar.
        folders: calls that make a folder.
        state_loads: state dicts that a model loads, which ``DataParallel`` may have saved.
        writers: constructors of logging clients.
    """

    delay: bool = False
    delay_reason: str = ""
    loaders: list[Site] = field(default_factory=list)
    rebindings: list[Rebinding] = field(default_factory=list)
    seed_before: list[tuple[Module, ast.stmt]] = field(default_factory=list)
    saves: list[tuple[Module, ast.stmt]] = field(default_factory=list)
    main_calls: list[Site] = field(default_factory=list)
    reads: list[tuple[Module, ast.stmt]] = field(default_factory=list)
    unwraps: list[Site] = field(default_factory=list)
    parallel: list[Site] = field(default_factory=list)
    spread: list[Site] = field(default_factory=list)
    devices: list[Site] = field(default_factory=list)
    downloads: list[tuple[Module, ast.stmt]] = field(default_factory=list)
    bars: list[Site] = field(default_factory=list)
    folders: list[Folder] = field(default_factory=list)
    state_loads: list[Site] = field(default_factory=list)
    writers: list[Site] = field(default_factory=list)
    visible_devices: list[tuple[Module, ast.stmt]] = field(default_factory=list)


def plan(program: Program, precision: Precision) -> Distribution:
    """Decide.

    Raises:
        Declined: with the first reason found.
    """
    check_own(program)
    _check_spread(program)
    data = DataFlow(program).training_data()
    found = Distribution()
    _check_data(program, data)
    _check_counts(program, data)
    by_flag = _check_flags(program, data)
    _check_decisions(program, precision)
    _check_loose_parameters(program)
    found.seed_before = _seeds(program, data)
    found.delay, found.delay_reason = _delay(program, precision)
    found.downloads = _downloads(program, precision)
    found.saves, found.main_calls = _saves(program, found.downloads)
    found.reads = _reads_of_saved(program, found.saves)
    found.parallel = program.calls_to(api.DATA_PARALLEL)
    found.spread = [site for site in program.calls_to(api.SPREAD_BY_HAND) if _is_one_call(program, site)]
    found.state_loads = _state_loads(program) if found.parallel else []
    found.unwraps = _unwraps(program)
    found.devices = _devices(program)
    found.bars = _bars(program)
    found.folders = _folders(program)
    found.writers = [site for site in program.calls_to(api.WRITERS) if _is_assigned(site)]
    found.visible_devices = _visible_devices(program)
    found.loaders, found.rebindings = share(program, data, _changed(program, precision, found))
    found.rebindings.extend(by_flag)
    return found


def _changed(program: Program, precision: Precision, found: Distribution) -> set[Module]:
    """The files that change in any case."""
    sites: list[Site] = [*precision.backwards, *precision.steps, *found.main_calls, *found.unwraps, *found.parallel]
    sites += found.spread
    sites += [*found.devices, *found.bars, *found.folders, *found.state_loads, *found.writers]
    sites += program.calls_to(frozenset(f"torch.optim.{name}" for name in api.FUSED_OPTIMIZERS))
    pairs = [*found.saves, *found.reads, *found.downloads, *found.seed_before, *found.visible_devices]
    return {
        program.entry,
        *(site.module for site in sites),
        *(module for module, _ in pairs),
        *(run.module for run in precision.runs),
        *(home.module for home in precision.homes),
    }


# ---- what is there already ---------------------------------------------------------------------------------


def check_own(program: Program) -> None:
    """Decline when the program starts or joins processes of its own."""
    found = first_use(program, api.OWN_DISTRIBUTION)
    if found is not None:
        module, node, name = found
        raise refusal.decline(
            refusal.OWN_DISTRIBUTION,
            module,
            node,
            f"the script sets up several processes itself (`{name}`)",
            "nothing to do for several processes; remove its own set-up first to use the runtime's",
            already=True,
        )
    for call, _, scope in program.calls():
        names = program.callee_names(call, scope)
        spawned = [
            name
            for name in names
            if name.startswith(("torch.multiprocessing.", "multiprocessing."))
            and name.rpartition(".")[2] in ("spawn", "Process", "start_processes")
        ]
        shared = (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "share_memory"
            and program.roles.modules(call.func.value, scope)
        )
        if spawned or shared:
            raise refusal.decline(
                refusal.OWN_DISTRIBUTION,
                scope.module,
                call,
                f"`{scope.module.text(call)}` makes processes of its own",
                "start the processes with torchrun instead, and train one model in each",
                already=not shared,
            )


def _check_spread(program: Program) -> None:
    """Decline when each process would copy its model to the GPUs of the others, or insist on ``DataParallel``."""
    for node, _, scope in program.nodes():
        if not isinstance(node, ast.Assert):
            continue
        for call in walk(node.test):
            if not (isinstance(call, ast.Call) and blocks.path_of(call.func) == "isinstance" and len(call.args) == 2):
                continue
            kind = call.args[1]
            if isinstance(kind, (ast.Name, ast.Attribute)) and program.names(kind, scope) & api.DATA_PARALLEL:
                raise refusal.decline(
                    refusal.GRADIENTS_OUTSIDE,
                    scope.module,
                    node,
                    f"`{scope.module.text(node)}` insists on `DataParallel`, which several processes do without",
                    "leave out what is meant for `DataParallel` alone",
                )
    for site in program.calls_to(api.SPREAD_BY_HAND):
        if _is_one_call(program, site):
            continue
        raise refusal.decline(
            refusal.GRADIENTS_OUTSIDE,
            site.module,
            site.node,
            f"`{site.module.text(site.node)}` spreads the model over all GPUs by hand, in each process",
            "call the model itself: each process has a GPU of its own",
        )


def _is_one_call(program: Program, site: Site) -> bool:
    """Whether this is ``data_parallel(model, x)`` with one input, as ``model(x)`` could be."""
    call = site.node
    assert isinstance(call, ast.Call)
    if not program.callee_names(call, site.scope) & api.SPREAD_IN_ONE_CALL or len(call.args) < 2:
        return False
    if any(isinstance(argument, ast.Starred) for argument in call.args) or len(call.args) > 5:
        return False
    if any(item.arg not in ("device_ids", "output_device", "dim") for item in call.keywords):
        return False
    is_pair = isinstance(call.args[1], (ast.Tuple, ast.List))
    return not is_pair and not any(value.kind == "sequence" for value in program.flow.values(call.args[1], site.scope))


# ---- data --------------------------------------------------------------------------------------------------


def _check_data(program: Program, data: TrainingData) -> None:
    for site in data.unfed:
        if site.node in data.random:
            continue
        raise refusal.decline(
            refusal.HAND_BATCHES,
            site.module,
            site.node,
            f"no DataLoader feeds `{site.module.text(site.loss)}`: every process would train on the same batches",
            "put the data in a Dataset and a DataLoader, or give each rank its share by `amp.rank()` and "
            "`amp.world_size()`",
        )


def _check_counts(program: Program, data: TrainingData) -> None:
    """Decline loops that count an epoch's batches by hand and take them by ``next``: a share has fewer."""
    trained = {use.node for use in data.uses}
    loaders = Loaders(program)
    for call, body, scope in program.calls():
        site = Site(scope.module, scope, body, call)
        if len(call.args) > 1 or not any(use.node in trained for use in loaders.taken(call, site)):
            continue
        for parent in blocks.enclosing(scope.module, call):
            if isinstance(parent, ast.Try):
                break
            if not isinstance(parent, blocks.LOOPS):
                continue
            if isinstance(parent, ast.For) and _is_counted(program, parent.iter, site):
                raise refusal.decline(
                    refusal.HAND_BATCHES,
                    scope.module,
                    parent,
                    f"`{scope.module.text(parent.iter)}` counts the batches of all processes; each has a share of them",
                    "write `range(len(loader))`, or iterate over the loader itself",
                )
            break


def _is_counted(program: Program, node: ast.expr, site: Site) -> bool:
    """Whether a range ends at a quotient, as ``size // batch_size``, that no loader's length is part of."""
    if not (isinstance(node, ast.Call) and blocks.path_of(node.func) == "range" and node.args):
        return False
    bounds: list[ast.expr] = [node.args[-1 if len(node.args) == 1 else 1]]
    for name in blocks.reads(bounds[0]):
        for other in program.nodes_of(site.body):
            if isinstance(other, ast.Assign) and name in {blocks.path_of(target) for target in other.targets}:
                bounds.append(other.value)
    parts = [part for bound in bounds for part in walk(bound)]
    for part in parts:
        if isinstance(part, ast.Call) and blocks.path_of(part.func) == "len" and part.args:
            if any(is_loader(value) for value in program.flow.values(part.args[0], site.scope)):
                return False
    return any(isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Div, ast.FloorDiv)) for part in parts)


def _check_flags(program: Program, data: TrainingData) -> list[Rebinding]:
    """Tell the loaders of loops apart that train or evaluate by a flag; decline where that is not certain.

    Shared out as a whole, evaluation would see a part of its data only.
    """
    found: list[Rebinding] = []
    for use in list(data.uses):
        several = len(use.values) > 1 or any(
            _in_comprehension(program, value) or _kept_in_loop(program, value) for value in use.values
        )
        for site in program.backwards:
            condition = flag_of(program, site)
            if condition is None:
                continue
            if use.body is not site.body and not (condition[1] is not None and _is_parameter(condition[1].name, site)):
                continue
            flag = condition[1]
            apart = tell_apart(program, use, flag, data) if flag is not None and use.body is site.body else None
            if apart is not None:
                data.uses.remove(use)
                data.uses.extend(apart.training)
                data.evaluated.extend(apart.evaluated)
                found.extend(apart.rebindings)
                break
            if several:
                raise refusal.decline(
                    refusal.HAND_BATCHES,
                    use.module,
                    use.loader,
                    f"one loop over `{use.module.text(use.loader)}` trains and evaluates: evaluation would see a share "
                    "of its data only",
                    "wrap the training loader in `amp.prepare_loader(...)` where it is made, and leave the other",
                )
    return found


def _in_comprehension(program: Program, value: Value) -> bool:
    """Whether one constructor makes several loaders: ``{phase: DataLoader(...) for phase in phases}``."""
    module = program.module_of(value.site) if value.site is not None else None
    if module is None or value.site is None:
        return False
    return any(isinstance(parent, (ast.DictComp, ast.ListComp)) for parent in module.ancestors(value.site))


def _kept_in_loop(program: Program, value: Value) -> bool:
    """Whether a loop makes several loaders and keeps them: ``for phase in ...: loaders[phase] = DataLoader(...)``."""
    module = program.module_of(value.site) if value.site is not None else None
    if module is None or value.site is None:
        return False
    statement = blocks.statement_of(module, value.site)
    names = blocks.writes(statement)
    for parent in blocks.enclosing(module, value.site):
        if isinstance(parent, ast.For):
            for node in walk(parent):
                kept = isinstance(node, ast.Assign) and any(isinstance(item, ast.Subscript) for item in node.targets)
                if kept and (node is statement or blocks.reads(node) & names):
                    return True
    return False


def _is_parameter(name: str, site: Site) -> bool:
    owner = site.scope.owner(name).node
    return isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
        argument.arg == name for argument in arguments_of(owner)
    )


def _check_loose_parameters(program: Program) -> None:
    """Decline optimizers of tensors that belong to no model: nothing would average their gradients."""
    for step in program.steps:
        for value in sorted(program.flow.values(step.optimizer, step.scope), key=lambda item: str(item.ref)):
            call = value.site
            located = program.locate(call) if isinstance(call, ast.Call) else None
            if located is None or not isinstance(call, ast.Call) or not program.loose_parameters(call):
                continue
            raise refusal.decline(
                refusal.GRADIENTS_OUTSIDE,
                located[1].module,
                call,
                f"`{located[1].module.text(call.func)}` is given tensors that belong to no model: their gradients "
                "would differ on each rank",
                "make them parameters of a module, and pass that to `amp.prepare_model`",
            )


def _check_decisions(program: Program, precision: Precision) -> None:
    """Decline conditions on values of tensors that choose what enters a loss: ranks would wait for each other."""
    training = {blocks.body_of(run.module, run.first) for run in precision.training}
    losses = {path for site in precision.backwards for path in blocks.reads(site.loss)}
    written = [blocks.writes(item) for run in precision.training for item in run.statements()]
    computed = losses.intersection(set().union(*written))
    for node, body, scope in program.nodes():
        if body not in training or not isinstance(node, ast.If):
            continue
        if not _reads_tensor(node.test) and not (
            _asks_for(node.test, computed) and (_leaves(node) or any(map(program.runs_backward, node.body)))
        ):
            continue
        inner = [item for suite in blocks.suites(node) for item in suite]
        decides = any(
            program.runs_backward(item) or program.runs_step(item) or blocks.writes(item) & losses for item in inner
        ) or (_leaves(node) and _follows_backward(program, scope.module, node))
        if decides and any(isinstance(parent, blocks.LOOPS) for parent in blocks.enclosing(scope.module, node)):
            raise refusal.decline(
                refusal.LOCAL_DECISION,
                scope.module,
                node,
                f"`{scope.module.text(node.test)}` differs between processes, and decides what is trained",
                "average the value over the ranks first: `amp.reduce_mean(value)`",
            )


def _reads_tensor(test: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item"
        for node in walk(test)
    )


def _asks_for(test: ast.expr, paths: set[str]) -> bool:
    """Whether a condition asks for the value of a loss: ``bool(loss == 0)``, ``torch.isnan(loss).any()``."""
    operators = [op for node in walk(test) if isinstance(node, ast.Compare) for op in node.ops]
    if any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in operators):
        return False
    calls = [node.func for node in walk(test) if isinstance(node, ast.Call)]
    return bool(blocks.reads(test) & paths) and not any(
        (isinstance(function, ast.Name) and function.id in ("isinstance", "hasattr", "len", "callable", "type"))
        or (isinstance(function, ast.Attribute) and function.attr in ("dim", "size", "numel"))
        for function in calls
    )


def _leaves(node: ast.If) -> bool:
    """Whether a branch goes on to the next batch, or ends the loop."""
    return any(isinstance(item, (ast.Continue, ast.Break)) for suite in (node.body, node.orelse) for item in suite)


def _follows_backward(program: Program, module: Module, node: ast.If) -> bool:
    """Whether the loop goes on to a backward pass after the condition."""
    inner: ast.stmt = node
    for parent in blocks.enclosing(module, node):
        where = blocks.place(module, inner)
        if any(program.runs_backward(item) for item in where.suite[where.index + 1 :]):
            return True
        if isinstance(parent, blocks.LOOPS):
            return False
        inner = parent
    return False


def _seeds(program: Program, data: TrainingData) -> list[tuple[Module, ast.stmt]]:
    """The outermost training loops that draw batches, noise or dropout masks."""
    found: dict[ast.stmt, Module] = {}
    flow = DataFlow(program)
    draws = flow.runs_draw
    for site in program.backwards:
        drawn = data.random.get(site.node)
        loops = list(flow.loops_of(site))
        if not loops or (drawn is None and not flow.has_dropout and not any(draws(loop.node) for loop in loops)):
            continue
        outermost = loops[-1]
        assert isinstance(outermost.node, ast.stmt)
        statement = outermost.node if drawn is None else _first_draw(program, outermost, drawn)
        found[statement] = outermost.module
    return [(module, statement) for statement, module in found.items()]


def _first_draw(program: Program, loop: Site, drawn: Site) -> ast.stmt:
    """The loop, or the statement before it that fetches the first batch already."""
    assert isinstance(loop.node, ast.stmt)
    callees = {info for node in walk(drawn.node) if isinstance(node, ast.Call) for info in program.flow.callees(node)}
    where = blocks.place(loop.module, loop.node)
    for statement in where.suite[: where.index]:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            continue
        for node in blocks.walk_own(statement):
            if isinstance(node, ast.Call) and callees & program.flow.callees(node):
                return statement
    return loop.node


# ---- models ------------------------------------------------------------------------------------------------


def _delay(program: Program, precision: Precision) -> tuple[bool, str]:
    """Whether the plain wrapper is not enough: it supports one forward and one backward pass a step."""
    if len(precision.homes) > 1:
        return True, "several models are trained together"
    if len(precision.backwards) > 1:
        return True, "a step has several backward passes"
    if precision.full_precision:
        return True, "gradients are computed by torch.autograd.grad"
    if any(not home.rebinds for home in precision.homes):
        return True, "the model is kept in other places before it is complete"
    home = precision.homes[0]
    calls = _training_calls(program, precision)
    overriding = _override_each_other(program, calls) and _runs_once(program, home.module, home.statement)
    if len(calls) != 1 and not overriding and not _one_of(calls):
        return True, "the model runs several times, or not as a plain call, in a step"
    site = calls[0]
    assert isinstance(site.node, ast.Call)
    if (
        program.flow.callees(site.node)
        and isinstance(site.node.func, ast.Attribute)
        and site.node.func.attr == "forward"
    ):
        return True, "forward is called by name"
    backward = precision.backwards[0]
    if not all(_same_round(program, call, backward) for call in (calls if overriding else [site])):
        return True, "a step adds up several forward passes"
    for step in precision.steps:
        if any(isinstance(parent, ast.If) for parent in _between(step, backward)) or _outside_loop(step, backward):
            return True, "gradients are accumulated over several batches"
    if not all(reaches(program, home, call) for call in (calls if overriding else [site])):
        return True, "the training loop has its own reference to the model"
    return False, ""


def _training_calls(program: Program, precision: Precision) -> list[Site]:
    """Calls of trained models, and of methods of theirs, that a training step makes."""
    covered = {node for run in precision.training for item in run.statements() for node in blocks.walk_own(item)}
    covered |= {node for site in precision.backwards for node in walk(site.loss)}
    called = program.called_from(covered)
    found: list[Site] = []
    for node, body, scope in program.nodes():
        if not isinstance(node, ast.Call) or not (node in covered or body in called) or program.is_model_code(body):
            continue
        site = Site(scope.module, scope, body, node)
        if program.without_gradients(scope.module, node, body):
            continue
        if any(program.is_trained(value) for value in program.called_models(node, scope)):
            found.append(site)
        elif isinstance(node.func, ast.Attribute) and program.flow.callees(node) and program.runs_model(node):
            if any(program.is_trained(value) for value in program.roles.modules(node.func.value, scope)):
                found.extend([site, site])
    return found


def _one_of(sites: list[Site]) -> bool:
    """Whether only one of the calls runs: they stand in different branches of one condition."""
    if len({ast.unparse(site.node.func) for site in sites if isinstance(site.node, ast.Call)}) != 1 or len(sites) != 2:
        return False
    one, two = sites
    for parent in blocks.enclosing(one.module, one.node):
        if isinstance(parent, ast.If):
            first = {node for item in parent.body for node in walk(item)}
            second = {node for item in parent.orelse for node in walk(item)}
            if (one.node in first and two.node in second) or (two.node in first and one.node in second):
                return True
    return False


def _override_each_other(program: Program, sites: list[Site]) -> bool:
    """Whether only one of the calls runs: they stand in methods of one name, of classes with one base."""
    infos = [program.function_of(site.body) for site in sites]
    owners = [info.owner for info in infos if info is not None and info.owner is not None]
    if len(sites) < 2 or len({id(owner) for owner in owners}) != len(sites):
        return False
    if len({info.name for info in infos if info is not None}) != 1:
        return False
    if not set.intersection(*({id(base) for base in owner.mro()[1:]} for owner in owners)):
        return False
    # ``super().loss(batch)`` runs the other one too.
    return not any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
        for site in sites
        for node in program.nodes_of(site.body)
    )


def _runs_once(program: Program, module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Whether no loop and no second caller runs a node again: two wrapped models may share parts."""
    if any(isinstance(parent, blocks.LOOPS) for parent in blocks.enclosing(module, node)):
        return False
    info = program.function_of(blocks.body_of(module, node))
    if info is None or not info.callers:
        return True
    if len(info.callers) > 1 or depth > 4:
        return False
    site = calling(info.callers[0])
    return _runs_once(program, site.module, site.node, depth + 1)


def _same_round(program: Program, site: Site, backward: Site) -> bool:
    """Whether the model's call runs once for each backward pass."""
    if site.body is not backward.body:
        loops = [parent for parent in blocks.enclosing(site.module, site.node) if isinstance(parent, blocks.LOOPS)]
        return not loops
    inner = [parent for parent in blocks.enclosing(site.module, site.node) if isinstance(parent, blocks.LOOPS)]
    outer = [parent for parent in blocks.enclosing(backward.module, backward.node) if isinstance(parent, blocks.LOOPS)]
    return inner == outer


def _between(step: Site, backward: Site) -> list[ast.stmt]:
    """Compound statements around the step that do not hold the backward pass."""
    if step.body is not backward.body:
        return [parent for parent in blocks.enclosing(step.module, step.node)]
    around = set(blocks.enclosing(backward.module, backward.node))
    return [parent for parent in blocks.enclosing(step.module, step.node) if parent not in around]


def _outside_loop(step: Site, backward: Site) -> bool:
    """Whether the backward pass runs in a loop that ends before the step."""
    if step.body is not backward.body:
        return False
    around = set(blocks.enclosing(step.module, step.node))
    return any(
        isinstance(parent, blocks.LOOPS) and parent not in around
        for parent in blocks.enclosing(backward.module, backward.node)
    )


# ---- the main process --------------------------------------------------------------------------------------


def _is_assigned(site: Site) -> bool:
    parent = site.module.parents[site.node]
    return isinstance(parent, ast.Assign)


def _saves(
    program: Program, downloads: list[tuple[Module, ast.stmt]]
) -> tuple[list[tuple[Module, ast.stmt]], list[Site]]:
    found: dict[ast.stmt, Module] = {}
    calls: list[Site] = []
    # Under ``main_process_first`` each process in turn needs all that it does.
    first_only = program.called_from(_nodes_of(downloads))
    for site in _writing_calls(program):
        statement = site.statement
        if not isinstance(statement, ast.Expr) or site.body in first_only:
            continue
        for parent in blocks.enclosing(site.module, statement):
            if isinstance(parent, ast.With) and _opens_file(parent):
                statement = parent
                break
        if _guarded(site.module, statement):
            continue
        opened = _opened_before(site) if statement is site.statement else None
        if opened is not None:
            # Whoever opens a file to write empties it, so one process does that too, or all write as they did.
            found |= dict.fromkeys(opened, site.module)
            continue
        if program.runs_forward(statement):
            # A forward pass is everybody's: batch norm may be synchronised in it.
            calls.append(site)
        else:
            found[statement] = site.module
    for node, body, scope in program.nodes():
        if not isinstance(node, ast.With) or node in found or body in first_only or _guarded(scope.module, node):
            continue
        if _only_writes(node) and not _read_later(program, body, node):
            found[node] = scope.module
    inner = {child for statement in found for child in walk(statement) if child is not statement}
    found = {statement: module for statement, module in found.items() if statement not in inner}
    return [(module, statement) for statement, module in found.items()], calls


def _writing_calls(program: Program) -> list[Site]:
    """Calls that write a file or show a window."""
    found = program.calls_to(api.SAVERS)
    known = {site.node for site in found}
    for call, body, scope in program.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr == "savefig" and call not in known:
            found.append(Site(scope.module, scope, body, call))
    return [site for site in found if not _writes_memory(program, site)]


def _opened_before(site: Site) -> list[ast.stmt] | None:
    """The statements from ``file = open(path, "w")`` to the close, where the call writes to such a file.

    None where it does not; empty where more than writing lies between them.
    """
    assert isinstance(site.node, ast.Call)
    names = {item.id for item in site.node.args if isinstance(item, ast.Name)}
    where = blocks.place(site.module, site.statement)
    for index in range(where.index - 1, -1, -1):
        first = where.suite[index]
        if not (isinstance(first, ast.Assign) and isinstance(first.targets[0], ast.Name)):
            continue
        name = first.targets[0].id
        if name not in names or not (isinstance(first.value, ast.Call) and _opens_to_write(first.value)):
            continue
        for last in range(where.index + 1, len(where.suite)):
            statement = where.suite[last]
            if isinstance(statement, ast.Expr) and ast.unparse(statement.value) == f"{name}.close()":
                between = where.suite[index + 1 : last]
                later = {path for item in where.suite[last + 1 :] for path in blocks.reads(item)}
                if all(isinstance(item, ast.Expr) and name in blocks.reads(item) for item in between):
                    return [] if name in later else list(where.suite[index : last + 1])
                return []
        return []
    return None


def _writes_memory(program: Program, site: Site) -> bool:
    """Whether the file is a buffer in memory, which every process goes on to use."""
    assert isinstance(site.node, ast.Call)
    given = [*site.node.args, *(item.value for item in site.node.keywords)]
    return any(
        value.kind == "object" and value.ref in ("io.BytesIO", "io.StringIO")
        for argument in given
        if isinstance(argument, (ast.Name, ast.Attribute))
        for value in program.flow.values(argument, site.scope)
    )


def _read_later(program: Program, body: ast.AST, node: ast.With) -> bool:
    """Whether the function goes on to use the file that it has just written."""
    paths = {
        ast.unparse(item.context_expr.args[0])
        for item in node.items
        if isinstance(item.context_expr, ast.Call) and item.context_expr.args
    }
    inside = set(walk(node))
    return any(
        isinstance(other, ast.Call)
        and other not in inside
        and other.lineno > node.lineno
        and not _opens_to_write(other)
        and any(ast.unparse(argument) in paths for argument in other.args)
        for other in program.nodes_of(body)
    )


def _opens_to_write(call: ast.Call) -> bool:
    if blocks.path_of(call.func) not in ("open", "io.open", "gzip.open", "bz2.open", "lzma.open"):
        return False
    mode = call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.arg == "mode"), None)
    return isinstance(mode, ast.Constant) and str(mode.value)[:1] in ("w", "a", "x")


def _only_writes(node: ast.With) -> bool:
    """``with open(path, "w") as f:`` whose block does nothing but write."""
    names: set[str] = set()
    for item in node.items:
        call = item.context_expr
        if not isinstance(call, ast.Call):
            return False
        if not _opens_to_write(call):
            return False
        if isinstance(item.optional_vars, ast.Name):
            names.add(item.optional_vars.id)
    return bool(names) and _all_write(node.body, names)


def _all_write(suite: list[ast.stmt], names: set[str]) -> bool:
    """Whether every statement is a call on one of the open files, in loops and conditions too."""
    for statement in suite:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            # ``writer = csv.writer(file)``
            function = blocks.path_of(statement.value.func) or ""
            if not function.endswith(("writer", "DictWriter")):
                return False
            names |= blocks.writes(statement)
            continue
        if isinstance(statement, (ast.For, ast.If)):
            if not all(_all_write(inner, names) for inner in blocks.suites(statement)):
                return False
            continue
        called = statement.value if isinstance(statement, ast.Expr) else None
        if not (isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute)):
            return False
        if blocks.path_of(called.func.value) not in names:
            return False
    return True


def _reads_of_saved(program: Program, saves: list[tuple[Module, ast.stmt]]) -> list[tuple[Module, ast.stmt]]:
    """Statements that load what a guarded statement of the same file has saved, by the expression of the path."""
    saved = {
        (module, ast.unparse(argument))
        for module, statement in saves
        for node in walk(statement)
        if isinstance(node, ast.Call)
        for argument in [*node.args[:2], *(item.value for item in node.keywords if item.arg == "f")]
        if not isinstance(argument, ast.Constant) or isinstance(argument.value, str)
    }
    found: dict[ast.stmt, Module] = {}
    loads = {site.node for site in program.calls_to(frozenset({"torch.load"}))}
    saving = {node for _, statement in saves for node in walk(statement)}
    for site in program.calls_to(frozenset({"torch.load", "builtins.open"})):
        call = site.node
        assert isinstance(call, ast.Call)
        if not call.args or _opens_to_write(call) or (site.module, ast.unparse(call.args[0])) not in saved:
            continue
        statement = site.statement
        if statement not in saving and any(node in loads for node in walk(statement)):
            found[_before_the_look(site.module, statement)] = site.module
    found |= {statement: module for module, statement in _handed_on(saves) if statement not in saving}
    inner = {child for statement in found for child in walk(statement) if child is not statement}
    return [(module, statement) for statement, module in found.items() if statement not in inner]


def _before_the_look(module: Module, statement: ast.stmt) -> ast.stmt:
    """The outermost condition around a statement that looks whether a file is there: ranks may see it differently."""
    found = statement
    for parent in blocks.enclosing(module, statement):
        if isinstance(parent, ast.If) and any(
            isinstance(node, ast.Call)
            and isinstance(node.func, (ast.Name, ast.Attribute))
            and (node.func.id if isinstance(node.func, ast.Name) else node.func.attr) in _LOOKS
            for node in walk(parent.test)
        ):
            found = parent
    while True:
        above = module.parents[found]
        if not (isinstance(above, ast.If) and above.orelse == [found]):
            return found
        found = above  # an ``elif``, before which nothing can stand


def _handed_on(saves: list[tuple[Module, ast.stmt]]) -> Iterator[tuple[Module, ast.stmt]]:
    """Statements beside a guarded one that give the path of the file just written to something else that reads it."""
    for module, saving in saves:
        paths = {
            ast.unparse(node.args[0])
            for node in walk(saving)
            if isinstance(node, ast.Call) and node.args and _opens_to_write(node)
        }
        where = blocks.place(module, saving)
        for statement in where.suite[where.index + 1 :] if paths else ():
            calls = [node for node in blocks.walk_own(statement) if isinstance(node, ast.Call)]
            if isinstance(statement, (ast.Assign, ast.Expr)) and any(
                ast.unparse(argument) in paths and not _opens_to_write(call) and blocks.path_of(call.func) != "print"
                for call in calls
                for argument in call.args
            ):
                yield module, statement
                break


def _opens_file(node: ast.With) -> bool:
    return any(
        (
            isinstance(item.context_expr, ast.Call)
            and blocks.path_of(item.context_expr.func) in ("open", "io.open", "gzip.open")
        )
        or (
            isinstance(item.context_expr, ast.Call)
            and isinstance(item.context_expr.func, ast.Attribute)
            and item.context_expr.func.attr == "open"
        )
        for item in node.items
    )


def _guarded(module: Module, statement: ast.stmt) -> bool:
    return any(
        isinstance(parent, ast.If) and "is_main_process" in ast.unparse(parent.test)
        for parent in blocks.enclosing(module, statement)
    )


def _state_loads(program: Program) -> list[Site]:
    found = []
    for call, body, scope in program.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr == "load_state_dict" and call.args:
            if any(program.is_trained(value) for value in program.roles.modules(call.func.value, scope)):
                found.append(Site(scope.module, scope, body, call.args[0]))
    return found


def _unwraps(program: Program) -> list[Site]:
    """Models whose state is saved, or that are saved whole, and ``model.module`` of what was ``DataParallel``."""
    found: dict[ast.AST, Site] = {}
    for node, body, scope in program.nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "state_dict":
            receiver = node.func.value
            if isinstance(receiver, ast.Attribute) and receiver.attr == "module":
                continue
            trained = any(program.is_trained(value) for value in program.roles.modules(receiver, scope))
            if trained and not program.is_model_code(body):
                found[receiver] = Site(scope.module, scope, body, receiver)
        elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            if "torch.save" in program.names(node.func, scope) and node.args:
                for part in walk(node.args[0]):
                    if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load):
                        parent = scope.module.parents[part]
                        if isinstance(parent, (ast.Attribute, ast.Call)) and parent is not node:
                            continue
                        if any(program.is_trained(value) for value in program.roles.modules(part, scope)):
                            found[part] = Site(scope.module, scope, body, part)
        elif isinstance(node, ast.Attribute) and node.attr == "module" and isinstance(node.ctx, ast.Load):
            if any(program.is_trained(value) for value in program.roles.modules(node.value, scope)):
                if not program.is_model_code(body):
                    found[node] = Site(scope.module, scope, body, node)
    return list(found.values())


# ---- devices and folders -----------------------------------------------------------------------------------


def _devices(program: Program) -> list[Site]:
    """Expressions that choose a device by its index, which must be each process's own."""
    found: dict[ast.AST, Site] = {}
    for call, body, scope in program.calls():
        names = program.callee_names(call, scope)
        if "torch.device" in names and call.args:
            if _may_have_index(call.args[0]):
                found[call] = Site(scope.module, scope, body, call)
        elif names & {"torch.cuda.set_device"} and call.args:
            found[call.args[0]] = Site(scope.module, scope, body, call.args[0])
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ("cuda", "to") and call.args and not names:
            argument = call.args[0]
            if isinstance(argument, ast.Call) and isinstance(argument.func, ast.Attribute):
                if argument.func.attr == "get_device":
                    continue  # where another tensor is, which is right in every process
            is_index = any(
                value.kind == "constant" and type(value.ref) is int for value in program.flow.values(argument, scope)
            )
            if (
                call.func.attr == "cuda"
                or is_index
                or (isinstance(argument, ast.Constant) and _may_have_index(argument))
            ):
                if not (isinstance(argument, ast.Constant) and isinstance(argument.value, bool)):
                    found[argument] = Site(scope.module, scope, body, argument)
    return list(found.values())


def _may_have_index(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int) or (isinstance(node.value, str) and ":" in node.value)
    if isinstance(node, ast.IfExp):
        return _may_have_index(node.body) or _may_have_index(node.orelse)
    return True


def _visible_devices(program: Program) -> list[tuple[Module, ast.stmt]]:
    found = []
    for node, _, scope in program.nodes():
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Subscript)
            and isinstance(target.slice, ast.Constant)
            and target.slice.value == "CUDA_VISIBLE_DEVICES"
            for target in node.targets
        ):
            found.append((scope.module, node))
    return found  # type: ignore[return-value]


def _downloads(program: Program, precision: Precision) -> list[tuple[Module, ast.stmt]]:
    """Statements that may download, the outermost of those that call each other."""
    fetches = program.closure(lambda node: _fetches(program, node))
    # Preparing a model is a meeting of all ranks: it cannot be done in turns.
    homes = {home.statement for home in precision.homes}
    meets = program.closure(lambda node: node in homes)
    found: dict[ast.stmt, Module] = {}
    for node, _, scope in program.nodes():
        if not isinstance(node, (ast.Assign, ast.Expr, ast.Return, ast.AnnAssign)) or not fetches(node):
            continue
        if not program.runs_backward(node) and not meets(node):
            found[node] = scope.module
    downloads = [(module, statement) for statement, module in found.items()]
    inner = program.called_from(_nodes_of(downloads))
    return [item for item in downloads if blocks.body_of(*item) not in inner]


def _fetches(program: Program, node: ast.AST) -> bool:
    """Whether a call may download by itself."""
    located = program.locate(node) if isinstance(node, ast.Call) else None
    if located is None or not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Name, ast.Attribute)):
        return False
    names = program.names(node.func, located[1])
    if any(name.endswith(fetcher) for name in names for fetcher in api.FETCHERS):
        return True
    is_model = any(name.startswith("torchvision.models.") for name in names)
    return any(
        (item.arg == "download" or (is_model and item.arg in ("pretrained", "weights")))
        and not (isinstance(item.value, ast.Constant) and not item.value.value)
        for item in node.keywords
    )


def _nodes_of(statements: Iterable[tuple[Module, ast.stmt]]) -> list[ast.AST]:
    return [node for _, statement in statements for node in blocks.walk_own(statement)]


def _bars(program: Program) -> list[Site]:
    found = []
    for call, body, scope in program.calls():
        names = program.callee_names(call, scope)
        if any(
            name.startswith("tqdm.") and name.rpartition(".")[2] in ("tqdm", "trange", "tqdm_notebook")
            for name in names
        ):
            if not any(item.arg in ("disable", None) for item in call.keywords) and not _is_given(call.func, scope):
                found.append(Site(scope.module, scope, body, call))
    return found


def _is_given(function: ast.expr, scope: Scope) -> bool:
    """Whether a parameter holds the function: something that takes other arguments may be passed as well."""
    if not isinstance(function, ast.Name):
        return False
    owner = scope.owner(function.id).node
    return isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and any(
        argument.arg == function.id for argument in arguments_of(owner)
    )


def _folders(program: Program) -> list[Folder]:
    """Calls that make a folder and fail where another process has made it in between."""
    found = []
    for call, body, scope in program.calls():
        names = program.callee_names(call, scope)
        keywords = {item.arg: item.value for item in call.keywords}
        is_os = bool(names & {"os.mkdir", "os.makedirs"}) and bool(call.args)
        is_path = isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir" and not names and not call.args
        allowed = keywords.get("exist_ok")
        if not (is_os or (is_path and {"parents", "exist_ok"} & set(keywords))) or None in keywords:
            continue
        if "os.mkdir" in names and not isinstance(call.func, ast.Attribute):
            continue  # ``from os import mkdir``: there is no ``makedirs`` to call instead
        if isinstance(allowed, ast.Constant) and allowed.value:
            continue
        around = [parent for parent in blocks.enclosing(scope.module, call) if not isinstance(parent, ast.Expr)]
        if any(isinstance(parent, ast.Try) for parent in around):
            continue
        folder = call.args[0] if call.args else call.func
        path = ast.unparse(folder.value if isinstance(folder, ast.Attribute) and not call.args else folder)
        looked = any(isinstance(parent, ast.If) and _looks_for(parent.test, path) for parent in around)
        found.append(Folder(scope.module, scope, body, call, looked, "os.mkdir" in names))
    return found


def _looks_for(test: ast.expr, path: str) -> bool:
    """Whether a condition holds only where a folder is missing."""
    return any(
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.Not)
        and ast.unparse(node.operand).endswith(
            (f"exists({path})", f"isdir({path})", f"{path}.exists()", f"{path}.is_dir()")
        )
        for node in walk(test)
    )
