"""Speed of the linter over a tree of files, beside others that read the same files.

    python benchmarks/lint.py FOLDER [--torchfix PROGRAM] [--ruff PROGRAM] [--runs 3] [--profile]

Every command is a process of its own that starts cold, on one core; what counts is its user and system time, the least
of several runs that take turns, or of one where that takes over a minute. ``ast.parse`` and a walk over every node in a
bare interpreter is printed beside it, as a measure of the machine. For comparison over time, the tree is that of the
wheel of timm 1.0.19: ``pip download --no-deps timm==1.0.19 && unzip -q timm-*.whl -d timm``. Prints the table of
``lint_cpu.md``.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from processes import Command, head, size

BARE = """
import ast, gc, pathlib, sys
gc.disable()
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_bytes())):
        pass
"""
OURS = [str(Path(sys.executable).with_name("amp-lint"))]


def commands(folder: Path, cache: Path, torchfix: str | None, ruff: str | None) -> list[Command]:
    cached = ["--cache-dir", str(cache)]
    tree = [str(folder), "--jobs", "1"]
    found = [
        Command("`ast.parse` and a walk", [sys.executable, "-c", BARE, str(folder)]),
        Command("amp-lint, cold", [*OURS, *tree, "--no-cache"]),
        Command("amp-lint, cold, writing its cache", [*OURS, *tree, *cached], before=cache),
        Command("amp-lint, nothing changed", [*OURS, *tree, *cached]),
        Command("amp-lint O3, cold", [*OURS, *tree, "--no-cache", "--opt-level", "O3"]),
        Command(
            "amp-lint O3 with rules in preview, cold", [*OURS, *tree, "--no-cache", "--opt-level", "O3", "--preview"]
        ),
        Command("amp-lint --version", [*OURS, "--version"]),
    ]
    if torchfix:
        found.append(Command("TorchFix, all rules", [torchfix, "-j", "1", "--select", "ALL", str(folder)]))
    if ruff:
        options = ["check", "--isolated", "--no-cache", "--select", "ALL", "--quiet", "--exit-zero"]
        found.append(Command("ruff, all rules, no cache", [ruff, *options, str(folder)]))
    return found


def table(folder: Path, measured: list[Command]) -> str:
    """The results as a markdown table."""
    lines = size(folder)[1]
    ours = next(min(item.seconds) for item in measured if item.name == "amp-lint, cold")
    rows = [
        "| | CPU time | lines per CPU second | of amp-lint, cold | peak memory |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for item in measured:
        seconds = min(item.seconds)
        speed = "" if item.name.endswith("--version") else f"{lines / seconds:,.0f}"
        rows.append(f"| {item.name} | {seconds:.2f} s | {speed} | x{seconds / ours:.2f} | {item.megabytes:.0f} MiB |")
    return "\n".join(rows)


def phases(folder: Path) -> str:
    """Where the time of a cold run goes, by phases, in this process."""
    from amp_rules.checks import all_checks
    from amp_rules.lattice.machine import Machine
    from amp_rules.lint import Linter, Mode
    from amp_rules.lint import linter as module
    from amp_rules.lint.triggers import Triggers
    from amp_rules.source.project_facts import ProjectFacts
    from amp_rules.source.text import read_source

    clock = time.process_time
    spent = dict.fromkeys(["read", "triggers", "parse", "run"], 0.0)
    files = sorted(folder.rglob("*.py"))
    start = clock()
    sources = [read_source(path) for path in files]
    spent["read"] = clock() - start

    def timed(owner: type, name: str, phase: str) -> None:
        plain = getattr(owner, name)

        def wrapper(*arguments: object) -> object:
            begun = clock()
            try:
                return plain(*arguments)
            finally:
                spent[phase] += clock() - begun

        setattr(owner, name, wrapper)

    timed(Triggers, "places", "triggers")
    timed(ProjectFacts, "start", "parse")
    timed(Machine, "judge", "run")
    timed(Machine, "judge_statements", "run")
    assert module.Linter is Linter
    linter = Linter(Mode(), all_checks())
    start = clock()
    for source in sources:
        linter.lint(source)
    total = clock() - start
    # The parser also works for files that others import.
    rest = total - sum(spent[phase] for phase in ("triggers", "parse", "run"))
    parts = [*spent.items(), ("rules about classes and files, the rest", rest)]
    return "\n".join(
        ["| phase | CPU time |", "| --- | ---: |", *(f"| {name} | {value:.2f} s |" for name, value in parts)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--torchfix", help="TorchFix's program, in an environment of its own")
    parser.add_argument("--ruff", default=shutil.which("ruff"), help="ruff's program")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="where the time of a cold run goes")
    options = parser.parse_args()
    folder = options.folder.resolve()
    files, lines = size(folder)
    print(head([f"{folder.name}: {files} files, {lines} lines"], options.runs))
    with tempfile.TemporaryDirectory() as place:
        measured = commands(folder, Path(place) / "cache", options.torchfix, options.ruff)
        for _ in range(options.runs):
            for item in measured:
                if sum(item.seconds) < 60:
                    item.run()
    print(table(folder, measured))
    if options.profile:
        print("\n" + phases(folder))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
