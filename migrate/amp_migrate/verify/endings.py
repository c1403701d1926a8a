"""How a run ended: by itself, with an error and in which line, or because a bound was reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from amp_migrate.verify import failures, reading
from amp_migrate.verify.copies import CopiedProject
from amp_migrate.verify.failures import Output
from amp_migrate.verify.plan import Planned
from amp_migrate.verify.processes import Outcome, Rank
from amp_migrate.verify.traces import Failure, RankTrace, Status, Trace
from amp_migrate.verify.written_files import Listing, written_files

_END = 8192
_LARGEST_OUTPUT = 2**24


@dataclass(frozen=True)
class Made:
    """A run that is over.

    Attributes:
        planned: what was to be made.
        outcome: how its processes ended.
        ranks: what was started.
        record: what the recorder wrote.
        project: the project.
        copy: the copy of it that was run.
        python: the interpreter.
        steps: the bound in backward calls; None for the end of the script.
        timeout: the bound in seconds.
        memory: the bound in bytes.
        migrated: the files that differ from what the project holds, in a run of the migrated version.
        original: the same for the original.
        half_type: the half type by name; None where it is not known yet.
        before: the files that the copy had.
    """

    planned: Planned
    outcome: Outcome
    ranks: Sequence[Rank]
    record: Path
    project: CopiedProject
    copy: Path
    python: str
    steps: int | None
    timeout: float
    memory: int
    migrated: Mapping[Path, bytes | None]
    original: Mapping[Path, bytes | None]
    half_type: str | None = None
    before: Listing = field(default_factory=dict)

    def trace(self) -> Trace:
        """What it left behind."""
        outputs = [
            Output(rank.stderr.read_text(encoding="utf-8", errors="replace"), status, _end_of(rank.stdout))
            for rank, status in zip(self.ranks, self.outcome.statuses, strict=True)
        ]
        traces = reading.read_ranks(self.record, self.outcome.processes)
        status, failure = self._ending(outputs, traces)
        steps = self.steps
        if status == "ended" and reading.was_stopped(self.record):
            # It may have been a time that was up, which came to this number.
            status, steps = "stopped", max(len(trace.backwards) for trace in traces)
        return Trace(
            name=self.planned.name,
            level=self.planned.level,
            processes=self.planned.processes,
            status=status,
            ranks=traces,
            failure=failure,
            batch_factor=self.planned.batch_factor,
            loss_scale=self.planned.loss_scale,
            half_type=self.half_type,
            allowed_seconds=self.timeout,
            allowed_memory=self.memory,
            seconds=self.outcome.seconds,
            idle=self.outcome.idle,
            steps=steps,
            printed=tuple(map(self._printed, self.ranks)),
            files=written_files(self.copy, self.before),
            folder=self.record.parent,
        )

    def _printed(self, rank: Rank) -> str:
        """What one process printed, with the user's own folder in place of the copy."""
        text = rank.stdout.read_bytes()[:_LARGEST_OUTPUT].decode("utf-8", "replace")
        return text.replace(str(self.copy), str(self.project.root))

    def _ending(self, outputs: Sequence[Output], traces: Sequence[RankTrace]) -> tuple[Status, Failure | None]:
        outcome = self.outcome
        steps = min((len(trace.backwards) for trace in traces), default=0)
        last = "\n".join(outputs[0].stderr.splitlines()[-20:])
        if outcome.how == "timeout":
            return "timeout", failures.out_of_time(self.timeout, steps, last)
        if outcome.how == "stuck":
            return "timeout", failures.stuck(steps, last)
        if outcome.how == "memory":
            return "memory", failures.out_of_memory(self.memory, last)
        recorded = reading.got_through(self.record)
        if not all(failures.ended_well(output, recorded=recorded) for output in outputs):
            if outcome.how == "apart" and all(output.status in (0, None) for output in outputs):
                return "failed", failures.apart(outcome.order[0], last)
            cause = failures.first_cause(outputs, outcome.order)
            return "failed", failures.failure_of(cause, self.project, self.copy, self.python, self._before)
        if steps == 0:
            return "failed", failures.no_backward(outputs[0], self.project, self.copy)
        return "ended", None

    def _before(self, path: Path) -> str | None:
        """The text that a file had before it was migrated; None for one that was not, or not in this run."""
        if not self.planned.migrated or path not in self.migrated:
            return None
        data = self.original.get(path)
        try:
            return (path.read_bytes() if data is None else data).decode("utf-8", "replace")
        except OSError:
            return ""


def _end_of(path: Path) -> str:
    """The end of a text file that may be large."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _END))
        return file.read().decode("utf-8", "replace")
