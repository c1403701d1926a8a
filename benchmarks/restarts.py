"""Workers that are killed at random: what a run under ``torchrun --max-restarts`` loses, and how it ends.

``python benchmarks/restarts.py`` trains once undisturbed, and then several times while SIGKILL hits a random worker of
the two after random steps. Each run has to end with the losses, samples, weights and optimizer state of the undisturbed
one, bit for bit, and may repeat only what came after its last checkpoint. It prints a table; its exit status is 1 where
a run does not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import restarted
import torch
from processes import cpu_model

SECONDS = 300
SCRIPT = Path(__file__).with_name("restarted.py")


@dataclass
class Kill:
    """A worker that is killed after a step: some of the ``delay`` until the next one has gone by."""

    rank: int
    step: int
    delay: float


@dataclass
class Start:
    """What a process wrote: the checkpoint that it went on from, its steps by number, and the numbers as they came."""

    process: int
    after: int
    steps: dict[int, Any] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)


def starts(folder: Path, rank: int) -> list[Start]:
    """What the processes of a rank wrote so far."""
    found: list[Start] = []
    path = folder / f"rank{rank}.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        values = json.loads(line)
        if "process" in values:
            found.append(Start(values["process"], values["after"]))
        else:
            found[-1].numbers.append(values.pop("step"))
            found[-1].steps[found[-1].numbers[-1]] = values
    return found


def train(folder: Path, kills: list[Kill]) -> float | None:
    """Trains in a new folder; how many seconds it took, or nothing where it was over before the last kill."""
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(restarted.RANKS)]
    begun = time.monotonic()
    with open(folder / "stderr", "w", encoding="utf-8") as errors:
        agent = subprocess.Popen(
            [*command, "--max-restarts", str(len(kills)), str(SCRIPT), str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        try:
            done = [_kill(folder, kill, number, agent) for number, kill in enumerate(kills)]
            status = agent.wait(SECONDS)
        finally:
            agent.terminate()  # ends its workers as well
    if status:
        raise SystemExit(f"{' '.join(agent.args)} failed:\n{(folder / 'stderr').read_text()[-4000:]}")  # type: ignore[arg-type]
    return time.monotonic() - begun if all(done) else None


def _kill(folder: Path, kill: Kill, restarts: int, agent: subprocess.Popen[bytes]) -> bool:
    """Waits for the step, and kills the worker; whether it was still there."""
    deadline = time.monotonic() + SECONDS
    while agent.poll() is None and time.monotonic() < deadline:
        found = starts(folder, kill.rank)
        if len(found) > restarts and kill.step in found[restarts].steps:
            time.sleep(kill.delay)
            if len(starts(folder, kill.rank)[restarts].steps) + found[restarts].after == restarted.STEPS:
                return False
            os.kill(found[restarts].process, signal.SIGKILL)
            return True
        time.sleep(0.002)
    return False


def wrong(folder: Path, quiet: Path) -> str:
    """What of a run is not as it has to be; empty if all is."""
    for rank in range(restarted.RANKS):
        made: dict[int, Any] = {}
        for start in starts(folder, rank):
            if start.numbers != list(range(start.after + 1, start.after + 1 + len(start.numbers))):
                return f"rank {rank} left out a step after {start.after}, or made one twice"
            if not 0 <= max(made, default=0) - start.after <= restarted.EVERY:
                return f"rank {rank} had made {max(made)} steps, and went on after {start.after}"
            made |= start.steps
        if made != starts(quiet, rank)[0].steps:
            return f"rank {rank} has other samples or losses"
    for epoch in range(restarted.EPOCHS):
        if counted(folder, epoch) != list(range(restarted.SAMPLES)):
            return f"epoch {epoch} does not have each sample once"
    states = [torch.load(path / "end.pt", weights_only=True) for path in (folder, quiet)]
    return "" if same(*states) else "other weights, or another state"


def counted(folder: Path, epoch: int) -> list[int]:
    """The samples of an epoch on all ranks, without what was thrown away, in order."""
    numbers = []
    for rank in range(restarted.RANKS):
        made: dict[int, Any] = {}
        for start in starts(folder, rank):
            made = {number: step for number, step in made.items() if number <= start.after} | start.steps
        numbers += [number for step in made.values() if step["epoch"] == epoch for number in step["samples"]]
    return sorted(numbers)


def same(one: Any, other: Any) -> bool:
    """Whether two states are the same bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def row(folder: Path, number: int, kills: list[Kill], seconds: float, problem: str) -> str:
    """A line of the table."""
    again = []
    for kill, before, after in zip(kills, starts(folder, 0), starts(folder, 0)[1:], strict=False):
        last = max(before.steps, default=before.after)
        again.append((f"rank {kill.rank} after {kill.step}", str(after.after), str(last - after.after)))
    cells = [", ".join(column) for column in zip(*again, strict=True)]
    return f"| {number} | {' | '.join(cells)} | {problem or 'the same'} | {seconds:.0f} |"


def drawn(generator: random.Random, count: int) -> list[Kill]:
    """Workers to kill, one after another, at any step but the last ones: the worker has to be alive."""
    steps = sorted(generator.sample(range(1, restarted.STEPS - 5), count))
    return [Kill(generator.randrange(restarted.RANKS), step, generator.uniform(0, restarted.PAUSE)) for step in steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="how many workers are killed in all")
    parser.add_argument("--each", type=int, default=2, help="how many of them in one run, at most")
    parser.add_argument("--seed", type=int, default=0, help="for the steps and the workers")
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)
    print(f"- {time.strftime('%Y-%m-%d')}, {cpu_model()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"- torch {torch.__version__}, Python {sys.version.split()[0]}; seed {arguments.seed}")
    print(f"- {restarted.STEPS} steps, a checkpoint every {restarted.EVERY}, {restarted.RANKS} ranks\n")
    print("| run | killed | went on after | steps made again | losses, samples, final state | seconds |")
    print("| ---: | --- | --- | --- | --- | ---: |", flush=True)
    left, number, problems = arguments.kills, 0, 0
    with tempfile.TemporaryDirectory() as base:
        quiet = Path(base, "quiet")
        train(quiet, [])
        while left:
            number += 1
            kills, folder = drawn(generator, min(left, arguments.each)), Path(base, str(number))
            seconds = train(folder, kills)
            if seconds is None:
                continue  # this machine was too busy to kill in time
            problem = wrong(folder, quiet)
            print(row(folder, number, kills, seconds, problem), flush=True)
            left -= len(kills)
            problems += bool(problem)
    print(f"\n{arguments.kills} workers were killed; {problems} runs ended otherwise than the undisturbed one.")
    raise SystemExit(problems > 0)


if __name__ == "__main__":
    main()
