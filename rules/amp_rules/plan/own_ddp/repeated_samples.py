"""Evaluations of all processes that hold samples twice: torch's sampler gives every process as many, as others may."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.flow.values import ClassInfo, Value
from amp_rules.plan.file_names import more_places
from amp_rules.plan.joint_metrics import asks_joint_metric, names_joint_metrics
from amp_rules.plan.own_ddp.padding_samplers import padding_samplers
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Shares
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.loaders import LoaderUse
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import called_name, last_name, values_given, walk
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS
from amp_rules.torch.distributed import INTO_ANOTHER, REDUCTIONS

_KEEPING_ONE = frozenset({"unique", "set", "fromkeys", "drop_duplicates"})
"""What keeps each of its elements once."""

_LEAVING_OUT = _KEEPING_ONE | {"dict", "narrow"}
"""What may leave samples out that are there twice."""

_Asks = Callable[[ast.AST], bool]

_WORLD = re.compile(r"world|replicas|n_?procs|num_proc|ngpus", re.IGNORECASE)

_ADDED = "what the evaluation adds up over the processes counts"
_GATHERED = "what the evaluation gathers from them holds"
_IN_FILES = "what is put together of the files that the processes write has"


def repeated_samples(own: OwnDdp, shares: Shares) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first sampler that repeats samples where an evaluation adds up or gathers what all processes have."""
    samplers = {site.node: site for site in own.program.calls_to(DISTRIBUTED_SAMPLERS)} | padding_samplers(own)
    if not samplers:
        return
    evaluated = {use.node for use in own.data.evaluated}
    found: list[tuple[Module, ast.Call]] = []
    texts: dict[ast.AST, str] = {}
    adds, gathers = _adding(own), _gathering(own)
    uses: list[LoaderUse] = []
    by_rank: set[ast.AST] = set()
    for loop in [*shares.metrics.loops, *shares.metrics.loops_by_batches]:
        if loop.use.node in evaluated and not own.program.runs_backward(loop.loop):
            uses.append(replace(loop.use, body=loop.body))
            if shares.metrics.keeps_by_rank(loop) and _reads_for_all(loop.body):
                by_rank.add(loop.body)
    uses += _chosen(own, shares, {use.node for use in uses})
    uses += _by_own_samplers(own, shares, {use.node for use in uses})
    fetched = list(_fetched(own))
    uses += [use for use in fetched if not _trains(own, use)]
    for use in uses:
        said = _said_of(own, use, adds, gathers, by_rank)
        if said is None:
            continue
        if _asks_what_is_over(use.body, of_processes=True):
            continue
        for call in shares.metrics.samplers_of(use):
            site = samplers.get(call)
            if site is None or call in texts or site.module not in own.modules or _is_even(call, site.body):
                continue
            texts[call] = said
            found.append((site.module, call))
    if found:
        # A pass over the training data, as one that sets layers up, is no evaluation where another one is.
        trained = {call for use in _trained(own, shares, fetched) for call in shares.metrics.samplers_of(use)}
        found = [item for item in found if item[1] not in trained] or found
    found.sort(key=lambda item: (str(item[0].path), item[1].lineno))
    for module, first in found[:1]:
        text = (
            f"`{module.text(first)}` gives every process equally many samples: unless their number is a multiple of "
            f"that of the processes, it repeats some, and {texts[first]} those twice"
        )
        yield module, first, text + more_places(own.program, found)


def _chosen(own: OwnDdp, shares: Shares, known: set[ast.AST]) -> Iterator[LoaderUse]:
    """Yield evaluations over one of two loaders, of which that without a sampler is for one process alone.

    ``if several: loader = DataLoader(data, sampler=DistributedSampler(data)) else: loader = DataLoader(data)``.
    """
    for use in own.data.evaluated:
        several = frozenset(value for value in use.values if not _is_of_one_process(own, value))
        if use.node in known or not several or not several < use.values or not _is_gone_through_by_all(own, use):
            continue
        if all(shares.metrics.samplers_of(replace(use, values=frozenset({value}))) for value in several):
            yield replace(use, values=several)


def _by_own_samplers(own: OwnDdp, shares: Shares, known: set[ast.AST]) -> Iterator[LoaderUse]:
    """Yield evaluations of all processes over loaders whose sampler is of a class of the project."""
    for use in own.data.evaluated:
        if use.node not in known and use.values and use.values <= shares.metrics.by_own_samplers:
            if _is_gone_through_by_all(own, use):
                yield use


def _is_gone_through_by_all(own: OwnDdp, use: LoaderUse) -> bool:
    """Whether every process goes through a loader, in a loop that does not train."""
    loop = blocks.loop_around(use.module, use.node)
    if not isinstance(loop, ast.For) or use.module not in own.modules or own.program.runs_backward(loop):
        return False
    return own.reach(use.module, loop) is Reach.EVERY


def _is_of_one_process(own: OwnDdp, value: Value) -> bool:
    located = own.program.locate(value.site) if isinstance(value.site, ast.Call) else None
    return located is not None and own.several_alone(located[1].module, value.site or located[0]) is False


def _said_of(own: OwnDdp, use: LoaderUse, adds: _Asks, gathers: _Asks, by_rank: set[ast.AST]) -> str | None:
    """What is said of an evaluation that has the samples of all processes; None of one that has not."""
    if _tells_samples_apart(own, use, gathers):
        return None
    if any(isinstance(node, ast.Call) and adds(node) for node in blocks.walk_body(use.body)):
        return _ADDED
    if use.body in by_rank:
        return _IN_FILES
    return _GATHERED if _keeps_all_gathered(own, use, gathers) else None


def _tells_samples_apart(own: OwnDdp, use: LoaderUse, gathers: _Asks) -> bool:
    """Whether a function of the project that an evaluation calls gathers something, and keeps each of it once.

    ``ids = np.unique(gather(ids))``: what else the evaluation adds up may be its times alone.
    """
    pending = [node for node in blocks.walk_body(use.body) if isinstance(node, ast.Call) and gathers(node)]
    seen: set[ast.AST] = set()
    while pending:
        for info in own.program.flow.callees(pending.pop()):
            if info.node in seen or own.program.is_model_code(info.node):
                continue
            seen.add(info.node)
            nodes = list(blocks.walk_body(info.node))
            if any(isinstance(node, (ast.Name, ast.Attribute)) and last_name(node) in _KEEPING_ONE for node in nodes):
                return True
            pending += [node for node in nodes if isinstance(node, ast.Call) and gathers(node)]
    return False


def _gathering(own: OwnDdp) -> _Asks:
    """Whether a call gathers what all processes have; what a model does in its pass is no score."""
    sites = own.program.calls_to(frozenset(INTO_ANOTHER))
    gathers = {site.node for site in sites if not own.program.is_model_code(site.body)}
    return own.program.closure(lambda node: node in gathers)


def _keeps_all_gathered(own: OwnDdp, use: LoaderUse, gathers: _Asks) -> bool:
    """Whether an evaluation gathers something of its batches, in the loop or below, and nothing leaves any out.

    A slice may leave out what is too much, and so may a set or a dictionary of the samples' numbers; a loader that
    drops its last batch may drop what is repeated.
    """
    loop = blocks.loop_around(use.module, use.node)
    makes = [value.site for value in use.values if isinstance(value.site, ast.Call)]
    if loop is None or any(given_to_loader(call, "drop_last") is not None for call in makes):
        return False
    below = [node for node in blocks.walk_body(use.body) if getattr(node, "lineno", loop.lineno) >= loop.lineno]
    # Below the loop, a function that trains, too, may gather something else.
    within = [*walk(loop)] if _trains(own, use) else below
    gathering = [node for node in within if isinstance(node, ast.Call) and gathers(node)]
    helpers = [
        inner
        for call in gathering
        for info in own.program.flow.callees(call)
        if not own.program.is_model_code(info.node)
        for inner in blocks.walk_body(info.node)
    ]
    return bool(gathering) and not any(map(_may_leave_out, [*below, *helpers]))


def _may_leave_out(node: ast.AST) -> bool:
    """Whether a place may leave out what is there twice: a slice up to somewhere, or a dictionary by computed keys."""
    if isinstance(node, ast.Slice):
        return node.upper is not None
    if isinstance(node, ast.Dict):
        return not node.keys or not all(isinstance(key, ast.Constant) for key in node.keys)
    if isinstance(node, (ast.Name, ast.Attribute)):
        return last_name(node) in _LEAVING_OUT
    return isinstance(node, (ast.DictComp, ast.Set, ast.SetComp))


def _reads_for_all(body: ast.AST) -> bool:
    """Whether a function goes through the processes: ``for rank in range(world_size)``."""
    loops = [node.iter for node in blocks.walk_body(body) if isinstance(node, (ast.For, ast.comprehension))]
    return any(_WORLD.search(last_name(part)) for iterated in loops for part in walk(iterated))


def _trains(own: OwnDdp, use: LoaderUse) -> bool:
    """Whether the function that uses a loader trains."""
    return any(map(own.program.runs_backward, blocks.own_parts(use.body)))


def _trained(own: OwnDdp, shares: Shares, fetched: list[LoaderUse]) -> Iterator[LoaderUse]:
    """Yield the loaders whose batches are trained on."""
    for loop in [*shares.metrics.loops, *shares.metrics.loops_by_batches]:
        if own.program.runs_backward(loop.loop):
            yield loop.use
    yield from (use for use in fetched if _trains(own, use))


def _fetched(own: OwnDdp) -> Iterator[LoaderUse]:
    """Yield the loaders whose batches an object of the project fetches: ``Prefetcher(loader)``."""
    for call, body, scope in own.program.calls():
        made = own.program.flow.values(call, scope)
        if not made or not all(value.kind == "instance" and value.site is call for value in made):
            continue
        if not all(map(_takes_batches, made)):
            continue
        if not any(map(own.program.runs_forward, blocks.own_parts(body))):
            continue
        if own.reach(scope.module, call) is not Reach.EVERY:
            continue
        for given in values_given(call):
            values = frozenset(
                value for value in own.program.flow.values(given, scope) if isinstance(value.site, ast.Call)
            )
            if values:
                yield LoaderUse(scope.module, scope, body, call, given, values)


def _takes_batches(value: Value) -> bool:
    """Whether a class iterates something itself, batch by batch."""
    info: ClassInfo = value.ref
    return any(
        isinstance(node, ast.Call) and called_name(node) in ("iter", "next")
        for method in info.facts.methods.values()
        for node in walk(method.node)
    )


def _adding(own: OwnDdp) -> _Asks:
    """Whether a call adds numbers up over the processes, itself or by a metric of torchmetrics.

    What a model or a loss does in its pass is no score.
    """
    calls: set[ast.AST] = {
        site.node for site in own.program.calls_to(REDUCTIONS) if not own.program.is_model_code(site.body)
    }
    if names_joint_metrics(own.program):
        calls |= {call for call, _, scope in own.program.calls() if asks_joint_metric(own.program, call, scope)}
    return own.program.closure(lambda node: node in calls)


def _is_even(call: ast.Call, body: ast.AST) -> bool:
    """Whether a sampler leaves out what is over, or the script asks there itself whether something is."""
    drops = keyword(call, "drop_last")
    if drops is not None and literal(drops) is not False:
        return True
    return _asks_what_is_over(body)


def _asks_what_is_over(body: ast.AST, *, of_processes: bool = False) -> bool:
    """``len(data) % world_size``: what is over may be any number's; in an evaluation it has to be that of processes."""
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mod)
        and any(map(_is_length, walk(node.left)))
        and (not of_processes or any(_WORLD.search(last_name(part)) for part in walk(node.right)))
        for node in blocks.walk_body(body)
    )


def _is_length(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"
