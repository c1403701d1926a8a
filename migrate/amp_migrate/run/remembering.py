"""One result a file, for both commands: what an earlier run found, or what the analysis gives now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from amp_migrate.problems import Problem
from amp_migrate.run.job import Job, Result
from amp_migrate.run.timelimit import TookTooLongError, time_limit


class ResultCache(Protocol[Result]):
    """Results that are kept between runs."""

    def lookup(self, path: Path) -> Result | None:
        """Return the result of a file if it still holds."""
        ...

    def store(self, result: Result) -> None:
        """Remember a result."""
        ...

    def save(self) -> None:
        """Write what is new."""
        ...


def results_of(
    paths: Sequence[Path],
    job: Callable[[], Job[Result]],
    cache: ResultCache[Result] | None,
    jobs: int,
    advance: Callable[[Path], None] = lambda path: None,
) -> tuple[dict[Path, Result], int]:
    """Return the result of each file, and the number of those that the cache knew.

    Args:
        paths: the files; those that lie together are best named together.
        job: makes what is done with files that the cache does not know. It is not called where it knows all: loading
            the rules takes longer than looking up a few hundred files.
        cache: what earlier runs found.
        jobs: number of processes; 0 for one a core.
        advance: called for each file.
    """
    found: dict[Path, Result] = {}
    missing: list[Path] = []
    for path in paths:
        known = cache.lookup(path) if cache is not None else None
        if known is None:
            missing.append(path)
        else:
            found[path] = known
            advance(path)
    if missing:
        from amp_migrate.run.workers import run_all

        try:
            for result in run_all(missing, job(), jobs, advance):
                found[result.path] = result
                if cache is not None:
                    cache.store(result)
        finally:
            if cache is not None:
                # Also what was found before an interruption.
                cache.save()
    return found, len(paths) - len(missing)


def guarded(
    path: Path, timeout: float, outcome: str, work: Callable[[], Result], failed: Callable[[Problem, bool], Result]
) -> Result:
    """Return what ``work`` gives for a file; whatever the file holds, the others go on.

    Args:
        path: the file.
        timeout: seconds for it; 0 for no bound.
        outcome: what becomes of a file that is given up, as in "skipped".
        work: analyses the file.
        failed: makes the result for a file that was given up, of the problem and of whether it would come up again.
    """
    try:
        with time_limit(timeout):
            return work()
    except TookTooLongError:
        message = f"analysis took longer than {timeout:g} s; {outcome} (--timeout allows more)"
        return failed(Problem(path, message), False)
    except Exception as error:
        problem = Problem.from_exception(path, error, f"the file was {outcome}")
        return failed(problem, not isinstance(error, MemoryError))
