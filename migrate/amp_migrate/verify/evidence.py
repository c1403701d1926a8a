"""What a verification found, as data: what is printed, written as JSON, and drawn in a report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal

Verdict = Literal["proved", "disproved", "unproved"]
"""``unproved``: nothing speaks against it, and it could not be shown."""

IN_WORDS: Mapping[Verdict, str] = MappingProxyType(
    {"proved": "proved", "disproved": "disproved", "unproved": "not proved"}
)
"""What people read for each verdict, everywhere."""

VERSION = 1
# What earlier versions of this program wrote of a run, and the next run contradicted.
_GONE = ("steps_per_second",)


@dataclass(frozen=True)
class Check:
    """One statement about the migrated script, and whether it held.

    Attributes:
        id: a stable name, such as ``o0-exact``; the documentation has a heading for it.
        title: the statement in a few words: "O0 gives exactly the original's losses".
        verdict: whether it held.
        message: one or two sentences with the numbers that it rests on, and what to do where it did not hold.
    """

    id: str
    title: str
    verdict: Verdict
    message: str


@dataclass(frozen=True)
class Measured:
    """One run, as a report shows it.

    Attributes:
        name: "original", "O0", "O1", "O2", "O0, 2 processes" and so on.
        level: None for the original.
        processes: how many ran together.
        status: how it ended, see :data:`amp_migrate.verify.traces.Status`.
        losses: at each backward call, the mean over the ranks; a loss that is not finite is None.
        scales: the loss scale at each; empty where none was used.
        skipped: steps that the scaler skipped.
        peak_memory: bytes of the largest process; None if unknown.
        error: why it failed, with file and line; None if it did.
        sites: which of the script's backward calls each loss is of, from 0; empty where there is but one.
        deviation: how far its smoothed losses are from the original's at most, relative; None where they were not
            compared.
        steps_bound: the number of backward calls after which it was to end; None for the end of the script.
    """

    name: str
    level: str | None
    processes: int
    status: str
    losses: tuple[float | None, ...] = ()
    scales: tuple[float, ...] = ()
    skipped: int = 0
    peak_memory: int | None = None
    error: str | None = None
    sites: tuple[int, ...] = ()
    deviation: float | None = None
    steps_bound: int | None = None


@dataclass(frozen=True)
class Speed:
    """How fast one run was beside another, from pairs of warm steps that were made under the same conditions.

    Attributes:
        run: the name of the run.
        beside: the name of the run that it is compared with.
        factor: the median over the pairs; above 1 ``run`` is the faster one.
        low: the lower end of its spread.
        high: the upper end.
        pairs: how many there are.
    """

    run: str
    beside: str
    factor: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True)
class Evidence:
    """The result of one verification.

    Attributes:
        script: the entry script, as the user named it.
        arguments: what it was started with.
        verdict: disproved if one check is; proved if the exact one at O0 is there and every check holds.
        summary: one sentence; what is open comes first.
        checks: in the order in which they are to be read.
        runs: in the order in which they were made.
        steps: backward calls asked for.
        tolerance: half the width of the band that lossy levels must stay in, relative.
        device: "cpu" or the GPU's name.
        versions: of ``amp-migrate``, ``python`` and ``torch``.
        notes: what a reader has to know besides.
        reach: one sentence on what ran, beyond which nothing is said: steps, data, device, levels and types, processes.
        speeds: those that may be said: none where the spread is larger than the difference.
        target: what the migrated version is made of: ``"runtime"`` or ``"torch"``; empty where it was made by hand.
    """

    script: str
    arguments: tuple[str, ...]
    verdict: Verdict
    summary: str
    checks: tuple[Check, ...]
    runs: tuple[Measured, ...]
    steps: int
    tolerance: float
    device: str
    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()
    reach: str = ""
    speeds: tuple[Speed, ...] = ()
    target: str = ""

    def to_json(self) -> str:
        """The evidence as JSON, version 1 of a format that only grows."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=2, allow_nan=False) + "\n"


def from_json(text: str) -> Evidence:
    """Read what :meth:`Evidence.to_json` wrote.

    Raises:
        ValueError: it is something else, or of a later version.
    """
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"this is no evidence of version {VERSION}, as `amp-migrate verify --format json` prints it")
    try:
        return _evidence(document)
    except (KeyError, TypeError) as error:
        raise ValueError(f"this evidence is damaged: {error}") from error


def _evidence(document: dict[str, Any]) -> Evidence:
    values = {key: value for key, value in document.items() if key != "version"}
    tuples = ("arguments", "notes")
    values |= {key: tuple(values[key]) for key in tuples}
    values["checks"] = tuple(Check(**item) for item in values["checks"])
    values["runs"] = tuple(map(_measured, values["runs"]))
    # What an earlier version of this program wrote is without these.
    values["speeds"] = tuple(Speed(**item) for item in values.get("speeds", ()))
    return Evidence(**values)


def _measured(item: dict[str, Any]) -> Measured:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in item.items() if key not in _GONE
    }
    return Measured(**values)


def finite(value: float) -> float | None:
    """The number, or None where JSON has no word for it."""
    return value if math.isfinite(value) else None
