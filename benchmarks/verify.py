"""``amp-migrate verify`` over every script of the fixtures that runs: how many are proved, and what was measured.

    python benchmarks/verify.py [NAME ...] [--steps 50] [--results FOLDER] [--missing]

NAME chooses the fixtures whose folder holds it. The evidence of each script is written to FOLDER as JSON; with
``--missing`` only scripts without it are run. Prints the tables of ``verify_cpu.md``.
"""

from __future__ import annotations

import argparse
import json
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


def verified(subject: Subject, steps: int) -> dict[str, Any]:
    """The evidence for one script, or why there is none."""
    started = time.monotonic()
    command = [*COMMAND, "--steps", str(steps), *subject.command]
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
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--missing", action="store_true")
    arguments = parser.parse_args()
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
