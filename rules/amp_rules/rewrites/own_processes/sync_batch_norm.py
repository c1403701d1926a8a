"""Synchronise batch norm, in a script with processes of its own.

## What it does
Before a model that has batch norm is wrapped in `DistributedDataParallel`, its batch norm becomes torch's
`SyncBatchNorm`, of the processes that the wrapper is given by `process_group`. Where the model may be on the CPU, which
torch's has no kernel for, a test for that stands before it, and so does that of an expression that wraps it in one case
alone, `DDP(net) if several else net`.
`--no-sync-bn` leaves it out. That the script trains to other results then is noted (AMP280).

## Why
Batch norm of one process takes mean and variance of its share of the batch alone. With few samples on each process that
trains to other results than one process with all of them.

## Before
    model = DistributedDataParallel(model, device_ids=[local_rank])

## After
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DistributedDataParallel(model, device_ids=[local_rank])

## When it declines
Where the script speaks of synchronised batch norm anywhere, behind a switch of its own that something reads (AMP288
names it where it is off unless it is given); where
the model is not known to have batch norm, and is no network that an option chooses among torchvision's; where a layer
of its own calls `F.batch_norm`, which stays that of each process; where samples are shuffled between the processes
for the sake of batch norm, as momentum contrast does; where a draw or a number out of a tensor decides whether batch
norm runs at all, as in stochastic depth, by a condition around it, a `return` before it, or a choice of layers; where
the model is on the CPU for certain; where something looks for `nn.BatchNorm2d` later, which the new class is not, or
differentiates twice (AMP288).

## Leaving it out
Yes: each process then normalises by its own share, as it did.

## Source
https://pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace

from amp_rules.flow.values import Value
from amp_rules.plan.batch_norms import BatchNorms, is_chosen
from amp_rules.plan.context import Change
from amp_rules.plan.file_names import place_of
from amp_rules.plan.given_flags import may_be_true
from amp_rules.plan.own_ddp.averaging import may_average
from amp_rules.plan.own_ddp.drawn_layers import skipped_by_some
from amp_rules.plan.own_ddp.dropped_wrappers import is_dropped
from amp_rules.plan.own_ddp.earlier import Earlier
from amp_rules.plan.own_ddp.kept_in_evaluation import is_kept_in_evaluation
from amp_rules.plan.own_ddp.left_on_cpu import is_left_on_cpu
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_tests import certain_parts
from amp_rules.plan.own_ddp.switches import off_unless_given
from amp_rules.plan.rule import Rule
from amp_rules.roles.batch_norm import names_batch_norm
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import argument_at, keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import is_none, last_name, walk
from amp_rules.text.actions import Action, Insert, Replace
from amp_rules.text.expression_edits import call_with, substitute
from amp_rules.torch.devices import KEEPS_DEVICE, MOVING_MODELS
from amp_rules.torch.distributed import CONVERTING_NAMES, GATHERS, SYNC_BATCH_NORM, SYNCHRONISED_NORM
from amp_rules.torch.wrappers import PREPARES

RULE = Rule(
    "AMP230", "sync-batch-norm", "Batch norm is synchronised over the processes.", "distribution", optional=True
)

_CONVERT = "torch.nn.SyncBatchNorm.convert_sync_batchnorm"
_IF_ANY = "batch norm, if there is any,"
_GIVES_PRECISION = PREPARES | {"apex.amp.initialize"}
_ORDERS = frozenset({"torch.randperm"})
_SENDS = frozenset({"torch.distributed.broadcast"})
_ON_START = ("__init__", "init", "reset", "load", "weights")


def changes(own: OwnDdp) -> Iterator[Change]:
    """Yield a line above each wrapper, Apex's among them; above none where one has to do without."""
    if not own.options.sync_bn:
        return
    norms = BatchNorms(own.program)
    if _is_synchronised(own.program):
        _leave_to_switch(own, norms)
        return
    if not own.wraps and may_average(own.program):
        _leave_averaged_by_hand(own, norms)
    found: list[Change | None] = []
    said: set[str] = set()
    on_cpu: list[Site] = []
    for site in own.wraps:
        call = site.node
        assert isinstance(call, ast.Call)
        model = argument_at(call, "module", 0)
        if model is None or isinstance(model, ast.Starred) or is_dropped(own, site):
            continue
        values = own.program.roles.modules(model, site.scope)
        if not any(map(norms.are_in, values)) or _is_frozen(own, values, norms):
            continue
        if is_left_on_cpu(own, site, model):
            on_cpu.append(site)
            continue
        reason = _by_function(own, values, norms) or _against(own.program, site, norms)
        convert = own.word(site.module, _CONVERT)
        if reason is not None or convert is None:
            text = reason or "no line at the head of this file imports torch in every case"
            norm = "batch norm" if _is_named(own.program) else _IF_ANY
            if text not in said:  # several models, and branches that wrap one, stay for one reason
                own.leave(RULE, site.module, call, f"{norm} is not synchronised: {text}")
            said.add(text)
            found.append(None)
        else:
            found.append(_change(own, site, call, model, convert, _norm_in(values, norms)))
    if on_cpu and not found:
        text = "the model is on the CPU here, where torch's `SyncBatchNorm` cannot train"
        own.leave(RULE, on_cpu[0].module, on_cpu[0].node, f"batch norm is not synchronised: {text}")
    # Branches that wrap one model each in a way of their own would train to other results.
    if None not in found:
        yield from _joined(_each_once([change for change in found if change is not None]))


def _each_once(found: list[Change]) -> list[Change]:
    """The changes without those that put a line where another one puts the same: two wrappers in one expression."""
    lines: dict[object, Change] = {}
    for change in found:
        put = [(item.statement, item.code) for item in change.actions if isinstance(item, Insert)]
        lines.setdefault(tuple(put) if len(put) == len(change.actions) else change.node, change)
    return list(lines.values())


def _joined(found: list[Change]) -> Iterator[Change]:
    """Yield the changes, with one line above an ``if`` in the place of the same line in each of its branches."""
    lines = {
        action.statement: (change, action)
        for change in found
        for action in change.actions
        if isinstance(action, Insert) and len(change.actions) == 1
    }
    gone: set[int] = set()
    for change in found:
        if id(change) in gone:
            continue
        twin = None
        for statement, (own, line) in lines.items():
            fork = change.module.parents.get(statement) if own is change else None
            if isinstance(fork, ast.If) and fork.orelse and statement is fork.body[0]:
                twin = lines.get(fork.orelse[0])
                if twin is not None and twin[1].code == line.code and _may_stand_above(change.module, fork, line.code):
                    gone.add(id(twin[0]))
                    change = replace(change, actions=[replace(line, statement=fork)])
                break
        yield change


def _may_stand_above(module: Module, fork: ast.If, line: str) -> bool:
    """Whether a line can stand above an ``if`` whose branches begin with it: no ``elif``, and no test of the model."""
    around = module.parents.get(fork)
    is_elif = isinstance(around, ast.If) and around.orelse == [fork]
    written = {path for node in ast.parse(line).body for path in blocks.writes(node)}
    return not is_elif and not blocks.touches(blocks.reads(fork.test), written)


def _leave_averaged_by_hand(own: OwnDdp, norms: BatchNorms) -> None:
    """Note the first model with batch norm of which the script averages the gradients itself: nothing wraps it."""
    for value in sorted(own.program.trained, key=lambda item: getattr(item.site, "lineno", 0)):
        located = own.program.locate(value.site) if isinstance(value.site, ast.Call) else None
        if located is None or located[1].module not in own.modules or is_chosen(value):
            continue
        if norms.are_in(value) and not _is_frozen(own, {value}, norms) and isinstance(value.site, ast.Call):
            text = (
                "batch norm is not synchronised: the script averages gradients by hand, and each process keeps "
                f"statistics of its share; `{_CONVERT}` needs no wrapper"
            )
            own.leave(RULE, located[1].module, value.site, text)
            return


def _leave_to_switch(own: OwnDdp, norms: BatchNorms) -> None:
    """Note where the script synchronises batch norm by options alone that are off unless they are given."""
    converting = [
        Site(scope.module, scope, body, call)
        for call, body, scope in own.program.calls()
        if last_name(call.func) in CONVERTING_NAMES and body not in own.uncalled
    ]
    switches = off_unless_given(own) if converting else {}
    options = [_switch_of(own, site, switches) for site in converting]
    # An option without which there is one process, or no wrapper, is on wherever this counts.
    starting = {_switch_of(own, site, switches) for site in (*own.joins, *own.wraps)} if switches else set()
    if not switches or None in options or starting & {*options} or _names_its_class(own.program):
        return
    values: set[Value] = set()
    for wrapping in own.wraps:
        assert isinstance(wrapping.node, ast.Call)
        model = argument_at(wrapping.node, "module", 0)
        values |= own.program.roles.modules(model, wrapping.scope) if model is not None else set()
    if not any(map(norms.are_in, values)) or _is_frozen(own, values, norms) or _shuffled_between_processes(own.program):
        return
    text = f"{_norm_in(values, norms)} is that of each process unless `{options[0]}` is given"
    own.leave(RULE, converting[0].module, converting[0].node, text)


def _norm_in(values: set[Value], norms: BatchNorms) -> str:
    """The batch norm of models in words: one that an option chooses may have none."""
    return "batch norm" if any(norms.are_in(item) and not is_chosen(item) for item in values) else _IF_ANY


def _switch_of(own: OwnDdp, site: Site, switches: Mapping[str, str]) -> str | None:
    """The option without which no run comes to a place."""
    parts = (part for test, holds in own.branches(site.module, site.node) for part in certain_parts(test, holds))
    return next((switches[last_name(part)] for part, is_on in parts if is_on and last_name(part) in switches), None)


def _names_its_class(program: Program) -> bool:
    """Whether a layer of synchronised batch norm is named otherwise than to convert to it, and may be built in."""
    return any(
        last_name(node) in SYNC_BATCH_NORM - CONVERTING_NAMES
        and not (isinstance(outer := module.parents[node], ast.Attribute) and outer.attr in CONVERTING_NAMES)
        for module in program.flow.modules
        for node in module.nodes
        if isinstance(node, (ast.Name, ast.Attribute))
    )


def _change(own: OwnDdp, site: Site, call: ast.Call, model: ast.expr, convert: str, norm: str) -> Change | None:
    message = f"{norm} of `{site.module.text(model)}` is that of the batch of all processes"
    path = blocks.path_of(model) if isinstance(model, (ast.Name, ast.Attribute)) else None
    statement = site.statement
    actions: list[Action] = []
    case = _case_of(own, site)
    given = keyword(call, "process_group")
    group = own.source(site.module, given) if given is not None and not is_none(given) else None
    if given is not None and group is not None and blocks.path_of(given) is None:
        text = "the group of the wrapper has no name, and batch norm would need the same one"
        own.leave(RULE, site.module, call, f"batch norm is not synchronised: {text}")
        return None
    more = [group] if group is not None else []
    if path is None and (_is_on_cuda(own, call) or _is_moved_to_cuda(model)):
        return Change(RULE, site.module, model, message, [Replace(model, call_with(convert, *more))])
    if path is None:
        # ``model = DDP(Net())``: a test of where it lives needs a name for it.
        target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is call else None
        path = blocks.path_of(target) if isinstance(target, (ast.Name, ast.Attribute)) else None
        if path is None or model.lineno != model.end_lineno:
            own.leave(
                RULE, site.module, call, "batch norm is not synchronised: the model has no name before it is wrapped"
            )
            return None
        actions = [Insert(statement, f"{path} = {own.source(site.module, model)}", order=-1)]
        actions.append(Replace(model, substitute(path)))
    elif case is None:
        own.leave(RULE, site.module, call, "batch norm is not synchronised: no line can stand above the wrapper")
        return None
    line = f"{path} = {convert}({', '.join([path, *more])})"
    tests = [case] if case else []
    if not _is_on_cuda(own, call) and not _is_moved_above(own, site, model, path):
        tests.append(f"next({path}.parameters()).is_cuda")
    if tests:
        line = f"if {' and '.join(tests)}:\n    {line}"
    where = statement if actions else _above_precision(own, site, path)
    return Change(RULE, site.module, call, message, [*actions, Insert(where, line)])


def _above_precision(own: OwnDdp, site: Site, path: str) -> ast.stmt:
    """The statement of a wrapper; the one above it where that gives the model its precision, which comes last."""
    where = blocks.place(site.module, site.statement)
    above = where.suite[where.index - 1] if where.index else None
    if isinstance(above, (ast.Assign, ast.Expr)) and isinstance(above.value, ast.Call):
        gives = own.program.callee_names(above.value, site.scope) & _GIVES_PRECISION
        if gives and any(blocks.path_of(item) == path for item in above.value.args):
            return above
    return site.statement


def _case_of(own: OwnDdp, site: Site) -> str | None:
    """The test of the case in which an expression wraps: ``DDP(net) if several else net``; empty where each does.

    None where no line can stand above: in a comprehension, a lambda, or behind a test that must not be asked twice.
    """
    tests: list[str] = []
    inner: ast.AST = site.node
    for parent in site.module.ancestors(site.node):
        if isinstance(parent, ast.stmt):
            stands = isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr))
            return " and ".join(reversed(tests)) if stands else None
        if isinstance(parent, (ast.Lambda, ast.comprehension, ast.ListComp, ast.DictComp, ast.BoolOp)):
            return None
        if isinstance(parent, ast.IfExp) and not _wraps_either_way(own, parent):
            if inner is parent.test or not _may_be_asked_twice(own, parent.test, site):
                return None
            tests.append(_asked(own, site.module, parent.test, holds=inner is parent.body))
        inner = parent
    return None


def _wraps_either_way(own: OwnDdp, choice: ast.IfExp) -> bool:
    """``DDP(net, bucket_cap_mb=1) if small else DDP(net)``."""
    models = [
        blocks.path_of(model)
        for way in (choice.body, choice.orelse)
        for other in own.wraps
        if isinstance(other.node, ast.Call) and other.node in set(walk(way))
        if isinstance(model := argument_at(other.node, "module", 0), (ast.Name, ast.Attribute))
    ]
    return len(models) > 1 and len(set(models)) == 1


def _asked(own: OwnDdp, module: Module, test: ast.expr, *, holds: bool) -> str:
    """A test in words that hold in one of its cases, for a line that may ask for more."""
    if not holds and isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, holds = test.operand, True
    text = own.source(module, test)
    text = f"({text})" if isinstance(test, (ast.BoolOp, ast.IfExp)) else text
    return text if holds else f"not {text}"


def _may_be_asked_twice(own: OwnDdp, test: ast.expr, site: Site) -> bool:
    """Whether a test comes out the same once more, and changes nothing: it calls nothing but functions of torch."""
    return all(
        isinstance(node, ast.Call)
        and any(name.startswith("torch.") for name in own.program.callee_names(node, site.scope))
        for node in walk(test)
        if isinstance(node, (ast.Call, ast.NamedExpr, ast.Await))
    )


def _is_on_cuda(own: OwnDdp, call: ast.Call) -> bool:
    """Whether the model that is wrapped is on a GPU for certain, or the processes speak by NCCL alone."""
    devices = keyword(call, "device_ids")
    if isinstance(devices, ast.List) and devices.elts:
        return True
    backends = [
        literal(keyword(site.node, "backend") or (site.node.args[0] if site.node.args else None))
        for site in own.joins
        if isinstance(site.node, ast.Call)
    ]
    return bool(backends) and all(item == "nccl" for item in backends)


def _is_moved_above(own: OwnDdp, site: Site, model: ast.expr, path: str) -> bool:
    """Whether the last statement above that says where a model lives puts it on a GPU, on every way to its wrapper."""
    if _is_moved_to_cuda(model):
        return True
    above = blocks.statements_above(site.module, site.statement, site.body)
    for item in sorted(above, key=lambda item: item.lineno, reverse=True):
        value = item.value if isinstance(item, (ast.Assign, ast.Expr)) else None
        if path in blocks.writes(item):
            if value is not None and _is_moved_to_cuda(value):
                return True
            if not (isinstance(value, ast.Call) and own.program.callee_names(value, site.scope) & KEEPS_DEVICE):
                return False
        elif any(_moves(node, path) for node in blocks.walk_own(item)):
            return value is not None and _is_moved_to_cuda(value)
    return False


def _is_moved_to_cuda(value: ast.expr) -> bool:
    """Whether an expression moves what it gives to a GPU last: ``model.cuda(gpu)``, ``Net().to("cuda:0")``."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return False
    if value.func.attr in ("train", "eval", "float", "half"):
        return _is_moved_to_cuda(value.func.value)
    if value.func.attr != "to":
        return value.func.attr == "cuda"
    device = literal(value.args[0]) if value.args else None
    return isinstance(device, str) and device.startswith("cuda")


def _moves(node: ast.AST, path: str) -> bool:
    """Whether a call moves a model in place: ``model.cuda()``, ``model.to(device)``."""
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MOVING_MODELS
    return is_method and blocks.path_of(node.func.value) == path  # type: ignore[attr-defined]


def _is_synchronised(program: Program) -> bool:
    """Whether the program speaks of synchronised batch norm, under any name, in a comment that says why not too.

    An option that only the parser names is none: nothing asks for what it says.
    """
    return any(name in module.source.text for module in program.flow.modules for name in SYNC_BATCH_NORM) or any(
        word in SYNC_BATCH_NORM or SYNCHRONISED_NORM.search(word.lower().replace("_", ""))
        for module in program.flow.modules
        for word in _words(module)
    )


def _is_named(program: Program) -> bool:
    """Whether the program names batch norm; a library's model (``timm.create_model(name)``) may have none."""
    return any(names_batch_norm(module.nodes) for module in program.flow.modules)


def _words(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, (ast.Name, ast.Attribute)):
            yield last_name(node)
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 40:
            if isinstance(outer := module.parents[node], ast.Call) and last_name(outer.func) == "add_argument":
                continue
            yield node.value.lstrip("-").replace("-", "_")


def _is_frozen(own: OwnDdp, values: set[Value], norms: BatchNorms) -> bool:
    """Whether a model is in evaluation mode wherever it trains: batch norm takes no statistics then."""
    modes = {
        call.func.attr
        for call, body, scope in own.program.calls()
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("train", "eval")
        if own.program.roles.modules(call.func.value, scope) & values
        if body not in own.uncalled and not _is_for_no_training(own, Site(scope.module, scope, body, call))
    }
    return modes == {"eval"} or (not modes and all(is_kept_in_evaluation(own, value, norms) for value in values))


def _is_for_no_training(own: OwnDdp, switch: Site) -> bool:
    """``if frozen: model.train()``, where all steps stand under ``if not frozen``."""
    parts = blocks.own_parts(switch.body)
    since = next((index for index, item in enumerate(parts) if switch.node in set(walk(item))), 0)
    written = {path for item in parts[since:] for path in blocks.writes(item)}
    for test, holds in own.branches(switch.module, switch.node):
        if blocks.touches(blocks.reads(test), written):
            continue
        shape = ast.dump(test)
        if all(
            site.body is switch.body
            and any(ast.dump(other) == shape and on is not holds for other, on in own.branches(site.module, site.node))
            for site in own.program.backwards
        ):
            return True
    return False


def _shuffled_between_processes(program: Program) -> str | None:
    """The function that exchanges samples between processes in a random order that all of them share.

    Contrastive methods do it around an encoder, whose batch norm would tell which samples belong together.
    """
    gathers = program.closure(lambda node: _calls(program, node, GATHERS))
    for node, body, scope in program.nodes():
        if not (isinstance(node, ast.Call) and _calls(program, node, _ORDERS)):
            continue
        order = {path for path in blocks.writes(blocks.statement_of(scope.module, node)) if "." not in path}
        parts = list(blocks.walk_body(body))
        sent = any(
            _calls(program, part, _SENDS) and blocks.touches(order, blocks.reads(part))
            for part in parts
            if isinstance(part, ast.Call)
        )
        if sent and any(gathers(part) for part in blocks.own_parts(body)):
            info = program.function_of(body)
            return info.name if info is not None else scope.module.text(node)
    return None


def _calls(program: Program, node: ast.AST, names: frozenset[str]) -> bool:
    located = program.locate(node) if isinstance(node, ast.Call) else None
    return isinstance(node, ast.Call) and located is not None and bool(program.callee_names(node, located[1]) & names)


def _by_function(own: OwnDdp, values: set[Value], norms: BatchNorms) -> str | None:
    """What of a model normalises by the batch and has no class of torch's that is replaced."""
    for value in sorted(values, key=lambda item: getattr(item.site, "lineno", 0)):
        call = norms.by_function(value)
        module = own.program.module_of(call) if call is not None else None
        if call is not None and module is not None:
            place = f"`{module.text(call)}` ({place_of(own.program, module, call)})"
            derived = _derived_batch_norm(own.program, module, call)
            if derived is not None:
                return (
                    f"{place} is how `{derived}` normalises, and `convert_sync_batchnorm` would put torch's own "
                    "layer in its place"
                )
            return (
                f"{place} belongs to no module of torch that `convert_sync_batchnorm` replaces: it stays that of each "
                "process"
            )
    return None


def _derived_batch_norm(program: Program, module: Module, call: ast.Call) -> str | None:
    """The class around a call, where it derives from torch's batch norm, and is replaced with its pass."""
    info = program.function_of(blocks.body_of(module, call))
    owner = program.flow.class_of(info) if info is not None else None
    bases = owner.external_bases() if owner is not None else frozenset()
    is_derived = any(name.startswith("torch.nn.") and "BatchNorm" in name for name in bases)
    return owner.facts.name if owner is not None and is_derived else None


def _against(program: Program, wrapping: Site, norms: BatchNorms) -> str | None:
    """Why another class of batch norm would be noticed, or works against the method."""
    shuffled = _shuffled_between_processes(program)
    if shuffled is not None:
        return (
            f"`{shuffled}` gives the samples to the processes in a different order, so that batch norm sees other "
            "samples together"
        )
    skipped = skipped_by_some(program, norms)
    if skipped is not None:
        return skipped
    earlier = Earlier(program, wrapping)
    for node, body, scope in program.nodes():
        if not isinstance(node, ast.Call):
            continue
        for item in node.keywords:
            if item.arg == "create_graph" and may_be_true(program, item.value, scope):
                differentiates = "differentiates" if literal(item.value) is True else "may differentiate"
                return f"`{scope.module.text(node)}` {differentiates} twice, which torch's cannot"
        if isinstance(node.func, ast.Name) and node.func.id == "isinstance" and len(node.args) == 2:
            info = program.function_of(body)
            is_early = info is not None and any(part in info.name.lower() for part in _ON_START)
            looks = not is_early and any(last_name(item).startswith("BatchNorm") for item in walk(node.args[1]))
            if looks and not earlier.runs(Site(scope.module, scope, body, node)):
                return f"`{scope.module.text(node)}` may look for the class that it has now"
    return None
