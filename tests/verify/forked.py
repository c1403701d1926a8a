"""Runs of a verification in processes forked off one that has imported torch, which is what takes their time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from amp_migrate.verify.processes import Outcome, Rank
from warm import Start, Warm


class Forked:
    """Makes runs, one after the other."""

    def __init__(self, warm: Warm) -> None:
        self._warm = warm

    def run_together(
        self,
        ranks: Sequence[Rank],
        cwd: Path,
        *,
        timeout: float,
        memory: int,
        tick: Callable[[float], None] = lambda seconds: None,
    ) -> Outcome:
        """In place of :func:`amp_migrate.verify.processes.run_together`; the memory is not bounded."""
        began = time.monotonic()
        ended = self._warm.run(
            [Start(rank.command[1:], rank.environment, rank.stdout, rank.stderr) for rank in ranks],
            cwd,
            seconds=timeout,
        )
        how = "ended" if ended.in_time else "timeout"
        return Outcome(how, ended.statuses, ended.order, ended.pids, time.monotonic() - began)
