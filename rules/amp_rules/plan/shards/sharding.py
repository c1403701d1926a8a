"""What the rewrites ask about models that are shared out over the processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from amp_rules.plan import written_buffers
from amp_rules.plan.declining import Declined
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.precision import Precision
from amp_rules.plan.reached_by_all import ReachedByAll
from amp_rules.plan.shards import uses
from amp_rules.plan.shards.afterwards import Afterwards
from amp_rules.plan.shards.declined import not_sharded
from amp_rules.plan.shards.places import Places
from amp_rules.plan.shards.states import States
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.torch.gradients import CLIP_FUNCTIONS
from amp_rules.torch.wrappers import DATA_PARALLEL

CLIPS_NORM = frozenset(name for name in CLIP_FUNCTIONS if name.endswith(".clip_grad_norm_"))


class Sharding:
    """The answers for one program.

    Attributes:
        precision: the training steps, with each model prepared before its optimizer is built.
    """

    def __init__(self, program: Program, precision: Precision) -> None:
        self._program = program
        self._places = Places(program, list(precision.homes))
        self.precision = replace(precision, homes=self._places.homes)

    @cached_property
    def states(self) -> list[Site]:
        """The calls of ``state_dict`` whose states are saved: all ranks put the whole together."""
        return self._states.saved

    @cached_property
    def clips(self) -> list[Site]:
        """The calls that clip by a norm, which is that of all shards."""
        return self._program.calls_to(CLIPS_NORM)

    @cached_property
    def _afterwards(self) -> Afterwards:
        return Afterwards(self._program, list(self.precision.homes))

    @cached_property
    def _states(self) -> States:
        return States(self._program, self._afterwards)

    def reasons(self, reached: ReachedByAll, *, keeps_names: bool) -> Iterator[Declined]:
        """Yield what shards do not bear.

        Args:
            reached: which places all processes come to.
            keeps_names: whether something has to stay in the place of ``DataParallel``.
        """
        program = self._program
        yield from self._places.reasons
        yield from uses.reasons(self._program, self._afterwards)
        yield from self._states.reasons
        for site in self.states:
            if reached.is_alone(site):
                yield not_sharded(
                    site.module,
                    site.node,
                    f"`{site.module.text(site.node)}` runs on one process only, and needs all processes",
                    "move it out of the condition",
                )
        if self.precision.full_precision:
            yield not_to_be_sharded(program, "`torch.autograd.grad` computes gradients through weights in parts")
        for home in written_buffers.homes(program, self.precision):
            yield self._beside(home, "writes buffers in each step and trains nothing")
        for home in written_buffers.homes_of_batch_norm(program, self.precision):
            yield self._beside(home, "has batch norm in training mode and trains nothing")
        for site in program.calls_to(DATA_PARALLEL) if keeps_names else ():
            yield not_sharded(
                site.module,
                site.node,
                "checkpoints have the names that `DataParallel` gives, which would need a wrapper around shards",
                "take `DataParallel` out",
            )

    @staticmethod
    def _beside(home: Home, what: str) -> Declined:
        message = f"`{home.variable}` {what}: what makes the processes equal there expects it whole"
        return not_sharded(home.module, home.statement, message)


def not_to_be_sharded(program: Program, why: str) -> Declined:
    """The exception for a program that cannot be sharded as a whole."""
    return not_sharded(program.entry, None, why)


def of_whole_models(program: Program, declined: Declined) -> Declined:
    """The exception where the script has processes of its own: they have whole models, which was not asked for."""
    if not declined.already:
        return declined
    return not_to_be_sharded(program, "the script has its own distributed training, with whole models on each process")
