"""What is seen of a run while it is made: how far it has come, and whether it comes any farther."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

_LOOK = 0.2


@dataclass(frozen=True)
class Going:
    """How far a run has come.

    Attributes:
        seconds: since it began.
        made: backward calls that every process has begun.
        of: how many there will be; None where nobody knows yet.
        left: about how many seconds it still takes; None where nobody knows.
        later: about how many seconds the runs after it take; None where nobody knows.
    """

    seconds: float
    made: int = 0
    of: int | None = None
    left: float | None = None
    later: float | None = None


@dataclass
class Watch:
    """Looks at what the recorder counts.

    Attributes:
        record: the folder that it writes to.
        patience: so many seconds without a step are no step any more; None for no bound.
    """

    record: Path
    patience: float | None = None
    made: int = field(default=0, init=False)
    _looked: float = field(default=0.0, init=False)
    _counts: dict[str, int] = field(default_factory=dict, init=False)
    _went_on: float = field(default=0.0, init=False)

    def look(self, seconds: float) -> bool:
        """Look, if that is not long ago; whether there was a look."""
        if 0 < seconds - self._looked < _LOOK:
            return False
        self._looked = seconds
        counts = {path.name: _count(path) for path in self.record.glob("steps*-*")}
        if counts != self._counts:
            self._counts, self._went_on = counts, seconds
            self.made = min(counts.values())
        return True

    def is_stuck(self, seconds: float) -> bool:
        """Whether no process has begun a step for too long, by the last look."""
        return self.patience is not None and seconds - self._went_on > self.patience


def _count(path: Path) -> int:
    try:
        return int(path.read_bytes() or b"0")
    except (OSError, ValueError):
        return 0
