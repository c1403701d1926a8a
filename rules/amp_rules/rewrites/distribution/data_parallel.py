"""Take `DataParallel` out.

## What it does
Removes `model = nn.DataParallel(model)`, with the condition around it when nothing else is left in there. Where the
script sees the names of the wrapped model, in `model.state_dict()`, `model.named_parameters()` or a model that is saved
whole, it becomes `model = amp.keep_module_prefix(model)`: on one device, with the same names. So it does where the
script hands the model tensors that only `DataParallel` moved to the GPU: `keep_module_prefix` moves them as well; and
where the script asserts that the model is wrapped. A class of the script's own that only spreads batches in another
way, as vendored synchronised batch norm has one, goes as `DataParallel` does. Where the script names the GPUs in
`CUDA_VISIBLE_DEVICES`, which torchrun has to do without, a condition on their number goes by what it names: the names
in checkpoints are the same however the script is started. Where the script takes `module.` off each key that it loads
into the wrapped model, which raises, the wrapper goes.
`data_parallel(model, x, devices)`, the function, becomes `model(x)`, with a tuple of inputs `model(*inputs)`; of a
condition that chose between the two, the plain call stays.

## Why
`DataParallel` drives all devices from one process; with one process for each device it would take them from
the others. It also puts `module.` in front of each key of a checkpoint. Who reads these files rests on that: other
scripts, and this one when it resumes or copies the weights whose names match.

## Before
    if torch.cuda.device_count() > 1:
        model = nn.DataParallel(model)

## After
    (removed)

## When it declines
Where the script asks the wrapper for its devices, unless it does so only of a model that is spread over several:
`if isinstance(model, nn.DataParallel):` around it says so. Run as one process, the script uses one device:
start one process for each with torchrun.

## Leaving it out
No: each process would use the devices of the others.

## Source
https://pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial

import libcst as cst

from amp_rules.flow.values import Value
from amp_rules.plan import declining, written_buffers
from amp_rules.plan.batch_norms import BatchNorms, is_chosen, normalising_beside
from amp_rules.plan.context import Change, Context
from amp_rules.plan.declining import Declined
from amp_rules.plan.device_lists import idle_statements
from amp_rules.plan.frozen_batch_norms import are_frozen
from amp_rules.plan.inner_steps import mixes_tasks
from amp_rules.plan.notes import BATCH_SIZE, note
from amp_rules.plan.pinned_devices import PinnedDevices
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.plan.stripped_names import stripped_of
from amp_rules.plan.training_loops import SHOWING
from amp_rules.plan.words import Words
from amp_rules.plan.wrapper_names import asks_for_devices
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import called_name, values_given, walk
from amp_rules.text.actions import Action, ExpressionEdit, Insert, Remove, Replace, Unwrap
from amp_rules.text.expression_edits import substitute
from amp_rules.torch.wrappers import CONVERTS_BATCH_NORM, DATA_PARALLEL, SPREAD_BY_HAND, SPREAD_IN_ONE_CALL

RULE = Rule("AMP203", "no-data-parallel", "One process drives one device.", "distribution")

_ASKING = frozenset(
    {
        "builtins.isinstance", "builtins.len", "builtins.range", "builtins.list",
        "torch.cuda.is_available", "torch.cuda.device_count",
    }
)  # fmt: skip
_SHOWS_NAMES = "one device for each process; the names keep `module.`, as checkpoints have it"
_MOVES_INPUTS = "one device for each process, to which it takes what the model is given, as `DataParallel` did"

_STATISTICS = (
    "now computes its mean and variance over the batches of all processes, not over those of one GPU; "
    "--no-sync-bn turns this off"
)
_OWN_SYNCHRONISED = re.compile(r"_*sync.*norm", re.IGNORECASE)
"""How classes are called that synchronise batch norm over the GPUs of one process."""


def changes(context: Context) -> Iterator[Change]:
    """Yield a removal for each ``DataParallel``."""
    program = context.program
    keeps_names = context.processes.keeps_names
    sites = program.calls_to(DATA_PARALLEL)
    pinned = PinnedDevices(program)
    never_run = [site for site in sites if pinned.never_several(site)]
    if keeps_names and context.processes.keeps_names_alone:
        never_run += [site for site in stripped_of(program, sites) if site not in never_run]
    gone = _gone(never_run if keeps_names else sites, _prepared_at(context) if sites else set())
    conditions: set[ast.expr] = set()
    for site in sites:
        assert isinstance(site.node, ast.Call)
        if keeps_names and _model_of(site.node) is not None and site not in never_run:
            message = _SHOWS_NAMES if context.processes.shows_names else _MOVES_INPUTS
            written = context.vocabulary.names_of_data_parallel(site.module, site.node)
            yield Change.written(RULE, site.module, site.node, message, written)
            several = pinned.condition(site)
            if several is not None and several[0] not in conditions:
                test, named = several
                conditions.add(test)
                text = "under torchrun all GPUs are visible; the names of the parts go by those that are named"
                edit = Replace(test, substitute(f"{site.module.code(test)} and {named}"))
                yield Change(RULE, site.module, test, text, [edit])
            continue
        message = "torchrun starts one process for each device; DataParallel would use them all from each"
        yield Change(RULE, site.module, site.node, message, _actions(site, gone))
    for site, own, written_as in _asked_for_own(program) if keeps_names else ():
        if written_as is not None:
            message = f"what stands in the place of `{site.module.text(own)}` is a plain `DataParallel`"
            yield Change(RULE, site.module, own, message, [Replace(own, substitute(written_as))])
    for site in filter(_only_shows_devices, asks_for_devices(program, keeps_names=keeps_names)):
        message = f"`{site.module.text(site.node)}` shows the devices of `DataParallel`, which is gone"
        yield Change(RULE, site.module, site.statement, message, [Remove(site.statement, keep_comments=True)])
    yield from _calls_by_hand(program)


def notes(context: Context) -> Iterator[Note]:
    """Yield the first model whose batch norm took the share of one GPU, and now takes the batches of all processes."""
    program = context.program
    sites = program.calls_to(DATA_PARALLEL) if context.options.sync_bn else []
    if not sites or program.calls_to(CONVERTS_BATCH_NORM) or mixes_tasks(program) or are_frozen(program):
        return
    norms, pinned = BatchNorms(program), PinnedDevices(program)
    beside: set[Value] | None = None
    gone = {change.node for change in context.made if change.rule is RULE}
    for site in sites:
        assert isinstance(site.node, ast.Call)
        model = _model_of(site.node)
        if model is None or site.node not in gone or pinned.never_several(site):
            continue
        values = program.roles.modules(model, site.scope)
        found = {value for value in values if norms.are_in(value) and not is_chosen(value)}
        if found and not any(map(program.is_trained, found)):
            # What only evaluates is not prepared.
            beside = set(normalising_beside(program, context.precision)) if beside is None else beside
            found &= beside
        if found:
            names = {info.facts.name for info in program.flow.classes.values()}
            names |= {name.rpartition(".")[2] for name in program.flow.imported}
            of_some = " that is not synchronised" if any(map(_OWN_SYNCHRONISED.match, names)) else ""
            yield note(BATCH_SIZE, site.module, site.node, f"batch norm{of_some} {_STATISTICS}")
            return


def _only_shows_devices(site: Site) -> bool:
    """Whether a statement shows nothing else: ``print("devices:", model.device_ids)``."""
    statement = site.statement
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and called_name(call) in SHOWING
        and all(item is site.node or isinstance(item, ast.Constant) for item in values_given(call))
    )


def _calls_by_hand(program: Program) -> Iterator[Change]:
    """Yield the plain call for each ``data_parallel``; of a choice between the two, its other branch stays."""
    spread = {
        site.node: (site, inputs) for site in program.calls_to(SPREAD_BY_HAND) if (inputs := _inputs(program, site))
    }
    chosen = {}
    for site, _ in spread.values():
        choice = site.module.parents[site.statement]
        kept = _plain_beside(program, choice, site, spread) if isinstance(choice, ast.If) else None
        if isinstance(choice, ast.If) and kept is not None:
            chosen[choice] = (site, kept)
    for site, inputs in spread.values():
        assert isinstance(site.node, ast.expr)
        message = f"`{site.module.text(site.node)}` would spread the model over the devices of other processes"
        choice = site.module.parents[site.statement]
        if not isinstance(choice, ast.If) or choice not in chosen:
            yield Change(RULE, site.module, site.node, message, [Replace(site.node, _plain_call(inputs))])
        elif chosen[choice][0] is site:
            kept = getattr(choice, chosen[choice][1])
            stays = {part for item in kept for part in walk(item)}
            gone = [part for part in walk(choice) if part not in stays]
            yield Change(RULE, site.module, choice, message, [Unwrap(choice, (chosen[choice][1],))])
            for idle in idle_statements(site, gone, partial(_only_asks, program, site=site)):
                yield Change(RULE, site.module, idle, "nothing asks for the devices any more", [Remove(idle)])


def _plain_beside(program: Program, choice: ast.If, site: Site, spread: _Spread) -> str | None:
    """The branch that stays of ``if several: y = data_parallel(net, x)`` and ``else: y = net(x)``."""
    if blocks.is_elif(site.module, choice) or not choice.orelse or not _only_asks(program, choice.test, site):
        return None
    branches = [[_without_spreading(item, spread) for item in suite] for suite in (choice.body, choice.orelse)]
    if branches[0] != branches[1]:
        return None
    return "orelse" if site.statement in choice.body else "body"


def _without_spreading(statement: ast.stmt, spread: _Spread) -> str:
    """The text of a statement with plain calls."""
    text = ast.unparse(statement)
    for node in walk(statement):
        known = spread.get(node)
        if known is None or not isinstance(node, ast.Call):
            continue
        given = node.args[1]
        written = ", ".join(map(ast.unparse, given.elts)) if isinstance(given, ast.Tuple) else ast.unparse(given)
        star = "*" if known[1] is _Inputs.TUPLE and not isinstance(given, ast.Tuple) else ""
        text = text.replace(ast.unparse(node), f"{ast.unparse(node.args[0])}({star}{written})")
    return text


def _only_asks(program: Program, test: ast.expr, site: Site) -> bool:
    """Whether a condition does nothing but ask for a type or for GPUs."""
    calls = [node for node in walk(test) if isinstance(node, (ast.Call, ast.NamedExpr, ast.Await))]
    return all(isinstance(node, ast.Call) and program.callee_names(node, site.scope) & _ASKING for node in calls)


def _asked_for_own(program: Program) -> Iterator[tuple[Site, ast.expr, str | None]]:
    """Yield where ``isinstance`` asks for a ``DataParallel`` of the script's own, with the word for torch's there."""
    words = Words(program)
    for site in program.calls_to(frozenset({"builtins.isinstance"})):
        kind = site.node.args[1] if isinstance(site.node, ast.Call) and len(site.node.args) == 2 else None
        values = program.flow.values(kind, site.scope) if kind is not None else set()
        if kind is not None and any(value.kind == "class" and value.ref.spreads_as for value in values):
            yield site, kind, words.word(site.module, "torch.nn.DataParallel")


def _actions(site: Site, gone: dict[ast.stmt, ast.stmt | None]) -> list[Action]:
    call, statement = site.node, site.statement
    assert isinstance(call, ast.Call)
    if statement in gone:
        whole = gone[statement]
        return [Remove(statement), Insert(statement, "pass", after=True)] if whole is None else [Remove(whole)]
    choice = _choice(site.module, call)
    if choice is None:
        return [Replace(call, _first_argument)]
    return [Replace(choice, _wrapped_or_not(is_body=choice.body is call))]


def _prepared_at(context: Context) -> set[ast.stmt]:
    """The statements behind which a model is prepared."""
    precision = context.precision
    found = [*precision.homes, *written_buffers.homes(context.program, precision)]
    if context.options.sync_bn:
        found += written_buffers.homes_of_batch_norm(context.program, precision)
    return {home.statement for home in found}


def _gone(sites: list[Site], prepared_at: set[ast.stmt]) -> dict[ast.stmt, ast.stmt | None]:
    """Statements that do nothing but wrap, with what is removed for each: conditions and loops around them too.

    None stands for a statement that leaves an empty suite behind. Where the model is prepared instead, none is empty.
    """
    found = {site.statement: site.module for site in sites if _only_wraps(site)}
    whole: dict[ast.stmt, ast.stmt] = {item: item for item in found}
    for statement, module in found.items():
        current = statement
        while True:
            parent = module.parents[current]
            if not prepared_at.isdisjoint({current, *blocks.walk_own(current)}):
                break
            if not isinstance(parent, (ast.If, ast.For)) or not all(item in whole for item in _inner(parent)):
                break
            whole[parent] = current = parent
        for inner in walk(current):
            if inner in found:
                whole[inner] = current
    places = {item: blocks.place(module, whole[item]) for item, module in found.items()}
    return {
        item: None if all(other in whole and other not in prepared_at for other in place.suite) else whole[item]
        for item, place in places.items()
    }


def _inner(parent: ast.If | ast.For) -> list[ast.stmt]:
    return [*parent.body, *parent.orelse]


def _only_wraps(site: Site) -> bool:
    """Whether a statement is ``model = DataParallel(model)``, under a condition or without."""
    statement, call = site.statement, site.node
    assert isinstance(call, ast.Call)
    if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1 and call.args):
        return False
    is_whole = statement.value is call or statement.value is _choice(site.module, call)
    return is_whole and ast.unparse(statement.targets[0]) == ast.unparse(call.args[0])


def _choice(module: Module, call: ast.Call) -> ast.IfExp | None:
    """``DataParallel(model) if several else model``, of which a call is the one part."""
    parent = module.parents[call]
    if not isinstance(parent, ast.IfExp) or parent.test is call or not call.args:
        return None
    other = parent.orelse if parent.body is call else parent.body
    return parent if ast.unparse(other) == ast.unparse(call.args[0]) else None


def _wrapped_or_not(*, is_body: bool) -> ExpressionEdit:
    """The model itself, for one that is wrapped under a condition."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        choice = cst.ensure_type(node, cst.IfExp)
        return choice.orelse if is_body else choice.body

    return edit


def _plain_call(inputs: _Inputs) -> ExpressionEdit:
    """``model(x)`` for ``data_parallel(model, x, ...)``."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        value = call.args[1].value
        if isinstance(value, cst.Tuple):
            given = [cst.Arg(item.value, comma=item.comma) for item in value.elements]
            given[-1] = given[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        else:
            plain = value if len(value.lpar) != 1 else value.with_changes(lpar=(), rpar=())
            given = [cst.Arg(plain, star="*" if inputs is _Inputs.TUPLE else "")]
        return call.with_changes(func=call.args[0].value, args=given, whitespace_before_args=cst.SimpleWhitespace(""))

    return edit


def _first_argument(node: cst.BaseExpression) -> cst.BaseExpression:
    return cst.ensure_type(node, cst.Call).args[0].value


def _model_of(call: ast.Call) -> ast.expr | None:
    """What is wrapped."""
    if call.args:
        return None if isinstance(call.args[0], ast.Starred) else call.args[0]
    return next((item.value for item in call.keywords if item.arg == "module"), None)


def reasons(context: Context) -> Iterator[Declined]:
    """Yield where each process would copy its model to the GPUs of the others, or insist on ``DataParallel``."""
    program, keeps_names = context.program, context.processes.keeps_names
    for site in asks_for_devices(program, keeps_names=keeps_names):
        if _only_shows_devices(site):
            continue
        yield declining.decline(
            declining.GRADIENTS_OUTSIDE,
            site.module,
            site.node,
            f"`{site.module.text(site.node)}` reads the devices of `DataParallel`, but each process has its own device",
            "use the device of the process: `amp.device(...)`",
        )
    for site, own, written_as in _asked_for_own(program) if keeps_names else ():
        if written_as is None:
            yield declining.decline(
                declining.GRADIENTS_OUTSIDE,
                site.module,
                site.node,
                f"`{site.module.text(site.node)}` asks for a `DataParallel` of the script's own, which several "
                "processes do without",
                f"ask for `torch.nn.DataParallel` in the place of `{site.module.text(own)}`",
            )
    for site in program.calls_to(SPREAD_BY_HAND):
        if _inputs(program, site) is not None:
            continue
        yield declining.decline(
            declining.GRADIENTS_OUTSIDE,
            site.module,
            site.node,
            f"`{site.module.text(site.node)}` spreads the model over all GPUs by hand, in each process",
            "call the model itself: each process has a GPU of its own",
        )


_POSITIONAL = 5  # module, inputs, device_ids, output_device, dim; what follows are keywords of the model's call


_NO_TUPLES = (ast.List, ast.ListComp, ast.Dict, ast.DictComp)
"""What is handed on as one input."""


class _Inputs(Enum):
    """What ``data_parallel`` is given for its model."""

    ONE = "one input, or a tuple that is written out in the call"
    TUPLE = "a variable that holds a tuple of inputs"


_Spread = Mapping[ast.AST, tuple[Site, _Inputs]]


def _inputs(program: Program, site: Site) -> _Inputs | None:
    """What the model is given, if this is ``data_parallel(model, x)``, as ``model(x)`` could be; else None."""
    call = site.node
    assert isinstance(call, ast.Call)
    if not program.callee_names(call, site.scope) & SPREAD_IN_ONE_CALL or len(call.args) < 2:
        return None
    if any(isinstance(argument, ast.Starred) for argument in call.args) or len(call.args) > _POSITIONAL:
        return None
    if any(item.arg not in ("device_ids", "output_device", "dim") for item in call.keywords):
        return None
    given = call.args[1]
    if isinstance(given, ast.Tuple):
        return _Inputs.ONE if given.elts else None
    if isinstance(given, ast.List):
        return None
    sequences = [value for value in program.flow.values(given, site.scope) if value.kind == "sequence"]
    if all(isinstance(value.site, _NO_TUPLES) for value in sequences):
        return _Inputs.ONE
    return _Inputs.TUPLE if _is_tuple(program, given, site) else None


def _is_tuple(program: Program, node: ast.expr, site: Site) -> bool:
    """Whether a variable of the function only ever holds tuples that are written out."""
    info = program.function_of(site.body)
    if not isinstance(node, ast.Name) or (info is not None and node.id in info.parameters):
        return False
    stores = [item for item in program.nodes_of(site.body) if isinstance(item, ast.Name) and item.id == node.id]
    stores = [item for item in stores if not isinstance(item.ctx, ast.Load)]
    assignments = [site.module.parents[item] for item in stores]
    return bool(assignments) and all(
        isinstance(item, ast.Assign) and isinstance(item.value, ast.Tuple) for item in assignments
    )
