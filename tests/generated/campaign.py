"""Generates many scripts at random, runs each before and after, and prints what differs, with counts at the end.

    PYTHONPATH=tests/shared python tests/generated/campaign.py COUNT [--seed N] [--half] [--keep FOLDER]

With ``--half`` they run at O1 too, in both half types. What differs is kept in FOLDER, one script a file.
"""

from __future__ import annotations

import argparse
import collections
import random
import tempfile
from pathlib import Path

from comparing import differences
from grammar import CHOICES, Script
from running import Runner
from warm import Warm

_PLAIN = 2 / 3
"""The share of features that are the plain choice, as in ``grammar.scripts``."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    warm = Warm()
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(warm, Path(folder) / "runs")
        for number in range(asked.seed, asked.seed + asked.count):
            counts.update(_one(runner, number, asked))
    warm.close()
    print(", ".join(f"{what}: {count}" for what, count in sorted(counts.items())))


def _one(runner: Runner, number: int, asked: argparse.Namespace) -> list[str]:
    """What one script counts as; what differs is printed."""
    script = drawn(random.Random(number))
    runs = runner.runs(script.text(), in_half=asked.half)
    outcome = [f"precision {runs.report.precision}", f"distribution {runs.report.distribution}"]
    outcome += sorted({f"{refusal.code} {refusal.name}" for refusal in runs.report.refusals})
    if not runs.original.ended_well:
        return ["original fails"]
    found = differences(runs)
    if not found:
        return [*outcome, "equal"]
    print(f"{number}: {script.features}", *found, sep="\n    ", flush=True)
    if asked.keep:
        asked.keep.mkdir(parents=True, exist_ok=True)
        (asked.keep / f"{number}.py").write_text(script.text(), encoding="utf-8")
    return [*outcome, "different"]


def drawn(generator: random.Random) -> Script:
    """A script at random."""
    return Script(
        **{
            name: choices[0] if generator.random() < _PLAIN else generator.choice(choices[1:])
            for name, choices in CHOICES.items()
        }
    )


if __name__ == "__main__":
    main()
