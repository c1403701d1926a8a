"""Runs of a verification in processes forked from one that all tests share, so that torch is imported once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amp_migrate.verify.processes import Outcome, Rank, Starter, run_together

PLENTY = 2**40


class Forked:
    """Makes runs, one after the other."""

    def __init__(self, starter: Starter) -> None:
        self._starter = starter

    def run_together(
        self, ranks: Sequence[Rank], cwd: Path, *, memory: int, starter: Starter | None = None, **bounds: Any
    ) -> Outcome:
        """In place of :func:`amp_migrate.verify.processes.run_together`; no memory stands for no bound."""
        return run_together(ranks, cwd, starter=self._starter, memory=memory or PLENTY, **bounds)
