"""What several processes take in one program, as far as more than one rewrite asks for it."""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.plan import own_processes
from amp_rules.plan.agreement import Agreed, Agreement
from amp_rules.plan.definitions import Definitions
from amp_rules.plan.downloads import bodies_in_turns, downloads
from amp_rules.plan.draws import Draws
from amp_rules.plan.evaluation.loops import Evaluations
from amp_rules.plan.failing_files import asks_for_existing, fail_alone
from amp_rules.plan.file_guards import FileGuards, file_guards
from amp_rules.plan.file_order import FileOrder
from amp_rules.plan.gradient_averaging import Averaging, averaging, averaging_of_shards
from amp_rules.plan.guarded_exchanges import meeting
from amp_rules.plan.loaders_to_prepare import share
from amp_rules.plan.moved_inputs import inputs_are_moved
from amp_rules.plan.options import Options
from amp_rules.plan.precision import Precision
from amp_rules.plan.questions import Questions
from amp_rules.plan.rank_sums import RankSums
from amp_rules.plan.reached_by_all import ReachedByAll
from amp_rules.plan.rebindings import Rebinding
from amp_rules.plan.shards.embeddings import TableSharding
from amp_rules.plan.shards.sharding import Sharding
from amp_rules.plan.shards.tables import Tables
from amp_rules.plan.share_steps import ShareSteps
from amp_rules.plan.swallowed_failures import swallowed_failures
from amp_rules.plan.told_apart import ToldApart, told_apart
from amp_rules.plan.training_loops import TrainingLoop, training_loops
from amp_rules.plan.whole_lengths import WholeLengths
from amp_rules.plan.wrapper_names import names_are_seen, wrapper_is_required
from amp_rules.plan.writer_folders import WriterFolders
from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.origins import Kind
from amp_rules.ranks.world import Setting
from amp_rules.roles.batches import DataFlow, TrainingData
from amp_rules.roles.file_paths import Paths
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope


class Distribution:
    """Answers that the rewrites for several processes share; each is worked out when it is first asked for.

    What a single rewrite needs is decided in its own file, below :mod:`amp_rules.rewrites.distribution`.
    """

    def __init__(self, program: Program, precision: Precision, options: Options) -> None:
        self.program = program
        self._options = options
        self.sharding = Sharding(program, precision) if options.shard else None
        self.precision = precision if self.sharding is None else self.sharding.precision
        rows = options.shard_embeddings
        self.tables = Tables(program, rows) if rows is not None else None
        self.table_sharding: TableSharding | None = None
        if self.tables is not None:
            found = TableSharding(program, precision, self.tables)
            self.table_sharding = found if found.is_needed else None
            self.precision = found.precision if found.is_needed else precision

    @cached_property
    def batches(self) -> DataFlow:
        """Questions about loaders and loops."""
        return DataFlow(self.program)

    @cached_property
    def data(self) -> TrainingData:
        """What feeds the training steps."""
        return self.batches.training_data()

    @cached_property
    def definitions(self) -> Definitions:
        """Where variables get their values."""
        return Definitions(self.program)

    @cached_property
    def loops(self) -> list[TrainingLoop]:
        """The loops that training steps take their batches from."""
        return training_loops(self.program, self.batches)

    @cached_property
    def whole_lengths(self) -> WholeLengths:
        """Numbers that count the whole of a dataset of which each process has a share."""
        return WholeLengths(self.program, self.data)

    @cached_property
    def sums(self) -> RankSums:
        """Sums over the batches of one rank that are made into numbers of all."""
        return RankSums(self.program, self.loops, self.whole_lengths)

    @cached_property
    def step_counts(self) -> ShareSteps:
        """Numbers of steps that are worked out of the length of the dataset."""
        return ShareSteps(self.program, self.whole_lengths, self.loops, self.data, self._shared_out)

    @cached_property
    def ranks(self) -> Ranks:
        """Which values differ between ranks, before any rewrite makes them equal."""
        return Ranks(self.program, self.setting)

    @cached_property
    def agreed(self) -> Agreed:
        """What makes the ranks agree where they have to."""
        draws = Draws(self.program, self.data, self.definitions)
        forwards = not self.averaging.delayed
        return Agreement(
            self.program,
            self.setting,
            draws,
            self.definitions,
            forwards=forwards,
            waits=self.waits,
            left_out=self._left_out,
            own_reads=self.file_order.own_reads(),
        ).found

    @cached_property
    def waits(self) -> frozenset[ast.AST]:
        """Where the processes wait: statements before which for each other's files, calls whose answer one tells."""
        files = (statement for _, statement, _ in self.file_order.barriers())
        return frozenset(files).union(site.node for site in self.questions.told) | self._put_together

    @cached_property
    def questions(self) -> Questions:
        """What the main process asks for all."""
        return Questions(self.program, self._left_out)

    @cached_property
    def _shared_out(self) -> tuple[list[Site], list[Rebinding]]:
        """Where the loaders are prepared: expressions to wrap, and variables to rebind."""
        return share(self.program, self.told.data, set(self.program.flow.modules))

    @cached_property
    def told(self) -> ToldApart:
        """What feeds the training, once loops that train or evaluate by a flag are told apart."""
        return told_apart(self.program, self.data)

    @cached_property
    def setting(self) -> Setting:
        """What the ranks share: which loaders are shared out, and from where each rank draws numbers of its own."""
        loaders, rebindings = self._shared_out
        rebound = [*rebindings, *self.told.rebindings]
        holding, excluded = asks_for_existing(self.program)
        return Setting(
            prepared=frozenset(site.node for site in loaders),
            rebound=tuple((item.statement, item.variable) for item in rebound if not item.after),
            rebound_after=tuple((item.statement, item.variable) for item in rebound if item.after),
            seeded=frozenset(site.statement for site in self.data.random.values()),
            reduced=frozenset(item.node for item in self.sums.here) | {site.node for site in self.questions.told},
            reduced_before=tuple(
                (following, item.path) for item in self.sums.after for following in [*item.place.following()][:1]
            ),
            ordered=True,
            has_dropout=self.batches.has_dropout,
            holding=holding,
            excluded=excluded,
            failing=fail_alone(self.program, self.files),
            ending=frozenset(handler for _, handler in self.swallowed),
        )

    @cached_property
    def swallowed(self) -> list[tuple[Module, ast.ExceptHandler]]:
        """Handlers that go on where a part of a step has failed."""
        return list(swallowed_failures(self.program))

    @cached_property
    def averaging(self) -> Averaging:
        """When the gradients of the ranks are averaged."""
        if self.sharding is not None:
            return averaging_of_shards(self.program, self.precision)
        return averaging(self.program, self.precision, completes=self._options.target != "torch")

    @cached_property
    def exchanges(self) -> frozenset[ast.AST]:
        """Calls of the script's own in which the processes meet once there are several."""
        return meeting(own_processes.guarded_uses(self.program))

    @cached_property
    def _put_together(self) -> frozenset[ast.AST]:
        """Calls in which all processes give their shards of a state, or rows of tables, or meet of their own."""
        if self.table_sharding is not None:
            return self.table_sharding.meets | self.exchanges
        states = self.sharding.states if self.sharding is not None else ()
        return self.exchanges.union(site.node for site in states)

    @cached_property
    def reached(self) -> ReachedByAll:
        """Which places all processes come to."""
        return ReachedByAll(self.program, self._left_out)

    @cached_property
    def downloads(self) -> list[tuple[Module, ast.stmt]]:
        """Statements that may download data."""
        return downloads(self.program, self.precision)

    @cached_property
    def paths(self) -> Paths:
        """Which files expressions name."""
        return Paths(self.program)

    @cached_property
    def files(self) -> FileGuards:
        """What the main process writes alone."""
        return file_guards(self.program, self.paths, self.downloads, meets=self._put_together)

    @cached_property
    def file_order(self) -> FileOrder:
        """Where others wait for it."""
        return FileOrder(self.program, self.paths, self.files, self._is_of_batch)

    def _is_of_batch(self, node: ast.expr, scope: Scope) -> bool:
        """Whether a value follows from the batches of one process."""
        return any(item.kind is Kind.BATCH for item in self.ranks.origins(node, scope))

    @cached_property
    def folders(self) -> WriterFolders:
        """Which writers tell all processes the folder that they make up."""
        return WriterFolders(self.program, self.agreed.ranks, self._left_out)

    @cached_property
    def _left_out(self) -> set[ast.AST]:
        """What not all processes run at once: nodes, and the bodies of functions."""
        alone = [statement for statement in self.files.statements]
        alone += [statement for _, statement in self.downloads]
        called = [self._call_of(site) for site in self.files.calls]
        guarded = {node for statement in alone for node in blocks.walk_own(statement)}
        guarded |= self.program.called_from(call for call in called if call is not None)
        return guarded | self.program.called_from(guarded) | bodies_in_turns(self.program, self.downloads)

    @cached_property
    def evaluations(self) -> Evaluations:
        """Which evaluations the processes can share."""
        met: set[ast.AST] = {item.node for item in self.agreed.reductions} | set(self.agreed.alike)
        met |= self.folders.told | {site.node for site in self.questions.told} | self.exchanges
        flagged = [loop for loop in self.loops if loop.evaluates]
        return Evaluations(self.program, self.data.evaluated, flagged, self.agreed.ranks, self._left_out, met)

    @staticmethod
    def _call_of(site: Site) -> ast.AST | None:
        """The call of a function that the main process alone calls."""
        parent = site.module.parents[site.node]
        return parent if isinstance(parent, ast.Call) else None

    @cached_property
    def keeps_names(self) -> bool:
        """Whether something stays in the place of ``DataParallel``.

        It does for its names, where the script asserts that it is there, or as it moved a model's inputs.
        """
        return self.shows_names or not self.keeps_names_alone

    @cached_property
    def keeps_names_alone(self) -> bool:
        """Whether nothing but names asks for what stays there."""
        return not (wrapper_is_required(self.program) or inputs_are_moved(self.program))

    @cached_property
    def shows_names(self) -> bool:
        """Whether checkpoints or the script itself have the names of a model inside of ``DataParallel``."""
        return names_are_seen(self.program)

    @cached_property
    def visible_devices(self) -> list[tuple[Module, ast.stmt]]:
        """Statements that set ``CUDA_VISIBLE_DEVICES``."""
        return visible_devices(self.program)

    @cached_property
    def visible_devices_read(self) -> list[tuple[Module, ast.Subscript]]:
        """``os.environ["CUDA_VISIBLE_DEVICES"]`` where the script reads what it has set."""
        return [
            (scope.module, node)
            for node, _, scope in (self.program.nodes() if self.visible_devices else ())
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _names_visible_devices(node)
        ]


def visible_devices(program: Program) -> list[tuple[Module, ast.stmt]]:
    """Statements that set ``CUDA_VISIBLE_DEVICES``, which nobody heeds once something has asked for devices."""
    return [
        (scope.module, node)
        for node, _, scope in program.nodes()
        if isinstance(node, ast.Assign) and any(map(_names_visible_devices, node.targets))
    ]


def _names_visible_devices(target: ast.expr) -> bool:
    return (
        isinstance(target, ast.Subscript)
        and isinstance(target.slice, ast.Constant)
        and target.slice.value == "CUDA_VISIBLE_DEVICES"
    )
