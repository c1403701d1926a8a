"""What differs between processes because each of them has its own share of the data."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from amp_rules.plan.own_ddp.metrics import Metrics
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.samplers import sampler_of
from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.origins import Kind
from amp_rules.ranks.world import Setting
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS


class Shares:
    """Answers for one program.

    Args:
        own: the program.
    """

    def __init__(self, own: OwnDdp) -> None:
        self._own = own
        self.metrics = Metrics(own)

    @cached_property
    def loaders(self) -> frozenset[ast.AST]:
        """The calls that make loaders of which each process has a share."""
        return self.metrics.shared_loaders | frozenset(self._of_own_samplers())

    @cached_property
    def ranks(self) -> Ranks:
        """What differs between the processes, as the script stands."""
        return Ranks(self._own.program, Setting(prepared=self.loaders))

    def decides(self, test: ast.expr) -> bool:
        """Whether a test comes out by numbers of a process's own batches."""
        return any(origin.kind is Kind.BATCH for origin in self.ranks.truth_origins(test))

    def _of_own_samplers(self) -> Iterator[ast.AST]:
        """Yield the loaders whose sampler is of a class of the project that derives from torch's."""
        for use in [*self._own.data.uses, *self._own.data.evaluated]:
            for value in use.values:
                located = self._own.program.locate(value.site) if isinstance(value.site, ast.Call) else None
                given = sampler_of(value.site) if isinstance(value.site, ast.Call) else None
                if located is None or given is None or value.site is None:
                    continue
                values = self._own.program.flow.values(given, located[1])
                if any(item.kind == "instance" and item.ref.external_bases() & DISTRIBUTED_SAMPLERS for item in values):
                    yield value.site
