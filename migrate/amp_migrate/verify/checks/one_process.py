"""N processes train as one process does with the N-fold batch.

The original is run in one process once more, in which each batch is made of the samples that the N processes read in
that step. The mean of a step's losses over the processes then is the loss of that run, and the averaged gradients are
its gradients. Only the order of float32 additions differs: on small models the first losses differ by up to 1e-6, so
1e-4 is allowed there and for the gradients of the first optimizer step. Training amplifies rounding errors, so it is
1e-3 for the losses up to the third optimizer step, and the tolerance of the lossy levels from there on.

The first step tells what is wrong: losses that are 1/N of the original's were divided by the number of processes
besides DDP's averaging, gradients that are N times as large were summed. Where the first losses and gradients agree and
later ones do not, the optimizer may step otherwise, or a loss weights the samples of a batch: that is disproof where it
leaves the tolerance and the scatter of the losses.

Equality cannot be expected where the training draws random numbers in a step (dropout), where batch norm is not
synchronised, and where the samples are not known: then the first losses and gradients must be of one size on average,
which factors of N are not. Where a loss is a sum over samples it depends on the optimizer, see :mod:`.sums`. Where it
is weighted or padded by batch, or compares the samples of a batch, or the original does not repeat its own losses,
nothing is said. From where a learning rate depends on the number of steps, steps are not compared: see :mod:`.rates`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks import runs
from amp_migrate.verify.checks.averages import made_anew, on_average
from amp_migrate.verify.checks.averages import ratio as ratio_of
from amp_migrate.verify.checks.band import deviation, own_distance
from amp_migrate.verify.checks.common import (
    Traces,
    at,
    first_rank,
    keeps_its_own,
    pair,
    percent,
    relative,
    together,
)
from amp_migrate.verify.checks.loaders import training_loaders
from amp_migrate.verify.checks.pairing import mean_losses, same_samples
from amp_migrate.verify.checks.sums import trains_alike
from amp_migrate.verify.evidence import Check, Verdict
from amp_migrate.verify.plan import ORIGINAL, ORIGINAL_MERGED, Asked
from amp_migrate.verify.traces import Backward, RankTrace, Update

ID = "one-process"

_FIRST = 1e-4
_EARLY, _EARLY_UPDATES = 1e-3, 3
_FACTOR = 0.15
"""How near a ratio has to be to N, of numbers that only agree on average."""
_SOME = 10

T = TypeVar("T")


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare the processes with the original on the same samples."""
    ranks, original = together(traces), first_rank(traces, ORIGINAL)
    if not ranks or original is None or keeps_its_own(traces, asked):
        return
    title = f"{len(ranks)} processes train as one with the {len(ranks)}-fold batch"
    merged = first_rank(traces, ORIGINAL_MERGED)
    if merged is None:
        trace = traces.get(ORIGINAL_MERGED)
        why = "the samples that the processes read are not known" if trace is None else runs.reason(trace)
        why = f"the original could not be run on the same samples in one process: {why}"
        mean = mean_losses(ranks)
        losses, updates = _pairs(mean, original.backwards), _pairs(ranks[0].updates, original.updates)
        verdict, message = on_average(losses, updates, why)
        yield Check(ID, title, verdict, message)
        return
    if own_distance(traces) > _FIRST:
        message = "Equal losses cannot be expected: the original is not reproducible from run to run."
        yield Check(ID, title, "unproved", message)
        return
    verdict, message = _Comparison(ranks, merged, original, asked.tolerance).judge()
    yield Check(ID, title, verdict, message)


Judgement = tuple[Verdict, str]


@dataclass
class _Comparison:
    """The processes beside one that sees the same samples."""

    ranks: Sequence[RankTrace]
    merged: RankTrace
    original: RankTrace
    tolerance: float

    def __post_init__(self) -> None:
        self.processes = len(self.ranks)
        self.mean = mean_losses(self.ranks)
        self.steps = min(same_samples(self.ranks, self.merged), len(self.mean), len(self.merged.backwards))
        self.losses = list(zip(self.mean[: self.steps], self.merged.backwards[: self.steps], strict=True))
        # An update rests on the steps before it.
        self.updates = [
            (update, other)
            for update, other in zip(self.ranks[0].updates, self.merged.updates, strict=False)
            if update.after == other.after <= self.steps
        ]
        self._end_at(made_anew(self.merged.updates))

    def _end_at(self, step: int | None) -> None:
        """Compare no further than the losses of so many steps, and what they lead to."""
        if step is not None:
            self.losses = self.losses[:step]
            self.steps = len(self.losses)
            self.updates = [updates for updates in self.updates if updates[0].after <= step]

    def judge(self) -> Judgement:
        """What the steps say that can be compared."""
        if not self.steps:
            return "unproved", "The run in one process does not see the same samples in the first step."
        lr = self._learning_rate()
        if lr is not None:
            return lr
        inexact = self._inexact()
        if inexact:
            return self._factor() or on_average(self.losses, self.updates, inexact)
        return self._first_losses() or self._first_gradients() or self._rest()

    # ---- what keeps losses from being equal ------------------------------------------------------------------

    def _inexact(self) -> str:
        """Why the losses cannot be equal to rounding; empty if they can."""
        if any(step.random or other.random for step, other in self.losses):
            return "the training draws random numbers in its steps, such as for dropout"
        loaders = training_loaders(self.merged)
        drawn = {batch.random for batch in self.merged.batches if batch.loader in loaders}
        if True in drawn:
            return "the dataset draws random numbers for its samples"
        if self._has_own_batch_norm:
            return "batch norm is not synchronised"
        if None in drawn and relative(self.losses[0][0].loss, self.losses[0][1].loss) > _FIRST:
            return "the workers of a loader may draw random numbers for the samples"
        return ""

    @property
    def _has_own_batch_norm(self) -> bool:
        return any("batch_norm" in rank.events for rank in self.ranks)

    def _agree(self, step: Backward, other: Backward, bound: float) -> bool:
        size = max(abs(step.loss), abs(other.loss), self._typical)
        return step.loss == other.loss or abs(step.loss - other.loss) <= bound * size

    @property
    def _typical(self) -> float:
        return statistics.fmean(abs(other.loss) for _, other in self.losses)

    # ---- factors of N ----------------------------------------------------------------------------------------

    def _factor(self) -> Judgement | None:
        """Factors of N between numbers that agree on average only."""
        first = self.losses[: max(3, self.steps // 5)]
        if self._is_inverse(ratio_of([step.loss for step, _ in first], [other.loss for _, other in first]), _FACTOR):
            return self._divided(_FACTOR)
        pairs = self.updates[:5]
        ratio = ratio_of([update.norm for update, _ in pairs], [other.norm for _, other in pairs])
        # Batch norm over fewer samples has other gradients.
        if ratio and relative(ratio, self.processes) <= _FACTOR and not self._has_own_batch_norm:
            return "disproved", self._summed(ratio)
        return None

    def _is_inverse(self, ratio: float, bound: float) -> bool:
        return bool(ratio) and relative(1 / ratio, self.processes) <= bound

    def _divided(self, bound: float) -> Judgement:
        """The losses are 1/N of those of one process: either they are sums over samples, or they are divided by N."""
        count = max(3, self.steps // 5)
        own = [step.loss for step in self.mean[:count]]
        alone = [step.loss for step in self.original.backwards[:count]]
        ratio = ratio_of(own, alone)
        if ratio and self._is_inverse(ratio, 2 * _FACTOR):
            message = (
                f"Each process's loss is 1/{self.processes} of the original's ({at(self.mean[0])}). It is divided by "
                "the number of processes, and DDP averages the gradients besides: leave the division out."
            )
            return "disproved", message
        if ratio and relative(ratio, 1.0) <= 2 * _FACTOR:
            return self._sum()
        one, other = pair(self.losses[0][0].loss, self.losses[0][1].loss)
        return "unproved", f"The loss of the first step is {one}, in one process {other}, and why is not clear."

    def _sum(self) -> Judgement:
        """The losses are sums over samples, which their optimizers may or may not mind."""
        message = (
            f"The loss is a sum over the samples ({at(self.mean[0])}): averaged over {self.processes} processes its "
            f"gradients are 1/{self.processes} of those of one process with the whole batch"
        )
        allowed = self.tolerance, bool(self._inexact())
        if alike := trains_alike(self.losses, self.updates, self.processes, allowed):
            return "proved", f"{message}. {alike}"
        return "unproved", f"{message}, and later steps differ. Take the mean, or adapt the learning rate."

    def _made_up_for(self) -> Judgement | None:
        """Whether losses are sums over samples, and gradients are divided by as much before the optimizer steps."""
        steps = [
            (update.norm, other.norm) for update, other in self.updates if update.after <= self.updates[0][0].after
        ]
        clipped = len({round(update.norm, 3) for update, _ in self.updates[:_SOME]}) < 2
        if clipped or not steps or any(relative(mine, one) > _EARLY for mine, one in steps):
            return None
        message = (
            f"The losses of the processes are sums over their samples ({at(self.mean[0])}), and the gradients that the "
            "first optimizer step sees are those of one process on the same samples."
        )
        return "proved", message

    def _summed(self, ratio: float) -> str:
        return (
            f"The gradients of the first optimizer steps are {ratio:.3g} times those of one process on the same "
            "samples: they are summed over the processes. Average them, or divide by the number of processes."
        )

    # ---- step by step ----------------------------------------------------------------------------------------

    def _first_losses(self) -> Judgement | None:
        """The losses before the first optimizer step changes anything."""
        end = self.updates[0][0].after if self.updates else self.steps
        for number, (step, other) in enumerate(self.losses[: max(1, end)]):
            if relative(step.loss, other.loss) <= _FIRST:
                continue
            ratio = ratio_of([step.loss], [other.loss])
            if self._is_inverse(ratio, _EARLY):
                return self._made_up_for() or self._divided(_EARLY)
            mine, one = pair(step.loss, other.loss)
            message = (
                f"On the same samples and weights the mean loss of the processes at step {number + 1} ({at(step)}) is "
                f"{mine}, that of one process {one}."
            )
            if ratio and relative(ratio, self.processes) <= _EARLY:
                return "disproved", f"{message} It is multiplied by the number of processes: leave that out."
            why = "weighted or padded by batch, or compares the samples of a batch"
            return "unproved", f"{message} Equal losses cannot be expected of a loss that is {why}."
        return None

    def _first_gradients(self) -> Judgement | None:
        """The gradients that the first optimizer step sees."""
        if not self.updates:
            return "unproved", "No optimizer step was seen, so its gradients cannot be compared."
        update, other = self.updates[0]
        if relative(update.norm, other.norm) <= _EARLY:
            return None
        ratio = ratio_of([update.norm], [other.norm])
        if ratio and relative(ratio, self.processes) <= _EARLY:
            return "disproved", self._summed(ratio)
        mine, one = pair(update.norm, other.norm)
        message = (
            f"On the same samples and weights the losses agree, and the gradients of the first optimizer step have the "
            f"norm {mine}, in one process {one}."
        )
        if self._is_inverse(ratio, _EARLY):
            return "disproved", f"{message} They are divided by the number of processes besides DDP's averaging."
        if len({rank.updates[0].norm for rank in self.ranks if rank.updates}) == 1:
            # Losses agree by chance where they are the same for all samples, as behind a layer of zeros.
            why = "weights or pads by batch, or compares the samples of a batch"
            return "unproved", f"{message} They are averaged, and equal ones cannot be expected of a loss that {why}."
        return "disproved", f"{message} They are not averaged over the processes: wrap the model by amp.prepare_model."

    def _rest(self) -> Judgement:
        """All later steps, as far as the samples are the same."""
        found = deviation([other for _, other in self.losses], [step for step, _ in self.losses])
        if found is None:
            return "unproved", "The losses are not finite, so there is nothing to compare."
        first = relative(self.losses[0][0].loss, self.losses[0][1].loss)
        over = f"{plural(self.steps, 'step')} on the same samples"
        message = (
            f"Over {over} the losses differ by {percent(found.size)}, in the first step by {first:.1g} of their size."
        )
        apart = self._early()
        if found.leaves(self.tolerance):
            allowed = f"{percent(self.tolerance)} are allowed (--tolerance)"
            return "disproved", f"{message} {allowed}.{apart} Look at the optimizer's options and at the schedule."
        if apart:
            return (
                "unproved",
                f"{message}{apart} Either the optimizer steps otherwise, or the loss weights the samples.",
            )
        if found.size > self.tolerance:
            return "unproved", f"{message} They scatter by {percent(found.farthest.scatter)}, so this says nothing."
        return "proved", message

    def _early(self) -> str:
        """The first of the early steps whose loss is another one; empty without any."""
        done = 0
        for number, (step, other) in enumerate(self.losses):
            while done < len(self.updates) and self.updates[done][0].after <= number:
                done += 1
            if done <= _EARLY_UPDATES and not self._agree(step, other, _EARLY):
                mine, one = pair(step.loss, other.loss)
                return f" At step {number + 1} ({at(step)}) the loss is {mine}, in one process {one}."
        return ""

    def _learning_rate(self) -> Judgement | None:
        """Whether the optimizers step with other learning rates, which no loss could make up for."""
        rates = [(mine.lr, one.lr) for mine, one in self.updates if mine.lr and one.lr]
        different = [(mine, one) for mine, one in rates if relative(mine, one) > 1e-6]
        if not different:
            return None
        mine, one = different[0]
        message = f"The learning rate is {mine:g}, in one process {one:g}."
        if len(different) == len(rates) and _is_constant(rates):
            after = self.updates[0][0]
            return "disproved", f"{message} {self._scaled(mine, one, after)}"
        # A schedule over the samples seen, which is a check of its own. Until it takes effect steps can be compared.
        end = next(update.after for update, other in self.updates if (update.lr, other.lr) == (mine, one))
        self._end_at(end)
        return None

    def _scaled(self, mine: float, one: float, first: Update) -> str:
        where = at(self.mean[max(0, first.after - 1)])
        by = "multiplied by the number of processes" if relative(mine / one, self.processes) < 1e-6 else "changed"
        return f"For the optimizer that steps after {where} it is {by}, so {self.processes} processes train otherwise."


def _pairs(mine: Sequence[T], others: Sequence[T]) -> list[tuple[T, T]]:
    return list(zip(mine, others, strict=False))


def _is_constant(rates: Sequence[tuple[float | None, float | None]]) -> bool:
    return len(set(rates)) == 1
