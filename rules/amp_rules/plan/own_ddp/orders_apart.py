"""Data that each process shuffles by a generator of its own, before samplers share its places out."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.flow.values import ClassInfo, Value
from amp_rules.plan.own_ddp.data_sets import shares
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.samplers import samplers
from amp_rules.plan.own_ddp.spawned import Spawned
from amp_rules.roles.absent import never_runs
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, values_given, walk
from amp_rules.torch.data import JOINS_DATASETS, SHUFFLES
from amp_rules.torch.replication import SEEDS

_MAX_CALLERS = 3
"""Functions that hand on what one has shuffled: ``read_list``, ``split``, ``make_data``."""


def orders_apart(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such shuffle; with no sampler to share its places out, the first whose order is cut in two."""
    shuffles = [site for site in own.program.calls_to(SHUFFLES) if site.module in own.modules]
    if not shuffles or not own.wraps:
        return
    spawned = Spawned(own)
    if spawned.are_forked:
        return
    seeds = _Seeds(own, spawned)
    data: SharedData | None = None
    for site in shuffles:
        if site.body in own.uncalled or own.reach(site.module, site.node) is not Reach.EVERY:
            continue
        if never_runs(own.program.flow, site.module, site.node) or not spawned.run(site):
            continue
        if seeds.may_seed(own.program.callee_names(site.node, site.scope)):  # type: ignore[arg-type]
            continue
        data = data or SharedData(own)
        if data.takes(site):
            outcome = (
                ": the place that a sampler gives out holds another sample in each, and some samples are trained on by "
                "several processes and others by none"
            )
        elif any(
            _is_dealt(names, below) or _is_dealt_by_methods(own, place, names)
            for place, names, below in _ways_of(own, site, made_of)
        ):
            outcome = ": some samples are in the shares of several processes, and others in none"
        elif not _is_run_in_training(own, site) and any(
            _are_halves(names, below) for _, names, below in _ways_of(own, site, _reordered)
        ):
            outcome = ", and splits the data by it: samples that one process holds back are trained on by others"
        else:
            continue
        reason = "its seed is the rank's" if seeds.are_apart else "nothing seeds it"
        order = f"each process draws another order in `{site.module.text(site.node)}`, as {reason}"
        yield site.module, site.node, f"{order}{outcome}; seed it alike in all of them"
        return


class _Seeds:
    """What seeds the generators of the processes that train.

    Attributes:
        are_apart: whether a seed was seen that the rank goes into.
    """

    are_apart = False

    def __init__(self, own: OwnDdp, spawned: Spawned) -> None:
        self._own = own
        self._spawned = spawned

    def may_seed(self, names: set[str]) -> bool:
        """Whether something may give all of them one seed for functions of these names."""
        library = {name.partition(".")[0] for name in names}
        for call, body, scope in self._own.program.calls():
            if "seed" not in last_name(call.func).lower():
                continue
            if not self._spawned.run(Site(scope.module, scope, body, call)):
                continue
            if self._own.program.flow.callees(call):
                continue  # what it runs is looked at itself
            called = self._own.program.callee_names(call, scope)
            of_another = bool(called) and called <= SEEDS and library.isdisjoint(n.partition(".")[0] for n in called)
            if not of_another:
                if not any(map(names_rank, values_given(call))):
                    return True
                self.are_apart = True
        return False


class SharedData:
    """The data sets that samplers share out."""

    def __init__(self, own: OwnDdp) -> None:
        self._own = own
        self._made: set[ast.AST] = set()
        self._classes: set[ClassInfo] = set()
        for sampler in samplers(own):
            for loader in sampler.loaders:
                self._add(loader.site)

    def _add(self, loader: ast.AST | None) -> None:
        given = given_to_loader(loader, "dataset") if isinstance(loader, ast.Call) else None
        located = self._own.program.locate(loader) if loader is not None else None
        if given is None or located is None:
            return
        whole = self._own.program.flow.values(given, located[1])
        for value in whole.union(*map(self._joined, whole)):
            if value.site is None or shares(self._own, value):
                continue
            self._made.add(value.site)
            if value.kind == "instance":
                self._classes |= {value.ref}

    def _joined(self, value: Value) -> set[Value]:
        """The data sets that one is put together of: ``ConcatDataset([first, second])``."""
        call = value.site
        located = self._own.program.locate(call) if isinstance(call, ast.Call) else None
        if located is None or not isinstance(call, ast.Call) or not call.args:
            return set()
        if not self._own.program.callee_names(call, located[1]) & JOINS_DATASETS:
            return set()
        flow = self._own.program.flow
        return flow.elements(flow.values(call.args[0], located[1]))

    def takes(self, shuffle: Site) -> bool:
        """Whether one of them gives its samples in the order that a call draws."""
        return any(self._takes(site, names, below) for site, names, below in _ways_of(self._own, shuffle, made_of))

    def _takes(self, site: Site, names: set[str], below: list[ast.AST]) -> bool:
        """Whether variables of a body go into one of them."""
        if any(node in self._made and blocks.touches(names, blocks.reads(node)) for node in below):
            return True
        info = self._own.program.function_of(site.body)
        owner = self._own.program.flow.class_of(info) if info is not None else None
        if info is None or owner is None or info.receiver is None:
            return False
        kept = {name for name in names if name.startswith(f"{info.receiver}.")}
        if info.name != "__init__" and not self._is_run_at_start(owner, site.body):
            return False
        return any(owner in cls.mro() and _is_indexed(cls, kept) for cls in self._classes)

    def _is_run_at_start(self, owner: ClassInfo, body: ast.AST) -> bool:
        start = owner.find_method("__init__")
        return start is not None and body in self._own.program.called_from(blocks.walk_body(start.node))


def _is_run_in_training(own: OwnDdp, site: Site) -> bool:
    """Whether a place is run in the rounds of a training loop, where orders are of batches."""
    runs = own.program.closure(lambda node: node is site.node)
    return any(
        isinstance(node, blocks.LOOPS) and own.program.runs_backward(node) and runs(node)
        for node, _, _ in own.program.nodes()
    )


_Made = Callable[[list[ast.AST], set[str]], set[str]]
_Ways = Iterator[tuple[Site, set[str], list[ast.AST]]]


def _ways_of(own: OwnDdp, shuffle: Site, made: _Made) -> _Ways:
    """Yield where what a call shuffles gets to: a place, the variables that hold it there, and what runs below it.

    It goes on by what ``made`` finds of variables below them, and by what functions give back.
    """
    assert isinstance(shuffle.node, ast.Call)
    statement = shuffle.statement
    if isinstance(statement, ast.Return):
        yield from _ways_above(own, shuffle, made, _MAX_CALLERS)
        return
    if isinstance(statement, ast.Expr):
        given = shuffle.node.args[0] if shuffle.node.args else None
        names = {path} if given is not None and (path := blocks.path_of(given)) is not None else set()
    else:
        names = blocks.writes(statement)
    yield from _ways(own, shuffle, names, made, _MAX_CALLERS)


def _ways(own: OwnDdp, site: Site, names: set[str], made: _Made, depth: int) -> _Ways:
    below = [node for node in blocks.walk_body(site.body) if getattr(node, "lineno", 0) > site.line]
    if not names or any(isinstance(node, ast.Call) and _sorts(node, names) for node in below):
        return
    names = names | made(below, names)
    yield site, names, below
    info = own.program.function_of(site.body)
    if info is not None and any(blocks.touches(names, blocks.reads(item)) for item in info.returns):
        yield from _ways_above(own, site, made, depth)


def _ways_above(own: OwnDdp, site: Site, made: _Made, depth: int) -> _Ways:
    """Yield those of the callers of a place's function, which gives it back."""
    info = own.program.function_of(site.body)
    for caller in own.program.flow.callers(info) if info is not None and depth else ():
        above = calling(caller)
        yield from _ways(own, above, blocks.writes(above.statement), made, depth - 1)


def _is_dealt(names: set[str], below: list[ast.AST]) -> bool:
    """Whether each process takes a part of a variable by its rank: ``order[rank::size]``."""
    return any(
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Slice)
        and node.slice.lower is not None
        and names_rank(node.slice.lower)
        and blocks.path_of(node.value) in names
        for node in below
    )


def _is_dealt_by_methods(own: OwnDdp, site: Site, names: set[str]) -> bool:
    """Whether an object keeps a variable, and a method of its class, or of one made of that, takes such a part."""
    info = own.program.function_of(site.body)
    owner = own.program.flow.class_of(info) if info is not None else None
    if info is None or owner is None or info.receiver is None:
        return False
    kept = {name.partition(".")[2] for name in names if name.startswith(f"{info.receiver}.")}
    return bool(kept) and any(
        _is_dealt({f"{method.receiver}.{attribute}" for attribute in kept}, [*blocks.walk_body(method.node)])
        for cls in own.program.flow.classes.values()
        if owner in cls.mro()
        for method in cls.facts.methods.values()
        if method.receiver is not None
    )


def _are_halves(names: set[str], below: list[ast.AST]) -> bool:
    """Whether a variable is cut in two at one place: ``data[:size]`` and ``data[size:]``."""
    begins, ends = set(), set()
    for node in below:
        if not isinstance(node, ast.Subscript) or blocks.path_of(node.value) not in names:
            continue
        cut = node.slice
        if isinstance(cut, ast.Slice) and cut.step is None and isinstance(node.ctx, ast.Load):
            whole = ast.dump(node.value)
            if cut.lower is None and cut.upper is not None:
                begins.add((whole, ast.dump(cut.upper)))
            elif cut.upper is None and cut.lower is not None:
                ends.add((whole, ast.dump(cut.lower)))
    return not begins.isdisjoint(ends)


def _reordered(nodes: list[ast.AST], names: set[str]) -> set[str]:
    """What holds other data in an order that a variable holds: ``data = data[order]``."""
    return {
        path
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)
        if isinstance(node.value.slice, ast.Name) and node.value.slice.id in names
        for path in blocks.writes(node)
    }


def made_of(nodes: list[ast.AST], names: set[str]) -> set[str]:
    """The variables that are made of others below a place."""
    found = set(names)
    while True:
        more = {
            path
            for node in nodes
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
            if blocks.touches(found, blocks.reads(node.value)) and not _measures(node.value)
            for path in blocks.writes(node)
        } - found
        if not more:
            return found - names
        found |= more


def _measures(node: ast.expr) -> bool:
    """Whether an expression is the same in any order: ``len(files)``, ``sorted(files)``."""
    return isinstance(node, ast.Call) and last_name(node.func) in _IN_ANY_ORDER


_IN_ANY_ORDER = frozenset({"len", "sorted", "set", "max", "min", "sum", "Counter", "unique", "int", "print"})


def _sorts(call: ast.Call, names: set[str]) -> bool:
    """Whether a list is put into an order of its own again: ``files.sort()``."""
    is_sort = isinstance(call.func, ast.Attribute) and call.func.attr == "sort"
    return is_sort and any(blocks.path_of(part) in names for part in walk(call.func))


def _is_indexed(cls: ClassInfo, kept: set[str]) -> bool:
    """Whether the class gives its samples by their place in one of these attributes: ``self.files[index]``."""
    method = cls.find_method("__getitem__")
    if method is None or method.receiver is None or len(method.by_place) < 2:
        return False
    index = method.by_place[1]
    attributes = {name.partition(".")[2] for name in kept}
    return any(
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and isinstance(node.value.value, ast.Name)
        and node.value.value.id == method.receiver
        and node.value.attr in attributes
        and any(isinstance(part, ast.Name) and part.id == index for part in walk(node.slice))
        for node in method.nodes
    )
