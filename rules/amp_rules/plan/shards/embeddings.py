"""What the rewrites ask about tables whose rows are shared out over the processes, with ``--shard-embeddings``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from amp_rules.flow.values import Value
from amp_rules.plan.declining import Declined
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.options import Options
from amp_rules.plan.precision import Precision
from amp_rules.plan.reached_by_all import ReachedByAll
from amp_rules.plan.shards import table_kinds, table_uses
from amp_rules.plan.shards.afterwards import Afterwards
from amp_rules.plan.shards.declined import TABLES
from amp_rules.plan.shards.places import Places
from amp_rules.plan.shards.sharding import CLIPS_NORM
from amp_rules.plan.shards.states import States
from amp_rules.plan.shards.tables import Tables
from amp_rules.ranks.analysis import Ranks
from amp_rules.roles.kinds import is_optimizer
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, closure_of
from amp_rules.source import blocks
from amp_rules.torch.distributed import LOCAL_RANK_VARIABLES, RANK_VARIABLES
from amp_rules.torch.optimizers import BY_ELEMENT
from amp_rules.torch.wrappers import DATA_PARALLEL


class TableSharding:
    """The answers for one program, of which at least one prepared model may have a large table.

    Attributes:
        tables: the tables of the program.
        precision: the training steps; a model with tables is prepared in a statement of its own.
        places: where each model with tables shares them out: above its optimizer.
        told: the decisions over lookups that :meth:`reasons` has declined.
    """

    def __init__(self, program: Program, precision: Precision, tables: Tables) -> None:
        self._program = program
        self.tables = tables
        homes = [replace(home, inline=None) if self._is_split(home) else home for home in precision.homes]
        self.precision = replace(precision, homes=homes)
        self._bearing = [home for home in homes if self._bears(home)]
        self._places = Places(program, self._bearing, TABLES, tables.is_large)
        self.places = self._places.homes
        self.told: set[ast.AST] = set()

    @property
    def is_needed(self) -> bool:
        """Whether a model is prepared that may have a large table."""
        return bool(self._bearing)

    @cached_property
    def shared(self) -> set[Value]:
        """The tables that are in such a model, and may be large."""
        found = {part for home in self._bearing for part in self._program.with_parts(self._models(home))}
        return set(filter(self.tables.is_large, found))

    @cached_property
    def lookups(self) -> dict[ast.AST, Site]:
        """The calls that look rows up: of tables, and of models with such."""
        return {
            call: Site(scope.module, scope, body, call)
            for call, body, scope in self._program.calls()
            if any(map(self.tables.bears, self._program.called_models(call, scope)))
        }

    @cached_property
    def states(self) -> list[Site]:
        """The calls of ``state_dict`` whose states are saved: all ranks put the whole together."""
        return self._states.saved

    @cached_property
    def clips(self) -> list[Site]:
        """The calls that clip by a norm, which counts the rows of all ranks."""
        return self._program.calls_to(CLIPS_NORM)

    @cached_property
    def meets(self) -> frozenset[ast.AST]:
        """Calls to which all processes have to come."""
        return frozenset(self.lookups).union(site.node for site in [*self._states.saved, *self._states.loaded])

    @cached_property
    def _afterwards(self) -> Afterwards:
        return Afterwards(self._program, self.places)

    @cached_property
    def _states(self) -> States:
        return States(self._program, self._afterwards, TABLES, self.tables.bears)

    def reasons(self, reached: ReachedByAll, ranks: Ranks, *, keeps_names: bool) -> Iterator[Declined]:
        """Yield what tables do not bear whose rows are shared out.

        Args:
            reached: which places all processes come to.
            ranks: what differs between them.
            keeps_names: whether something has to stay in the place of ``DataParallel``.
        """
        said: set[tuple[object, object]] = set()
        for declined in self._all_reasons(reached, ranks, keeps_names=keeps_names):
            refusal = declined.refusal
            place = refusal.path, refusal.message if refusal.span is None else refusal.span.start.line
            if place not in said:  # what reads a weight may do several things that are not borne
                said.add(place)
                yield declined

    def _all_reasons(self, reached: ReachedByAll, ranks: Ranks, *, keeps_names: bool) -> Iterator[Declined]:
        program = self._program
        yield from self._places.reasons
        yield from table_uses.reasons(program, self.tables, self._afterwards)
        yield from table_kinds.reasons(program, self.tables, self.lookups)
        for home in self._bearing:
            yield from table_kinds.parts_not_known(program, home, self._models(home))
            if home.in_place:
                message = f"`{home.variable}` is prepared within an expression, so no statement can shard it"
                yield TABLES.decline(home.module, home.statement, message, "give it a variable of its own first")
        yield from self._told_apart()
        yield from self._in_two()
        yield from self._by_rank(ranks)
        yield from self._optimizers()
        yield from self._states.reasons
        for site in (*self.lookups.values(), *self._states.saved, *self._states.loaded):
            if reached.is_alone(site):
                text = site.module.text(site.node)
                message = f"`{text}` may run on one process only, and needs all processes"
                yield TABLES.decline(site.module, site.node, message, "move it out of the condition")
        if self.precision.full_precision:
            message = "`torch.autograd.grad` may differentiate a lookup twice, which sharded rows do not support"
            yield TABLES.decline(program.entry, None, message)
        for site in program.calls_to(DATA_PARALLEL) if keeps_names else ():
            message = "checkpoints have the names that `DataParallel` gives, which whole states do not have"
            yield TABLES.decline(site.module, site.node, message, "take `DataParallel` out")

    def _told_apart(self) -> Iterator[Declined]:
        """Yield where the script itself reads which process it is: what follows from it is not looked into."""
        for node, _, scope in self._program.nodes():
            if isinstance(node, ast.Constant) and node.value in RANK_VARIABLES | LOCAL_RANK_VARIABLES:
                text = f"`{scope.module.text(node)}` depends on the rank, so some processes may skip lookups"
                yield TABLES.decline(scope.module, node, text, "remove the dependence on the rank")

    def _in_two(self) -> Iterator[Declined]:
        """Yield models that may have a table of one before them, where tables are handed on."""
        known: dict[Value, Home] = {}
        for home in self._bearing:
            found = filter(self.tables.is_large, self._program.with_parts(self._models(home)))
            before = [known[value] for value in found if value in known]
            if before and self._are_handed_on:
                message = (
                    f"`{home.variable}` may have a table that `{before[0].variable}` also has, which is sharded first"
                )
                yield TABLES.decline(home.module, home.statement, message)
            known.update((value, home) for value in self._program.with_parts(self._models(home)))

    @cached_property
    def _are_handed_on(self) -> bool:
        """Whether a table is given from one place to another."""
        for node, _, scope in self._program.nodes():
            parent = scope.module.parents.get(node)
            if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(
                parent, (ast.Call, ast.keyword, ast.Assign, ast.Return)
            ):
                is_called = isinstance(parent, ast.Call) and parent.func is node
                is_set = not isinstance(node.ctx, ast.Load)
                if (
                    not is_called
                    and not is_set
                    and any(map(self.tables.is_large, self._program.roles.modules(node, scope)))
                ):
                    return True
        return False

    def _by_rank(self, ranks: Ranks) -> Iterator[Declined]:
        """Yield what says, by the batch of one process, how often rows are looked up, or whether a model does it.

        Elsewhere a decision can be made the same on all of them; within a model, its outputs would be others then.
        """
        for call, site in self.lookups.items():
            for decision in ranks.decisions(call):
                body = blocks.body_of(decision.module, decision.node)
                if decision.node in self.told or not (decision.counts or self._program.is_model_code(body)):
                    continue
                self.told.add(decision.node)
                text, looks = decision.module.text(decision.node), site.module.text(call)
                message = (
                    f"`{text}` may differ between processes, and decides whether or how often `{looks}` looks up rows"
                )
                yield TABLES.decline(decision.module, decision.node, message, "look all rows up in one call")

    def _optimizers(self) -> Iterator[Declined]:
        """Yield optimizers of tables that do not treat each element by itself."""
        for step in self._program.steps:
            made = self._program.flow.values(step.optimizer, step.scope)
            if not any(self._may_hold(value) for value in made if is_optimizer(value)):
                continue
            text = step.module.text(step.optimizer)
            if closure_of(step) is not None:
                message = f"`{step.module.text(step.call)}` gives the step a closure, and the rows are sharded"
                yield TABLES.decline(step.module, step.node, message)
            elif any(is_optimizer(value) and value.name not in BY_ELEMENT for value in made):
                message = f"`{text}` may use a norm of the whole table, and each process has only its rows"
                remedy = "train tables with an optimizer of torch that treats each element by itself, as Adam does"
                yield TABLES.decline(step.module, step.node, message, remedy)

    def _may_hold(self, value: Value) -> bool:
        found = self._program.models_of_optimizer(value.site) if isinstance(value.site, ast.Call) else set()
        return not found or any(map(self.tables.bears, found))

    def _is_split(self, home: Home) -> bool:
        return home.inline is not None and not home.in_place and self._bears(home)

    def _bears(self, home: Home) -> bool:
        return any(map(self.tables.bears, self._models(home)))

    def _models(self, home: Home) -> set[Value]:
        cell = self._program.flow.cells.get(home.key)
        return set(cell.values) if cell is not None else set()


def tables_not_sharded(program: Program, why: str) -> Declined:
    """The exception for a program whose tables cannot be shared out as a whole."""
    return TABLES.decline(program.entry, None, why)


def has_large(program: Program, options: Options) -> bool:
    """Whether tables are to be shared out, and the program makes one that may be large."""
    return options.shard_embeddings is not None and bool(Tables(program, options.shard_embeddings).large)


def of_whole_tables(program: Program, declined: Declined, options: Options) -> Declined:
    """The exception where the script has processes of its own: they have whole tables, which was not asked for."""
    if not declined.already or not has_large(program, options):
        return declined
    return tables_not_sharded(program, "the script has its own distributed training, with whole tables on each process")
