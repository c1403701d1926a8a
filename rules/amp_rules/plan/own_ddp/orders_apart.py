"""Data that each process shuffles by a generator of its own, before samplers share its places out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.flow.values import ClassInfo
from amp_rules.plan.own_ddp.data_sets import shares
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.samplers import samplers
from amp_rules.plan.own_ddp.spawned import Spawned
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, values_given, walk
from amp_rules.torch.data import SHUFFLES
from amp_rules.torch.replication import SEEDS

_MAX_CALLERS = 3
"""Functions that hand on what one has shuffled: ``read_list``, ``split``, ``make_data``."""


def orders_apart(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such shuffle."""
    shuffles = [site for site in own.program.calls_to(SHUFFLES) if site.module in own.modules]
    if not shuffles or not own.wraps:
        return
    spawned = Spawned(own)
    if spawned.are_forked:
        return
    seeds = _Seeds(own, spawned)
    data: _Data | None = None
    for site in shuffles:
        if site.body in own.uncalled or own.reach(site.module, site.node) is not Reach.EVERY:
            continue
        if not spawned.run(site) or seeds.may_seed(own.program.callee_names(site.node, site.scope)):  # type: ignore[arg-type]
            continue
        data = data or _Data(own)
        if data.takes(site):
            reason = "its seed is the rank's" if seeds.are_apart else "nothing seeds it"
            text = (
                f"each process draws another order in `{site.module.text(site.node)}`, as {reason}: the place that a "
                "sampler gives out holds another sample in each, and some samples are trained on by several processes "
                "and others by none; seed it alike in all of them"
            )
            yield site.module, site.node, text
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


class _Data:
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
        for value in self._own.program.flow.values(given, located[1]):
            if value.site is None or shares(self._own, value):
                continue
            self._made.add(value.site)
            if value.kind == "instance":
                self._classes |= {value.ref}

    def takes(self, shuffle: Site) -> bool:
        """Whether one of them gives its samples in the order that a call draws."""
        assert isinstance(shuffle.node, ast.Call)
        statement = shuffle.statement
        if isinstance(statement, ast.Expr):
            given = shuffle.node.args[0] if shuffle.node.args else None
            names = {path} if given is not None and (path := blocks.path_of(given)) is not None else set()
        else:
            names = blocks.writes(statement)
        return bool(names) and self._reach(shuffle, names, _MAX_CALLERS)

    def _reach(self, site: Site, names: set[str], depth: int) -> bool:
        """Whether variables of a body go into one of them."""
        below = [node for node in blocks.walk_body(site.body) if getattr(node, "lineno", 0) > site.line]
        if any(isinstance(node, ast.Call) and _sorts(node, names) for node in below):
            return False
        names = names | made_of(below, names)
        if any(node in self._made and blocks.touches(names, blocks.reads(node)) for node in below):
            return True
        info = self._own.program.function_of(site.body)
        if info is None:
            return False
        owner = self._own.program.flow.class_of(info)
        if owner is not None and info.receiver is not None:
            kept = {name for name in names if name.startswith(f"{info.receiver}.")}
            if info.name == "__init__" or self._is_run_at_start(owner, site.body):
                if any(owner in cls.mro() and _is_indexed(cls, kept) for cls in self._classes):
                    return True
        returned = [item for item in info.returns if blocks.touches(names, blocks.reads(item))]
        if not returned or depth == 0:
            return False
        for caller in self._own.program.flow.callers(info):
            above = calling(caller)
            if self._reach(above, blocks.writes(above.statement), depth - 1):
                return True
        return False

    def _is_run_at_start(self, owner: ClassInfo, body: ast.AST) -> bool:
        start = owner.find_method("__init__")
        return start is not None and body in self._own.program.called_from(blocks.walk_body(start.node))


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
