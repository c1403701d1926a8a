"""The runs of a verification as numbers that can be set beside each other."""

from __future__ import annotations

from dataclasses import dataclass

from amp_migrate.report.text import number
from amp_migrate.verify.checks.common import percent
from amp_migrate.verify.evidence import Evidence, Measured
from amp_migrate.verify.plan import O0, ORIGINAL, RUNS
from amp_migrate.verify.words import VARIES, is_counted, memory_in_words, repeats, until


@dataclass(frozen=True)
class RunRow:
    """One run in words.

    Attributes:
        key: its colour's name.
        drawn: whether it is drawn; control runs, which repeat others, are in the tables only.
        purpose: what it is made for; empty where that is not known.
        until: how far it went, and what its bound was.
        steps: how many losses it has.
        count: the same in words.
        first: its first loss.
        last: its last loss.
        deviation: how far its losses are from the original's at most.
        memory: the peak of a GPU's allocator; empty on a CPU.
        scale: its last loss scale.
    """

    run: Measured
    key: str
    drawn: bool
    purpose: str
    until: str
    steps: int
    count: str
    first: str
    last: str
    deviation: str
    memory: str
    scale: str

    def loss(self, index: int) -> str:
        """The loss of a step in words."""
        return number(self.run.losses[index]) if index < self.steps else ""


@dataclass(frozen=True)
class Measures:
    """All runs.

    Attributes:
        rows: in the order in which they were made.
        compared: number of steps that O0 and the original both made.
        repeats: whether a second verification finds the same losses.
    """

    rows: tuple[RunRow, ...]
    compared: int
    repeats: bool = True

    @property
    def drawn(self) -> list[RunRow]:
        """The runs that are drawn."""
        return [row for row in self.rows if row.drawn]

    @property
    def levels(self) -> list[RunRow]:
        """The runs of the migrated script that compute in half and were held against the original."""
        return [row for row in self.rows if row.run.deviation is not None]


def measures(evidence: Evidence) -> Measures:
    """Set the runs of a verification beside its original."""
    named = {run.name: run for run in evidence.runs}
    both = [len(named[name].losses) for name in (ORIGINAL, O0) if name in named]
    rows = tuple(_row(run, evidence) for run in evidence.runs)
    return Measures(rows, min(both) if len(both) == 2 else 0, repeats(evidence))


def _row(run: Measured, evidence: Evidence) -> RunRow:
    finite = [loss for loss in run.losses if loss is not None]
    counted, repeated = is_counted(run), repeats(evidence)
    first, last = (number(run.losses[0]), number(run.losses[-1])) if run.losses else ("–", "–")
    return RunRow(
        run=run,
        key=_key(run),
        drawn=bool(finite) and counted and _is_subject(run),
        purpose=RUNS.get(run.name) or RUNS.get(f"{run.level}, together", ""),
        until=until(run),
        steps=len(run.losses),
        count=str(len(run.losses)) if counted else "–",
        first=first if repeated else VARIES,
        last=(last if counted else "–") if repeated else VARIES,
        deviation="–" if run.deviation is None else percent(run.deviation) if repeated else VARIES,
        memory=memory_in_words(evidence, run),
        scale=f"{run.scales[-1]:g}" if run.scales else "–",
    )


def _is_subject(run: Measured) -> bool:
    """Whether a run is of what is compared; the others are controls."""
    return run.name in (ORIGINAL, run.level) or (run.level is not None and run.processes > 1)


def _key(run: Measured) -> str:
    if run.processes > 1:
        return "together" if run.level in (None, O0) else "o1-together"
    return "original" if run.level is None else run.level.lower()
