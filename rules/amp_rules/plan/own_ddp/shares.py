"""What differs between processes because each of them has its own share of the data."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.plan.own_ddp.batches_of_each import batches_of_each, is_shuffled_by_process
from amp_rules.plan.own_ddp.metrics import Metrics
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.rest_shown import Shown, shown_of_shares
from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.origins import Kind
from amp_rules.ranks.world import Setting
from amp_rules.source.syntax import last_name

Named = set[tuple[ast.AST, str]]
"""Variables of functions that a note names, so that no other one does."""


class Shares:
    """Answers for one program.

    Args:
        own: the program.

    Attributes:
        program: what it is made of.
        metrics: its numbers of shares.
    """

    def __init__(self, own: OwnDdp) -> None:
        self._own = own
        self.program = own.program
        self.metrics = Metrics(own)

    @cached_property
    def loaders(self) -> frozenset[ast.AST]:
        """The calls that make loaders of which each process has a share, and what else gives it batches of its own."""
        values = self.metrics.by_own_samplers | self.metrics.by_classes
        own = {value.site for value in values if value.site is not None}
        return self.metrics.shared_loaders | self.metrics.trained_by_batches | own | batches_of_each(self._own)

    @cached_property
    def ranks(self) -> Ranks:
        """What differs between the processes, as the script stands."""
        return self._ranks_where({})

    @cached_property
    def shown(self) -> list[Shown]:
        """The calls that show what rests on the batches of one process, each with the variable that does."""
        return [*shown_of_shares(self.program, self.ranks, as_a_whole=True)]

    @cached_property
    def unknown(self) -> frozenset[ast.AST]:
        """What training loops take batches from of which nothing else is known."""
        return frozenset(node for node in self.loaders if not isinstance(node, ast.Call))

    @cached_property
    def _together(self) -> frozenset[ast.AST]:
        """The loops that train: a wrapper waits for all processes in each round, so that these count rounds alike.

        What lets one of them leave first has a note of its own: the numbers behind it are not what is wrong.
        """
        own = self._own
        return frozenset(
            node
            for node, _, scope in (own.program.nodes() if own.wraps else ())
            if isinstance(node, (ast.For, ast.While)) and own.program.runs_backward(node)
            if not own.is_of_first_alone(scope.module, node)
        )

    def _ranks_where(self, taken: Mapping[ast.expr, bool]) -> Ranks:
        tests = {
            node.test: self._own.in_several(node.test)
            for node, _, _ in self._own.program.nodes()
            if isinstance(node, (ast.If, ast.IfExp))
        }
        tests.update(taken)
        holding, excluded = (
            frozenset(test for test, holds in tests.items() if holds is side) for side in (True, False)
        )
        loaders = self.loaders
        setting = Setting(
            prepared=loaders,
            by_sampler=loaders,
            unknown=self.unknown,
            holding=holding,
            excluded=excluded,
            together=self._together,
        )
        return Ranks(self._own.program, setting)

    def decides(self, test: ast.expr) -> bool:
        """Whether a test comes out by numbers of a process's own batches."""
        return any(origin.kind is Kind.BATCH for origin in self.ranks.truth_origins(test))

    def decides_where(self, test: ast.expr, taken: Mapping[ast.expr, bool]) -> bool:
        """The same in runs in which other tests always come out as told."""
        return any(origin.kind is Kind.BATCH for origin in self._ranks_where(taken).truth_origins(test))

    def decides_by_clock(self, test: ast.expr) -> bool:
        """Whether a test comes out by the clock of each process."""
        return any(origin.kind is Kind.CLOCK for origin in self.ranks.truth_origins(test))

    @cached_property
    def _by_order(self) -> Ranks | None:
        """What differs because each process shuffles all that it evaluates on; None where all may shuffle alike."""
        seeds = (call for call, _, _ in self._own.program.calls() if "seed" in last_name(call.func).lower())
        found = frozenset(self._shuffled())
        if not found or any(not names_rank(call) for call in seeds):
            return None
        return Ranks(self._own.program, Setting(prepared=found))

    def decides_by_order(self, test: ast.expr) -> bool:
        """Whether a test comes out by numbers of batches that each process shuffles for itself."""
        ranks = self._by_order
        return ranks is not None and any(origin.kind is Kind.BATCH for origin in ranks.truth_origins(test))

    def _shuffled(self) -> Iterator[ast.AST]:
        """Yield the loaders of an evaluation that shuffle by the generator of the process."""
        for use in self._own.data.evaluated:
            for value in use.values:
                call = value.site
                if isinstance(call, ast.Call) and is_shuffled_by_process(call):
                    yield call
