"""Numbers that each process takes from its share of the data, and that stand for all of it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.flow.values import ClassInfo, Value
from amp_rules.plan.arrays import assigned_above
from amp_rules.plan.own_ddp.data_sets import training_test
from amp_rules.plan.own_ddp.exchanges import Exchanges
from amp_rules.plan.own_ddp.followed_exchanges import followed_exchanges
from amp_rules.plan.own_ddp.loader_classes import has_distributed_sampler
from amp_rules.plan.own_ddp.meters import meters_of
from amp_rules.plan.own_ddp.of_themselves import is_only_told_of_itself
from amp_rules.plan.own_ddp.packed import packed_value
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.sampler_lists import is_of_some
from amp_rules.plan.own_ddp.set_by_one import is_chosen_by_what_one_sets
from amp_rules.plan.own_ddp.whole_by_flag import is_whole_by_flag
from amp_rules.plan.rank_sums import RankSums
from amp_rules.plan.training_loops import Counted, TrainingLoop, variable
from amp_rules.plan.whole_lengths import WholeLengths
from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.world import Setting
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.loaders import LoaderUse
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site, calling
from amp_rules.roles.told_by_argument import is_ruled_out
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import conjuncts, last_name, walk
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS
from amp_rules.torch.writers import FILE_WRITERS

_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)
_MAX_SAMPLERS = 3
"""Samplers within samplers: of batches, of a number of batches, and the one below."""

_NAMES_OF_SAMPLERS = frozenset(name.rpartition(".")[2] for name in DISTRIBUTED_SAMPLERS)

Kind = Literal["sum", "mean", "meter", "counts", "own"]


@dataclass(frozen=True)
class Metric:
    """A number of one process to be made that of all.

    Attributes:
        site: the statement that it is reduced after, or the expression that is reduced.
        kind: whether the processes' numbers are added up, or averaged, or what a meter keeps is, with its average or
            without one that it works out itself, or by a method of its own.
        path: the variable, where it is reduced after a statement.
        following: the statement that comes next then.
        method: the name of the meter's own method.
    """

    site: Site
    kind: Kind
    path: str | None = None
    following: ast.stmt | None = None
    method: str | None = None


_MAX_NAMES = 3
"""Names between a file and a rank: ``path``, ``filename``, ``prefix``."""
_WRITES_FILES = frozenset(
    {
        "File", "dump", "open", "save", "savemat", "savetxt", "savez", "savez_compressed", "to_csv", "to_json",
        "to_parquet",
    }
)  # fmt: skip
"""By what name a file is written that one process may have for itself."""


class Metrics:
    """Finds the numbers of loops over loaders with a distributed sampler."""

    def __init__(self, own: OwnDdp) -> None:
        self._own = own
        self._giving: dict[ClassInfo, bool] = {}
        self.kept_apart: list[Metric] = []
        """Sums that are set under a test of ranks: what they hold is not the same on all."""

    @property
    def looked_after(self) -> bool:
        """Whether a library puts numbers of all processes together."""
        return any(
            name.startswith("torchmetrics.")
            for call, _, scope in self._own.program.calls()
            for name in self._own.program.callee_names(call, scope)
        )

    @cached_property
    def _shared(self) -> set[Value]:
        """Loaders of which each process has a share."""
        samplers = {
            site.node
            for site in self._own.program.calls_to(DISTRIBUTED_SAMPLERS)
            if not (_gives_all(site.node) or is_ruled_out(self._own.program, site.module, site.node))
        }
        found: set[Value] = set()
        for use in [*self._own.data.uses, *self._own.data.evaluated]:
            for value in use.values:
                located = self._own.program.locate(value.site) if isinstance(value.site, ast.Call) else None
                given = given_to_loader(value.site, "sampler") if isinstance(value.site, ast.Call) else None
                if given is None and located is not None and isinstance(value.site, ast.Call):
                    given = packed_value(value.site, "sampler", located[1])
                if located is not None and given is not None:
                    last = assigned_above(given, located[1]) if isinstance(given, ast.Name) else None
                    if any(item.site in samplers for item in self._own.program.flow.values(last or given, located[1])):
                        found.add(value)
        return {value for value in found if not self._is_whole_for_one(value)}

    def _is_whole_for_one(self, value: Value) -> bool:
        """Whether one process alone iterates a loader, and has changed for itself what chooses its sampler."""
        uses = [use for use in [*self._own.data.uses, *self._own.data.evaluated] if value in use.values]
        return is_chosen_by_what_one_sets(self._own, value) and all(
            self._own.is_of_first_alone(use.module, use.node) for use in uses
        )

    @cached_property
    def by_own_samplers(self) -> frozenset[Value]:
        """Loaders whose sampler is of a class of the project: one of torch's, changed, or one that asks for ranks."""
        found = set()
        for use in [*self._own.data.uses, *self._own.data.evaluated]:
            for value in use.values:
                located = self._own.program.locate(value.site) if isinstance(value.site, ast.Call) else None
                if located is None or not isinstance(value.site, ast.Call):
                    continue
                given = [given_to_loader(value.site, name) for name in ("sampler", "batch_sampler")]
                if any(node is not None and self._is_own(node, located[1], _MAX_SAMPLERS) for node in given):
                    found.add(value)
        return frozenset(found)

    @cached_property
    def by_classes(self) -> frozenset[Value]:
        """Loaders that train, of a class of the project whose constructor gives each process a share."""
        values = {value for use in self._own.data.uses for value in use.values}
        return frozenset(value for value in values if has_distributed_sampler(self._own, value))

    def _is_own(self, node: ast.expr, scope: Scope, depth: int) -> bool:
        return next(self._made(node, scope, depth, frozenset()), None) is not None

    def _made(
        self, node: ast.expr, scope: Scope, depth: int, others: frozenset[ast.AST | None]
    ) -> Iterator[ast.AST | None]:
        """Yield where such a sampler is made, or one of some ``others``, that a sampler takes its order from."""
        pending = [(node, scope)]
        asked: set[ast.AST] = set()
        for _ in range(depth + 1):
            taken: list[tuple[ast.expr, Scope]] = []
            for given, where in pending:
                for value in self._own.program.flow.values(given, where):
                    call = value.site
                    if call in others or (value.kind == "instance" and self._gives_shares(value.ref)):
                        yield call
                    # What two ways come to was asked for the first of them.
                    located = (
                        self._own.program.locate(call) if isinstance(call, ast.Call) and call not in asked else None
                    )
                    if isinstance(call, ast.Call) and located is not None:
                        asked.add(call)
                        first = call.args[0] if call.args else keyword(call, "sampler")
                        taken += [(first, located[1])] if first is not None else []
            pending = taken

    def _gives_shares(self, info: ClassInfo) -> bool:
        """Whether a sampler is one of torch's for several processes, or takes its share by the rank.

        What a sampler is given may be the data, which are no sampler: nothing goes through them in an order of theirs.
        """
        known = self._giving.get(info)
        if known is None:
            nodes = (node for part in info.mro() for node in walk(part.facts.node))
            by_rank = info.find_method("__iter__") is not None and any(
                last_name(node) == "get_rank" or _deals(node) for node in nodes
            )
            known = self._giving[info] = bool(info.external_bases() & DISTRIBUTED_SAMPLERS) or by_rank
        return known

    def samplers_of(self, use: LoaderUse) -> list[ast.Call]:
        """The calls that make the samplers of a loader which give shares: those of the project, and torch's."""
        torchs = frozenset(site.node for site in self._own.program.calls_to(DISTRIBUTED_SAMPLERS))
        found: list[ast.AST | None] = []
        for value in use.values:
            located = self._own.program.locate(value.site) if isinstance(value.site, ast.Call) else None
            for name in ("sampler", "batch_sampler"):
                given = given_to_loader(value.site, name) if isinstance(value.site, ast.Call) else None
                if located is not None and given is not None:
                    found += self._made(given, located[1], _MAX_SAMPLERS, torchs)
        return [site for site in found if isinstance(site, ast.Call)]

    @cached_property
    def _of_training(self) -> set[Value]:
        """Those that may have such a sampler only where they train."""
        return {value for value in self._shared if self._is_of_training(value)}

    def _is_of_training(self, value: Value) -> bool:
        located = self._own.program.locate(value.site) if isinstance(value.site, ast.Call) else None
        if located is None or not isinstance(value.site, ast.Call):
            return False
        site = Site(located[1].module, located[1], located[0], value.site)
        test, given = training_test(self._own, site), given_to_loader(value.site, "sampler")
        if given is not None and is_of_some(self._own, given, site):
            return True
        if test is None or given is None:
            return False
        wanted = ast.unparse(ast.parse(test, mode="eval"))
        made = assigned(self._own.program, given, site.scope)
        return any(isinstance(item, ast.IfExp) and wanted in map(ast.unparse, conjuncts(item.test)) for item in made)

    @property
    def shared_loaders(self) -> frozenset[ast.AST]:
        """The calls that make such loaders, for whatever they are."""
        return frozenset(value.site for value in self._shared - self._of_training if value.site is not None)

    @property
    def trained_by_batches(self) -> frozenset[ast.AST]:
        """The calls that make loaders which train by batches of one of torch's samplers that give shares."""
        values = {value for use in self._own.data.uses for value in use.values}
        return frozenset(v.site for v in values if v.site is not None and self._is_by_batches(v, ("batch_sampler",)))

    def may_be_of_all(self, body: ast.AST) -> bool:
        """Whether a number of a function may be that of all processes already, or become it in a caller."""
        return self.exchanges.may_be_of_all(body)

    def may_tell_of(self, body: ast.AST, path: str, apart: Collection[ast.AST] = ()) -> bool:
        """Whether one variable of a function may hold a number of all processes, or become one in a caller.

        Not by calls that are known to be about another number, ``apart``.
        """
        return self.exchanges.may_tell_of(body, path, apart)

    @cached_property
    def loops(self) -> list[TrainingLoop]:
        """The loops over such loaders that every process runs."""
        return self._loops_over(self._uses())

    @cached_property
    def loops_by_batches(self) -> list[TrainingLoop]:
        """The loops that evaluate over loaders with such a sampler within one of batches, that every process runs."""
        return self._loops_over(self._by_batches())

    @cached_property
    def training_loops(self) -> list[TrainingLoop]:
        """The loops that train, over what may be such a loader, that every process runs."""
        uses = [
            use for use in self._own.data.uses if use.values & (self._shared | self.by_own_samplers | self.by_classes)
        ]
        return [loop for loop in self._loops_over(uses, trains=True) if self._own.program.runs_backward(loop.loop)]

    def _loops_over(self, uses: Iterable[LoaderUse], *, trains: bool = False) -> list[TrainingLoop]:
        found: dict[ast.AST, TrainingLoop] = {}
        for use in uses:
            loop = next((item for item in blocks.enclosing(use.module, use.node) if isinstance(item, ast.For)), None)
            if loop is None or not any(node is use.loader for node in walk(loop.iter)):
                loop = _over_variable(use) if trains else None
            if loop is None:
                continue
            if use.module in self._own.modules and self._own.reach(use.module, loop) is Reach.EVERY:
                found.setdefault(loop, TrainingLoop(use.module, use.scope, use.body, loop, use, False))
        return sorted(found.values(), key=lambda loop: (str(loop.module.path), loop.line))

    def _uses(self) -> Iterator[LoaderUse]:
        for use in self._own.data.uses:
            if use.values and use.values <= self._shared:
                yield use
        for use in self._own.data.evaluated:
            if use.values and use.values <= self._shared - self._of_training:
                yield use

    def _by_batches(self) -> Iterator[LoaderUse]:
        """Yield evaluations over loaders whose sampler of batches gives each process a share, or one of the project."""
        for use in self._own.data.evaluated:
            if use.values and not use.values & self._shared and all(map(self._is_by_batches, use.values)):
                yield use

    def _is_by_batches(self, loader: Value, names: tuple[str, ...] = ("sampler", "batch_sampler")) -> bool:
        located = self._own.program.locate(loader.site) if isinstance(loader.site, ast.Call) else None
        if located is None or not isinstance(loader.site, ast.Call):
            return False
        given = (given_to_loader(loader.site, name) for name in names)
        return any(node is not None and self._may_share(node, located[1], _MAX_SAMPLERS) for node in given)

    def _may_share(self, node: ast.expr, scope: Scope, depth: int) -> bool:
        """Whether a sampler, or one that it takes its order from, is distributed by its class, copied ones by name."""
        for value in self._own.program.flow.values(node, scope):
            names = {value.ref.facts.node.name} if value.kind == "instance" else {str(value.name).rpartition(".")[2]}
            if names & _NAMES_OF_SAMPLERS and not _gives_all(value.site or node):
                return True
            call = value.site
            located = self._own.program.locate(call) if isinstance(call, ast.Call) else None
            if isinstance(call, ast.Call) and located is not None and depth:
                first = call.args[0] if call.args else keyword(call, "sampler")
                if first is not None and self._may_share(first, located[1], depth - 1):
                    return True
        return False

    def unfollowed(self, found: list[Metric]) -> Iterator[TrainingLoop]:
        """Yield loops that evaluate a share of the data, of which no number is found and none may be that of all."""
        evaluated = {use.node for use in self._own.data.evaluated}
        bodies = {item.site.body for item in found}
        for loop in [*self.loops, *self.loops_by_batches]:
            if loop.use.node not in evaluated or self.exchanges.may_be_of_all(loop.body):
                continue
            if self._takes_time_alone(loop.loop) or self.keeps_by_rank(loop):
                continue
            if isinstance(loop.loop.body[-1], ast.Break):
                continue  # which takes one batch, to show it or to look at its shape
            if is_whole_by_flag(self._own, loop.use, self.samplers_of(loop.use)):
                continue
            info = self._own.program.function_of(loop.body)
            callers = self._own.program.flow.callers(info) if info is not None else []
            given_back = any(_comes_of(item, calling(caller)) for caller in callers for item in found)
            if loop.body not in bodies and not given_back:
                yield loop

    def _takes_time_alone(self, loop: ast.AST) -> bool:
        """Whether nothing keeps what the model gives, as where a loop tells how fast it is."""
        runs_model = self._own.program.runs_model
        run = [node for node in walk(loop) if isinstance(node, _SIMPLE) and runs_model(node)]
        return bool(run) and all(
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and not any(map(runs_model, (*node.value.args, *node.value.keywords)))
            for node in run
        )

    def keeps_by_rank(self, loop: TrainingLoop) -> bool:
        """Whether the function writes a file for each process: ``h5py.File(f"{rank}_{name}", "w")``."""
        nodes = list(blocks.walk_body(loop.body))
        given = [item for item in nodes if isinstance(item, (ast.Assign, ast.AnnAssign)) and item.value is not None]
        for node in nodes:
            if not isinstance(node, ast.Call) or last_name(node.func) not in _WRITES_FILES:
                continue
            names = {path for item in self._paths_told(node, loop.scope) for path in blocks.reads(item)}
            for _ in range(_MAX_NAMES):
                named = [item for item in given if blocks.writes(item) & names]
                if any(item.value is not None and names_rank(item.value) for item in named):
                    return True
                names |= {path for item in named if item.value is not None for path in blocks.reads(item.value)}
        return False

    def _paths_told(self, call: ast.Call, scope: Scope) -> list[ast.expr]:
        """What tells a call the file that it writes; what it is to write there is no name of one."""
        places = {FILE_WRITERS[name] for name in self._own.program.callee_names(call, scope) if name in FILE_WRITERS}
        return [item for index, item in enumerate(call.args) if not places or index in places]

    def of_one_alone(self) -> Iterator[LoaderUse]:
        """Yield where one of several processes runs a model over all that such a loader gives it."""
        for use in self._own.data.evaluated:
            if use.module not in self._own.modules or not use.values:
                continue
            others = self._values_here(use) - (self._shared - self._of_training)
            if not all(has_distributed_sampler(self._own, value) or self.is_own_share(value) for value in others):
                continue
            loop = next((item for item in blocks.enclosing(use.module, use.node) if isinstance(item, ast.For)), None)
            if loop is None or not any(node is use.loader for node in walk(loop.iter)):
                loop = _over_variable(use) or loop
            if loop is None or not self._own.program.runs_model(loop):
                continue
            ends = any(isinstance(node, (ast.Break, ast.Return)) for node in walk(loop))  # a few batches to look at
            if ends or not self._own.is_of_first_alone(use.module, use.node):
                continue
            if not is_whole_by_flag(self._own, use, self.samplers_of(use)):
                yield use

    def is_own_share(self, loader: Value) -> bool:
        """Whether all samplers that a loader may get where there are several processes are such ones of the project."""
        if loader not in self.by_own_samplers or not isinstance(loader.site, ast.Call):
            return False
        located = self._own.program.locate(loader.site)
        given = [given_to_loader(loader.site, name) for name in ("sampler", "batch_sampler")]
        made = {
            value
            for node in given
            if node is not None and located is not None
            for value in self._own.program.flow.values(node, located[1])
        }
        several = [value for value in made if not self._is_of_one_process(value.site)]
        return bool(several) and all(
            value.kind == "instance" and self._gives_shares(value.ref) and not _gives_all(value.site)
            for value in several
        )

    def _is_of_one_process(self, made: ast.AST | None) -> bool:
        """Whether something is made where there is one process alone: ``if rank is None:``."""
        located = self._own.program.locate(made) if made is not None else None
        return made is not None and located is not None and self._own.reach(located[1].module, made) is Reach.ONE

    def _values_here(self, use: LoaderUse) -> frozenset[Value]:
        """The loaders that a loop may get, of those that one name stands for in its function."""
        last = assigned_above(use.loader, use.scope) if isinstance(use.loader, ast.Name) else None
        return (use.values & self._own.program.flow.values(last, use.scope) if last else None) or use.values

    @cached_property
    def exchanges(self) -> Exchanges:
        """Where the script puts numbers of all processes together itself."""
        return Exchanges(self._own, self.loops, known=followed_exchanges(self._own))

    @cached_property
    def unfollowed_exchanges(self) -> Exchanges:
        """The same without those whose results the abstract run of the ranks knows."""
        return Exchanges(self._own, self.loops, followed=followed_exchanges(self._own))

    @cached_property
    def whole_lengths(self) -> WholeLengths:
        """The numbers that count all of a dataset of which a process has its share."""
        return WholeLengths(self._own.program, TrainingData(uses=[*self._uses()]))

    @cached_property
    def found(self) -> list[Metric]:
        """The numbers, in the order of files and lines."""
        sums = RankSums(self._own.program, self.loops, self.whole_lengths)
        found: dict[ast.AST, Metric] = {}
        several: list[Metric] = []
        for item in sums.after:
            if item.place.module in self._own.modules:
                place = item.place
                several.append(_after(place, "sum", item.path))
        for here in sums.here:
            place = here.place
            found[here.node] = Metric(Site(place.module, place.scope, place.body, here.node), "sum")
        for place, reduced in sums.places:
            moved = dict(self._moved(place, reduced, sums))
            several += [_after(place, kind, path) for path, kind in moved.items()]
            for metric in self._means(place, reduced | moved.keys(), sums):
                found.setdefault(metric.site.node, metric)
        several += self._meters()
        candidates = [*self._told_of_all(several), *found.values()]
        # A process that came alone would wait for the others for ever.
        every = [
            item
            for item in candidates
            if not self.exchanges.may_be_of_all(item.site.body)
            and self._own.reach(item.site.module, item.site.node) is Reach.EVERY
            and self._own.only_together(item.site.module, item.site.node)
        ]
        self.kept_apart = [item for item in every if self._is_kept_apart(item)]
        every = [item for item in every if item not in self.kept_apart]
        return sorted(
            self._reached_alike(every), key=lambda item: (str(item.site.module.path), item.site.line, item.path or "")
        )

    def _told_of_all(self, metrics: list[Metric]) -> Iterator[Metric]:
        """Yield those of places where not all is told as each process's own; one may be divided by another."""
        for metric in metrics:
            beside = [item for item in metrics if item.site.node is metric.site.node]
            if not all(
                item.path is not None and is_only_told_of_itself(self._own.program, item.site, item.path)
                for item in beside
            ):
                yield metric

    def _is_kept_apart(self, metric: Metric) -> bool:
        """Whether a sum, or one that is added to it, is set under a test of ranks: ``if rank == 0: total = 0``."""
        nodes = self._own.program.nodes_of(metric.site.body)
        added = [node for node in nodes if isinstance(node, ast.AugAssign)]
        counted = {path for node in added if (path := blocks.path_of(node.target)) is not None}
        summed = {metric.path} if metric.path is not None else blocks.reads(metric.site.node)
        pending = list(counted & summed)
        seen: set[str] = set()
        while pending:
            path = pending.pop()
            seen.add(path)
            read = {name for node in added if blocks.path_of(node.target) == path for name in blocks.reads(node.value)}
            pending += (read & counted) - seen
        return any(
            isinstance(node, (ast.Assign, ast.AugAssign))
            and blocks.touches(seen, blocks.writes(node))
            and self._own.reach(metric.site.module, node) is not Reach.EVERY
            for node in (nodes if seen else ())
        )

    def _reached_alike(self, metrics: list[Metric]) -> list[Metric]:
        """Those that every process gets to, once they are the same for all: no test on the way parts the processes."""
        made = self.shared_loaders
        while metrics:
            setting = Setting(
                prepared=made,
                reduced=frozenset(item.site.node for item in metrics if item.path is None),
                reduced_before=tuple(
                    (item.following, item.path) for item in metrics if item.path is not None and item.following
                ),
            )
            ranks = Ranks(self._own.program, setting)
            kept = [item for item in metrics if not ranks.control_origins(item.site.statement)]
            if len(kept) == len(metrics):
                return kept
            metrics = kept
        return []

    def _meters(self) -> Iterator[Metric]:
        """Yield the meters that the loops fill, each after its loop."""
        for loop in self.loops:
            where = blocks.place(loop.module, loop.loop)
            following = next(iter(where.suite[where.index + 1 :]), None)
            for path, averages_itself, method in meters_of(self._own.program, loop):
                kind: Kind = "own" if method is not None else "counts" if averages_itself else "meter"
                yield Metric(Site(loop.module, loop.scope, loop.body, loop.loop), kind, path, following, method)

    def _moved(self, place: Counted, reduced: set[str], sums: RankSums) -> Iterator[tuple[str, Kind]]:
        """Yield what can be reduced after its loop, where all that follows divides it by a number of one process.

        All processes make as many batches: a sum by their number is a mean as well when it is a mean of all.
        """
        wanted = {path: sums.wants(place, path) for path in place.sums if path not in reduced}
        for path, wants in wanted.items():
            if wants == {"own"}:
                yield path, "mean"
        partners = {path for path, wants in wanted.items() if wants == {"partner"}}
        for path in wanted:
            if path in partners and len(partners) > 1:
                yield path, "sum"

    def _means(self, place: Counted, reduced: set[str], sums: RankSums) -> Iterator[Metric]:
        """Yield means over the batches of one process: ``total / len(loader)``, where they are given a name or back."""
        own = set(place.sums) - reduced
        for node in place.nodes_following():
            value = node.value if isinstance(node, (ast.Assign, ast.Return)) else None
            for part in value.elts if isinstance(value, ast.Tuple) else [value]:
                if part is not None and own & _divided(part) and sums.is_of_rank(part, place):
                    yield Metric(Site(place.module, place.scope, place.body, part), "mean")


def _over_variable(use: LoaderUse) -> ast.For | None:
    """The loop below over a variable that holds several loaders: ``batches = zip(labelled, unlabelled)``."""
    if not isinstance(use.statement, ast.Assign):
        return None
    held = blocks.writes(use.statement)
    where = blocks.place(use.module, use.statement)
    for item in where.suite[where.index + 1 :]:
        if isinstance(item, ast.For) and blocks.touches(held, blocks.reads(item.iter)):
            return item
        if blocks.touches(held, blocks.writes(item)):
            return None
    return None


def _comes_of(metric: Metric, call: Site) -> bool:
    """Whether a number is made of what a call of its function gives back."""
    if metric.site.body is not call.body:
        return False
    read = {metric.path} if metric.path is not None else blocks.reads(metric.site.node)
    return metric.site.statement is call.statement or blocks.touches(blocks.writes(call.statement), read)


def _deals(node: ast.AST) -> bool:
    """Whether a share is taken by the rank: ``order[self.rank::self.size]``."""
    cut = node.slice if isinstance(node, ast.Subscript) else None
    return isinstance(cut, ast.Slice) and cut.lower is not None and cut.step is not None and names_rank(cut.lower)


def _gives_all(sampler: ast.AST | None) -> bool:
    """Whether a sampler is made for one process: ``num_replicas=1``."""
    if not isinstance(sampler, ast.Call):
        return False
    replicas = keyword(sampler, "num_replicas") or (sampler.args[1] if len(sampler.args) > 1 else None)
    return literal(replicas) == 1


def _divided(node: ast.expr) -> set[str]:
    """The variables that a quotient divides: ``total`` of ``100.0 * total / n``."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
        return set()
    return {path for child in walk(node.left) if (path := variable(child)) is not None}


def _after(place: Counted, kind: Kind, path: str) -> Metric:
    """A sum that is reduced after the statement that gave it."""
    site = Site(place.module, place.scope, place.body, place.statement)
    return Metric(site, kind, path, next(place.following(), None))
