"""What is done with each file of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar


class FileOutcome(Protocol):
    """What comes of one file."""

    @property
    def path(self) -> Path: ...  # noqa: D102


Result = TypeVar("Result", bound=FileOutcome)
Made = TypeVar("Made", bound=FileOutcome, covariant=True)


class Job(Protocol[Made]):
    """What is done with each file; to be pickled where processes are not forked.

    Attributes:
        timeout: seconds by the clock that a file may take; 0 for no bound.
        parallel_from: fewer files are done before the processes would have started.
        longest_run: so many files at most are given to a process at a time.
    """

    @property
    def timeout(self) -> float: ...  # noqa: D102
    @property
    def parallel_from(self) -> int: ...  # noqa: D102
    @property
    def longest_run(self) -> int: ...  # noqa: D102

    def start(self) -> Callable[[Path], Made]:
        """Get ready in a process, and return what deals with one file."""
        ...

    def lost(self, path: Path, reason: str) -> Made:
        """Return the result for a file that cost a process its life."""
        ...
