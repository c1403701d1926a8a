"""Speed of ``amp-migrate`` over large repositories, beside LibCST's own runner, and how the time grows with the lines.

    python benchmarks/project.py FOLDER [FOLDER ...] [--grow FOLDER] [--runs 3]

Every command is a process of its own on one core; what counts is its user and system time, the least of several runs
that take turns, or of one where that takes over a minute. A full scan finds the training scripts of the folder and
decides on each with ``--ddp``; nothing is written. LibCST's runner carries out a codemod that changes nothing
(``python -m libcst.tool codemod noop.NOOPCommand``), which parses every file and writes it back.

With ``--grow``, 1, 2, 4 and 8 copies of a folder lie beside each other, each a repository of its own.

Ascend's msfmktransplt, which rewrites scripts for another device, was measured elsewhere with about 100 lines per
second of the processor on timm; it is not run here. Prints the tables of ``project_cpu.md``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from processes import Command, head, size

OURS = [str(Path(sys.executable).with_name("amp-migrate")), "--ddp", "--check", "--jobs", "1"]
MSFMKTRANSPLT = 100.0
GROWTH = (1, 2, 4, 8)


def commands(folder: Path, place: Path) -> list[Command]:
    """What is measured over one folder."""
    cache = place / f"cache-{folder.name}"
    copy = place / f"copy-{folder.name}"
    shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    libcst = [sys.executable, "-m", "libcst.tool", "codemod", "noop.NOOPCommand", "-j", "1", "--hide-progress"]
    return [
        Command("amp-migrate, full scan", [*OURS, str(folder), "--no-cache"]),
        Command("amp-migrate, writing its cache", [*OURS, str(folder), "--cache-dir", str(cache)], before=cache),
        Command("amp-migrate, nothing changed", [*OURS, str(folder), "--cache-dir", str(cache)]),
        Command("LibCST's runner, a codemod that does nothing", [*libcst, "--no-format", str(copy)]),
    ]


def table(folder: Path, measured: list[Command]) -> str:
    """The results as a markdown table."""
    lines = size(folder)[1]
    rows = [
        "| | CPU time | lines per CPU second | msfmktransplt's, times | peak memory |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for item in measured:
        seconds = min(item.seconds)
        speed = lines / seconds
        rows.append(
            f"| {item.name} | {seconds:.2f} s | {speed:,.0f} | {speed / MSFMKTRANSPLT:.0f} | {item.megabytes:.0f} MiB |"
        )
    return "\n".join(rows)


def growth(folder: Path, place: Path, runs: int) -> str:
    """The time for several copies of a folder."""
    rows = ["| copies | lines | CPU time | lines per CPU second |", "| ---: | ---: | ---: | ---: |"]
    for count in GROWTH:
        root = place / f"grow-{count}"
        for index in range(count):
            shutil.copytree(folder, root / f"copy{index}", symlinks=True, ignore=shutil.ignore_patterns(".git"))
            (root / f"copy{index}" / ".git").mkdir()
        command = Command(f"{count} copies", [*OURS, str(root), "--no-cache"])
        for _ in range(runs):
            command.run()
        lines, seconds = size(root)[1], min(command.seconds)
        rows.append(f"| {count} | {lines:,} | {seconds:.2f} s | {lines / seconds:,.0f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--grow", type=Path, help="the folder that is copied, to see how the time grows")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    folders = [folder.resolve() for folder in options.folders]
    sizes = [f"{folder.name}: {size(folder)[0]} files, {size(folder)[1]} lines" for folder in folders]
    print(head(sizes, options.runs))
    with tempfile.TemporaryDirectory() as place:
        for folder in folders:
            measured = commands(folder, Path(place))
            for _ in range(options.runs):
                for item in measured:
                    if sum(item.seconds) < 60:
                        item.run()
            print(f"{folder.name}:\n\n{table(folder, measured)}\n")
        if options.grow:
            print(f"Copies of {options.grow.name}:\n\n{growth(options.grow.resolve(), Path(place), options.runs)}")


if __name__ == "__main__":
    main()
