"""``amp-migrate verify`` over every script of the fixtures that runs: how many are proved, and what was measured.

    python benchmarks/verify.py [NAME ...] [--steps N] [--results FOLDER] [--missing]
    python benchmarks/verify.py [NAME ...] --cost

NAME chooses the fixtures whose folder holds it. The evidence of each script is written to FOLDER as JSON; with
``--missing`` only scripts without it are run. Prints the tables of ``verify_cpu.md``. With ``--cost`` it prints the
processor's time of each original and of its verification, and what share of that is spent outside of training steps.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_migrate.verify.evidence import IN_WORDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
GROUPS = ("runnable", "projects", "apex")
COMMAND = [str(Path(sys.executable).with_name("amp-migrate")), "verify", "--format", "json"]


@dataclass(frozen=True)
class Subject:
    """One script, and how it is started."""

    group: str
    folder: Path
    entry: str
    arguments: tuple[str, ...]
    module: str | None

    @property
    def name(self) -> str:
        """A name for its file of results."""
        return f"{self.group}-{self.folder.name}-{Path(self.entry).stem}"

    @property
    def command(self) -> list[str]:
        """What is verified, after the options."""
        return [*(["-m"] if self.module else []), self.entry, "--", *self.arguments]


def subjects(names: list[str]) -> Iterator[Subject]:
    """Every script of the fixtures that trains."""
    for group in GROUPS:
        for path in sorted((ROOT / "fixtures" / group).glob("*/expect.toml")):
            stated = tomllib.loads(path.read_text(encoding="utf-8"))
            for entry in stated.get("entries", [stated.get("entry")]):
                own = stated | stated.get(Path(entry).stem, {})
                arguments = own.get("args", own.get("on", []))
                subject = Subject(group, path.parent, entry, tuple(arguments), own.get("module"))
                if not names or any(name in subject.name for name in names):
                    yield subject


def verified(subject: Subject, steps: int | None) -> dict[str, Any]:
    """The evidence for one script, or why there is none."""
    started = time.monotonic()
    command = [*COMMAND, *(["--steps", str(steps)] if steps else []), *subject.command]
    with tempfile.TemporaryDirectory() as place:
        # Out of this repository, so that the folder is a project of its own.
        project = shutil.copytree(subject.folder, Path(place) / subject.folder.name)
        done = subprocess.run(command, cwd=project, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    try:
        result = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        result = {"verdict": "unproved", "summary": lines[-1], "checks": [], "runs": []}
    return result | {"status": done.returncode, "seconds": time.monotonic() - started}


def cost(subject: Subject) -> dict[str, float]:
    """The processor's time that the original takes, and that its verification takes, with what steps take of it."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as place:
        project = shutil.copytree(subject.folder, Path(place) / "project" / subject.folder.name)
        original = shutil.copytree(project, Path(place) / "original")
        start = ["-m", subject.module] if subject.module else [subject.entry]
        alone = taken([sys.executable, *start, *subject.arguments], original, environment)
        kept = Path(place) / "kept"
        command = [*COMMAND, "--keep", str(kept), *subject.command]
        whole = taken(command, project, environment)
        steps = sum(map(in_steps, kept.rglob("rank*-*.jsonl")))
    return {"original": alone, "verification": whole, "steps": steps}


def taken(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    """The seconds of the processor that a command and all that it starts take."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_steps(path: Path) -> float:
    """What one process took from its first backward call to its last, and as much as that for each for the last."""
    facts = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    count = sum("loss" in fact for fact in facts)
    times = next((fact["processor_times"] for fact in facts if "processor_times" in fact), [])
    return (times[-1] - times[0]) * count / (count - 1) if count > 1 else 0.0


def table_of_costs(costs: dict[str, dict[str, float]]) -> str:
    """A line for each script, and one for all together."""
    rows = [
        "| script | original, s | verification, s | times the original | outside of steps |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    sums = {key: sum(found[key] for found in costs.values()) for key in ("original", "verification", "steps")}
    for name, found in [*costs.items(), ("all", sums)]:
        outside = 1 - found["steps"] / found["verification"]
        times = found["verification"] / found["original"]
        rows.append(
            f"| {name} | {found['original']:.1f} | {found['verification']:.1f} | {times:.1f} | {100 * outside:.0f} % |"
        )
    return "\n".join(rows)


def counts(results: dict[str, dict[str, Any]]) -> str:
    """How many scripts of each group came out how."""
    rows = ["| | scripts | proved | not proved | disproved |", "| --- | ---: | ---: | ---: | ---: |"]
    for group in GROUPS:
        verdicts = [result["verdict"] for name, result in results.items() if name.startswith(f"{group}-")]
        if verdicts:
            found = Counter(verdicts)
            numbers = (len(verdicts), found["proved"], found["unproved"], found["disproved"])
            rows.append(f"| fixtures/{group} | " + " | ".join(map(str, numbers)) + " |")
    return "\n".join(rows)


def told(result: dict[str, Any]) -> str:
    """The verdict of a verification or of a check in words."""
    return IN_WORDS[result["verdict"]]


def table(results: dict[str, dict[str, Any]]) -> str:
    """A line for each script."""
    rows = [
        "| script | verdict | checks that hold | checks that do not, or are open |",
        "| --- | --- | --- | --- |",
    ]
    for name, result in sorted(results.items()):
        held = [check["id"] for check in result["checks"] if check["verdict"] == "proved"]
        rest = [f"{check['id']} {told(check)}" for check in result["checks"] if check["verdict"] != "proved"]
        why = ", ".join(rest) or ("" if result["checks"] else result["summary"])
        rows.append(f"| {name} | {told(result)} | {', '.join(held)} | {why.replace('|', '/')} |")
    return "\n".join(rows)


def main() -> None:
    """Verify the fixtures, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--missing", action="store_true")
    arguments = parser.parse_args()
    if arguments.cost:
        print(table_of_costs({subject.name: cost(subject) for subject in subjects(arguments.names)}))
        return
    folder = arguments.results or Path(tempfile.mkdtemp(prefix="verified-"))
    folder.mkdir(parents=True, exist_ok=True)
    results = {}
    for subject in subjects(arguments.names):
        path = folder / f"{subject.name}.json"
        if not (arguments.missing and path.exists()):
            path.write_text(json.dumps(verified(subject, arguments.steps), indent=1) + "\n", encoding="utf-8")
        result = results[subject.name] = json.loads(path.read_text(encoding="utf-8"))
        print(f"{subject.name}: {told(result)} ({result['seconds']:.0f} s)", file=sys.stderr)
    print(counts(results), "\n\n", table(results), sep="")


if __name__ == "__main__":
    main()
