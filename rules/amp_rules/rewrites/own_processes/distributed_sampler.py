"""Share the training data out, in a script with processes of its own.

## What it does
A loader that trains a model in `DistributedDataParallel` and has no sampler gets a `DistributedSampler`, which does the
shuffling. Where the script may run in one process, there is none then. A sampler that the script makes of the same data
and gives no loader is taken.

## Why
Without it every process goes through all of the data: N processes do the work of one N times over.

## Before
    loader = DataLoader(train_set, batch_size=32, shuffle=True)

## After
    train_sampler = torch.utils.data.distributed.DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=32, sampler=train_sampler)

## When it declines
Where something in the program shares samples out already, or may (AMP288 says so of a loader that a setting chooses
beside one with a sampler); where each sample is a file of samples, of which a
loop makes a loader with a sampler; where the data set has no samples by index, or draws
them whatever the index is; where each process splits it at random in its own way; where the loader is given packed
arguments that may say which samples come when; where it is used to evaluate too, and where it is made before the
processes have joined; where no loader of torch's feeds the loop, but an iterator of the script's own that speaks of no
rank (AMP288).

## Leaving it out
Yes: each process then goes through all of the data, as it did.

## Source
https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from amp_rules.checks.common.rank_branches import in_several, names_rank
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.flow.values import Value
from amp_rules.plan.context import Change
from amp_rules.plan.own_ddp.called_bare import called_bare
from amp_rules.plan.own_ddp.data_sets import (
    is_indexed,
    is_of_each,
    is_placeholder,
    is_shuffled_whole,
    shares,
    split_by_each,
    training_test,
)
from amp_rules.plan.own_ddp.of_parents import is_for_class_never_made, stays_with_parent
from amp_rules.plan.own_ddp.packed import packed_names
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import RankValues
from amp_rules.plan.own_ddp.spawned import Spawned
from amp_rules.plan.own_ddp.unfit_calls import is_called_in_vain
from amp_rules.plan.own_ddp.unused_samplers import unused_sampler
from amp_rules.plan.own_ddp.whole_on_each import deals_out, whole_on_each
from amp_rules.plan.rule import Rule
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.loaders import LoaderUse
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.resolver import is_variable, names_of
from amp_rules.source.syntax import last_name, walk
from amp_rules.text.actions import Action, ExpressionEdit, Insert, Replace
from amp_rules.text.expression_edits import add_keyword, substitute
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS, LOADERS_OF_TORCH
from amp_rules.torch.idioms import NAMED_PURPOSE, NAMED_SHARE

RULE = Rule("AMP232", "distributed-sampler", "Each process trains on its share.", "distribution", optional=True)

_EACH = "each process"
"""Begins the reasons that are sentences of their own, and not why all of the data is gone through."""
_SAMPLER = "torch.utils.data.distributed.DistributedSampler"
_INITIALISED = "torch.distributed.is_initialized"
_NAMES_OF_DATA = ("train_set", "train_dataset", "training_data")
_NAMES = ("train_sampler", "sampler", "distributed_sampler")
_BESIDE = "another loader that comes to the same loop has a sampler, and this one has none"


def changes(own: OwnDdp) -> Iterator[Change]:
    """Yield a sampler for each loader that trains and has none."""
    # Where no gradients are averaged, each process trains a model of its own, which wants all of the data.
    if not own.wraps or next(called_bare(own), None) is not None:
        return
    done: set[ast.AST] = set()
    evaluated = {value for use in own.data.evaluated for value in use.values}
    spawned = Spawned(own)
    for use in own.data.uses:
        if spawned.is_left_to_parent(use):
            continue
        for value in sorted(use.values, key=lambda item: getattr(item.site, "lineno", 0)):
            site = _made(own, value)
            if site is None or site.node in done or _is_replaced(own, use, site):
                continue
            done.add(site.node)
            reason = _against(own, site, value in evaluated, use.values)
            if reason is None:
                yield _change(own, site, training_test(own, site) if value in evaluated else None)
            elif reason:
                text = reason if reason.startswith(_EACH) else f"every process goes through all of the data: {reason}"
                own.leave(RULE, site.module, site.node, text)
    for site in whole_on_each(own):
        text = f"every process goes through all of the data: `{site.module.text(site.node)}` is not a loader of torch"
        own.leave(RULE, site.module, site.node, f"{text}, and nothing there splits it")


def _made(own: OwnDdp, value: Value) -> Site | None:
    """Where a loader of torch is made that has no sampler, for all that its call says."""
    call = value.site
    located = own.program.locate(call) if isinstance(call, ast.Call) else None
    if located is None or not isinstance(call, ast.Call) or located[1].module not in own.modules:
        return None
    if not own.program.callee_names(call, located[1]) & LOADERS_OF_TORCH or is_variable(call.func, located[1]):
        return None
    for name in ("sampler", "batch_sampler"):
        given = given_to_loader(call, name)
        if given is not None and literal(given) is not None:
            return None
    return Site(located[1].module, located[1], located[0], call)


def _is_taken_by_rank(own: OwnDdp, dataset: ast.expr, site: Site) -> bool:
    """Whether the data is an item or a slice that the rank chooses: ``parts = order.split(n // size)[rank]``."""
    ranks = RankValues(own.program)
    return any(
        isinstance(inner, (ast.Name, ast.Attribute, ast.Call)) and ranks.of(inner, site.scope) is not None
        for value in assigned(own.program, dataset, site.scope)
        if isinstance(value, ast.Subscript)
        for inner in walk(value.slice)
    )


def _is_replaced(own: OwnDdp, use: LoaderUse, site: Site) -> bool:
    """Whether a variable is given another loader right above the loop over it: in each epoch one with a sampler."""
    path = blocks.path_of(use.loader) if isinstance(use.loader, (ast.Name, ast.Attribute)) else None
    # What stands further out than the loop around it is for the first round of that.
    if path is None:
        return False
    for suite, index in blocks.suites_around(use.module, use.statement):
        for item in reversed(suite[:index]):
            if isinstance(item, ast.Assign) and path in map(blocks.path_of, item.targets):
                # What it is given may be made by a function of the project.
                given = own.program.flow.values(item.value, use.scope)
                return all(node is not site.node for node in walk(item)) and all(
                    value.site is not site.node for value in given
                )
            if blocks.touches({path}, blocks.writes(item)):
                return False
    return False


def _against(own: OwnDdp, site: Site, is_evaluated: bool, others: frozenset[Value]) -> str | None:
    """Why a loader gets no sampler; empty where there is nothing to say."""
    call = site.node
    assert isinstance(call, ast.Call)
    several = own.several_alone(site.module, call)
    if several is False or own.reach(site.module, call) is Reach.ONE or is_called_in_vain(own, site.body):
        return ""
    if stays_with_parent(own, site) or is_for_class_never_made(own, site):
        return ""
    if _may_share(own, others):
        return _BESIDE if not is_evaluated and _is_of_another_way(own, site, others) else ""
    arguments: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    packed = next((item for item in arguments if _is_packed(item, site)), None)
    if packed is not None and any(map(_speaks_of_shares, own.modules)):
        return ""
    if packed is not None:
        return f"what `{site.module.text(getattr(packed, 'value', packed))}` gives the loader is not known"
    dataset = given_to_loader(call, "dataset")
    if dataset is None or _named(own, site, dataset) is None:
        return "its data set has no name"
    values = {value for value in own.program.flow.values(dataset, site.scope) if not is_placeholder(value)}
    if any(shares(own, value) or is_of_each(own, value) for value in values) or _feeds_loaders(own, site):
        return ""
    if values and all(value.kind == "instance" and value.ref.find_method("__iter__") for value in values):
        if not any(map(is_indexed, values)):
            text = f"{_EACH} iterates its own `{site.module.text(dataset)}`"
            return f"{text}, which repeats the data unless it draws at random"
    unindexed = [value for value in values if not is_indexed(value)]
    if _is_taken_by_rank(own, dataset, site):
        return ""
    if not (values or is_shuffled_whole(own, dataset, site)) or any(value.kind == "object" for value in unindexed):
        text = f"{_EACH} may go through all of the data: what `{site.module.text(dataset)}` is was not found"
        return f"{text}, nor whether it gives a process its share"
    if unindexed:
        return f"`{site.module.text(dataset)}` is not known to give samples by their index"
    split = split_by_each(own, dataset, site)
    if split is not None:
        text = f"{_EACH} splits the data at random in its own way: give `{site.module.text(split)}` a generator"
        return f"{text} with one seed, and the loader a DistributedSampler"
    if is_evaluated and training_test(own, site) is None:
        return "it is used to evaluate too"
    if not own.is_joined_at(site.module, call):
        return "it is made before the processes have joined, for all that is known"
    if own.word(site.module, _SAMPLER) is None or own.word(site.module, _INITIALISED) is None:
        return "the head of this file does not import torch in every case"
    statement = site.statement
    if not isinstance(statement, (ast.Assign, ast.Return, ast.AnnAssign)) or any(
        isinstance(item, (ast.Lambda, ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.IfExp))
        for item in site.module.ancestors(call)
        if item is not statement and not isinstance(item, ast.stmt)
    ):
        return "no line can stand above it"
    return None


def _is_of_another_way(own: OwnDdp, site: Site, loaders: frozenset[Value]) -> bool:
    """Whether loaders with a sampler are made in other functions, and this one is for another data set of its own."""
    if deals_out(own) or any(own.program.locate(value.site) is None for value in loaders if value.site is not None):
        return False
    call = site.node
    assert isinstance(call, ast.Call)
    dataset = given_to_loader(call, "dataset")
    values = own.program.flow.values(dataset, site.scope) if dataset is not None else set()
    if not values or not all(is_indexed(value) and not shares(own, value) for value in values):
        return False
    given = {value: own.program.locate(value.site) for value in loaders if isinstance(value.site, ast.Call)}
    samples: set[object] = set()
    is_beside = False
    for value, located in given.items():
        assert isinstance(value.site, ast.Call)
        if located is None or not any(given_to_loader(value.site, name) for name in ("sampler", "batch_sampler")):
            continue
        if located[0] is site.body:
            if not _is_by_setting(own, site, value.site):
                if _gives_no_share(own, value.site, site):
                    continue
                # One of them is for one process, unless a parameter asks for that within each of the others.
                if not _asks_parameter(own, value.site, site):
                    return False
            is_beside = True
            continue
        other = given_to_loader(value.site, "dataset")
        kinds = own.program.flow.values(other, located[1]) if other is not None else set()
        samples |= {kind.ref for kind in kinds} or {None}
    return (bool(samples) or is_beside) and samples.isdisjoint({None, *(value.ref for value in values)})


def _is_by_setting(own: OwnDdp, site: Site, other: ast.Call) -> bool:
    """Whether settings choose between two loaders of a function, and only for the other one is asked for processes.

    ``if order == "turns": (turns if several else whole) else: whole``: several processes take the last one, too.
    """
    choice = blocks.choice_between(site.module, site.node, other)
    if choice is None:
        return False
    inside = set(walk(choice)) - set(walk(choice.test))
    for test, _ in own.branches(site.module, site.node):
        if in_several(test) is not None or names_rank(test):
            return False
    return any(in_several(test) is holds for test, holds in own.branches(site.module, other) if test in inside)


def _gives_no_share(own: OwnDdp, other: ast.Call, site: Site) -> bool:
    """Whether another loader of a function has a sampler of the project's that says nothing of processes."""
    given = given_to_loader(other, "sampler") or given_to_loader(other, "batch_sampler")
    values = own.program.flow.values(given, site.scope) if given is not None else set()
    return bool(values) and all(
        value.kind == "instance"
        and not any(names_rank(info.facts.node) for info in value.ref.mro())
        and not value.ref.external_bases() & DISTRIBUTED_SAMPLERS
        for value in values
    )


def _asks_parameter(own: OwnDdp, other: ast.Call, site: Site) -> bool:
    """Whether another loader of a function has a sampler if a parameter says so, which nothing asks for this one.

    ``sampler=DistributedSampler(data) if several else None``.
    """
    info = own.program.function_of(site.body)
    given = given_to_loader(other, "sampler")
    if info is None or not isinstance(given, ast.IfExp) or not isinstance(given.test, ast.Name):
        return False
    name = given.test.id
    tests = [test for test, _ in own.branches(site.module, site.node)]
    read = {path for item in (*tests, site.node) for path in blocks.reads(item)}
    if name not in info.parameters or name in read:
        return False
    if any(names_rank(test) or NAMED_PURPOSE.search(ast.unparse(test)) for test in tests):
        return False
    # An argument alone may say what a loader is for; settings say which data there are.
    names = [node for test in tests for node in walk(test) if isinstance(node, ast.Name)]
    return bool(tests) and all(isinstance(site.module.parents[node], (ast.Attribute, ast.Subscript)) for node in names)


def _feeds_loaders(own: OwnDdp, site: Site) -> bool:
    """Whether each sample is a data set of its own: a loop over the loader makes a loader with a sampler of each."""
    for call, body, scope in own.program.calls():
        if not own.program.callee_names(call, scope) & LOADERS_OF_TORCH:
            continue
        if not any(given_to_loader(call, name) is not None for name in ("sampler", "batch_sampler")):
            continue
        around = Site(scope.module, scope, body, call)
        for loop in blocks.enclosing(scope.module, call):
            uses = own.batches.loaders.iterated(loop.iter, around) if isinstance(loop, ast.For) else []
            if any(value.site is site.node for use in uses for value in use.values):
                return True
    return False


def _may_share(own: OwnDdp, loaders: frozenset[Value]) -> bool:
    """Whether samples are shared out in another way, or a loader with a sampler may be in the place of this one."""
    for value in loaders:
        located = own.program.locate(value.site) if isinstance(value.site, ast.Call) else None
        if located is None or not isinstance(value.site, ast.Call):
            return True
        if any(given_to_loader(value.site, name) is not None for name in ("sampler", "batch_sampler")):
            return True
    return deals_out(own)


def _speaks_of_shares(module: Module) -> bool:
    """Whether a file has a name for something that shares samples out, which packed arguments may hold."""
    return any(
        NAMED_SHARE.search((isinstance(node, ast.keyword) and node.arg) or last_name(node) or str(literal(node) or ""))
        for node in module.nodes
        if isinstance(node, (ast.Name, ast.Attribute, ast.keyword, ast.Constant))
    )


_OF_THE_ORDER = {"dataset", "shuffle", "sampler", "batch_sampler"}


def _is_packed(argument: ast.expr | ast.keyword, site: Site) -> bool:
    """``*arguments`` or ``**options`` that may say in which order a loader takes which samples."""
    if isinstance(argument, ast.Starred):
        return True
    if not isinstance(argument, ast.keyword) or argument.arg is not None:
        return False
    names = packed_names(argument.value, site.scope)
    return names is None or bool(names & _OF_THE_ORDER)


def _change(own: OwnDdp, site: Site, test: str | None) -> Change:
    """The edit of a loader, which is one that trains under a test where the same call makes those that evaluate."""
    call = site.node
    assert isinstance(call, ast.Call)
    module = site.module
    dataset = given_to_loader(call, "dataset")
    assert dataset is not None
    names = names_of(module)
    name = next((item for item in _NAMES if not names.is_taken(item)), _NAMES[-1])
    shuffle = given_to_loader(call, "shuffle")
    arguments = _named(own, site, dataset)
    assert arguments is not None
    unused = unused_sampler(own, site, dataset) if test is None else None
    if unused is not None:
        message = f"`{unused}`, which no loader has, shares `{own.source(module, dataset)}` out"
        alone = None if shuffle is None else _alone(unused, own.source(module, shuffle), literal(shuffle))
        return Change(RULE, module, call, message, [Replace(call, _with_sampler(unused, alone))])
    actions: list[Action] = []
    if arguments != own.source(module, dataset):
        actions = [Insert(site.statement, f"{arguments} = {own.source(module, dataset)}", order=-1)]
        actions.append(Replace(dataset, substitute(arguments)))
    if shuffle is None or literal(shuffle) is not True:
        arguments += f", shuffle={'False' if shuffle is None else own.source(module, shuffle)}"
    made = f"{own.word(module, _SAMPLER)}({arguments})"
    # Scripts that join no group may import another file.
    always = own.is_several_always and module is own.program.entry
    tests = [] if always else [f"{own.word(module, _INITIALISED)}()"]
    tests += [test] if test is not None else []
    if tests:
        made += f" if {' and '.join(tests)} else None"
    message = f"each process trains on its share of `{own.source(module, dataset)}`"
    alone = None if not tests or shuffle is None else _alone(name, own.source(module, shuffle), literal(shuffle))
    edit = Replace(call, _with_sampler(name, alone))
    return Change(RULE, module, call, message, [*actions, Insert(site.statement, f"{name} = {made}"), edit])


def _named(own: OwnDdp, site: Site, dataset: ast.expr) -> str | None:
    """The variable that holds a data set, or can: one that is made right in the call comes to have a name."""
    if isinstance(dataset, (ast.Name, ast.Attribute)):
        return blocks.path_of(dataset)
    call = site.node
    assert isinstance(call, ast.Call)
    if not isinstance(dataset, ast.Call) or call.args[:1] != [dataset]:
        return None
    if dataset.lineno != dataset.end_lineno or not own.program.flow.values(dataset, site.scope):
        return None
    names = names_of(site.module)
    return next((name for name in _NAMES_OF_DATA if not names.is_taken(name)), None)


def _alone(name: str, shuffle: str, value: object) -> str:
    """What the loader is told of shuffling where there may be no sampler."""
    return f"{name} is None" if value is True else f"{name} is None and {shuffle}"


def _with_sampler(name: str, shuffle: str | None) -> ExpressionEdit:
    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        added = cst.ensure_type(cst.parse_expression(f"f(sampler={name})"), cst.Call).args[0]
        arguments: list[cst.Arg] = []
        placed = False
        for index, item in enumerate(call.args):
            key = item.keyword.value if item.keyword is not None else item.star or None
            if key == "shuffle" or (key is None and index == 2):
                if shuffle is not None:
                    value = cst.parse_expression(shuffle)
                    arguments.append(item.with_changes(value=value))
                    continue
                new = added.with_changes(comma=item.comma, whitespace_after_arg=item.whitespace_after_arg)
                arguments.append(new)
                placed = True
            elif key in ("sampler", "batch_sampler") or (key is None and index in (3, 4)):
                continue
            else:
                arguments.append(item)
        if not placed:
            return add_keyword(f"sampler={name}")(call.with_changes(args=arguments))
        return call.with_changes(args=arguments)

    return edit
