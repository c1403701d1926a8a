"""The runs of a verification as numbers that can be set beside each other."""

from __future__ import annotations

from dataclasses import dataclass

from amp_migrate.report.text import mebibytes, number, per_second
from amp_migrate.verify.checks.common import percent
from amp_migrate.verify.evidence import Evidence, Measured
from amp_migrate.verify.plan import O0, ORIGINAL

_WORDS = {
    "ended": "ended",
    "stopped": "stopped after the steps",
    "failed": "failed",
    "timeout": "took too long",
    "memory": "took too much memory",
}


@dataclass(frozen=True)
class RunRow:
    """One run in words, and as numbers for a drawing.

    Attributes:
        key: its colour's name.
        drawn: whether it is drawn; control runs, which repeat others, are in the tables only.
        speed_ratio: steps per second over the original's.
        memory_ratio: peak memory over the original's.
    """

    run: Measured
    key: str
    drawn: bool
    status: str
    steps: int
    first: str
    last: str
    deviation: str
    speed: str
    speed_ratio: float | None
    memory: str
    memory_ratio: float | None
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
    """

    rows: tuple[RunRow, ...]
    compared: int

    @property
    def drawn(self) -> list[RunRow]:
        """The runs that are drawn."""
        return [row for row in self.rows if row.drawn]

    @property
    def levels(self) -> list[RunRow]:
        """The runs of the migrated script in one process that compute in half."""
        return [row for row in self.rows if row.drawn and row.run.level not in (None, O0) and row.run.processes == 1]


def measures(evidence: Evidence) -> Measures:
    """Set the runs of a verification beside its original."""
    named = {run.name: run for run in evidence.runs}
    original = named.get(ORIGINAL)
    both = [len(named[name].losses) for name in (ORIGINAL, O0) if name in named]
    return Measures(tuple(_row(run, original) for run in evidence.runs), min(both) if len(both) == 2 else 0)


def ratio(value: float) -> str:
    """Return a factor: "1.84×"."""
    return f"{value:.2f}×"


def _row(run: Measured, original: Measured | None) -> RunRow:
    finite = [loss for loss in run.losses if loss is not None]
    return RunRow(
        run=run,
        key=_key(run),
        drawn=bool(finite) and _is_subject(run),
        status=_WORDS.get(run.status, run.status),
        steps=len(run.losses),
        first=number(run.losses[0]) if run.losses else "–",
        last=number(run.losses[-1]) if run.losses else "–",
        deviation="–" if run.deviation is None else percent(run.deviation),
        speed=per_second(run.steps_per_second),
        speed_ratio=_ratio(run.steps_per_second, original.steps_per_second if original else None),
        memory=mebibytes(run.peak_memory),
        memory_ratio=_ratio(run.peak_memory, original.peak_memory if original else None),
        scale=f"{run.scales[-1]:g}" if run.scales else "–",
    )


def _is_subject(run: Measured) -> bool:
    """Whether a run is of what is compared; the others are controls."""
    return run.name in (ORIGINAL, run.level) or (run.level is not None and run.processes > 1)


def _key(run: Measured) -> str:
    if run.processes > 1:
        return "together"
    return "original" if run.level is None else run.level.lower()


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None
