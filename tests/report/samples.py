"""Migrations of real scripts, and evidence of the shape that a verification gives, with made-up numbers."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

from amp_migrate.launch.launches import launches
from amp_migrate.report.pages import Migration
from amp_migrate.run import discovery
from amp_migrate.run.deciding import MigrationJob
from amp_migrate.run.migration import run_all
from amp_migrate.run.scripts import choose
from amp_migrate.verify.evidence import Check, Evidence, Measured, Speed
from amp_rules.plan.options import Options

FIXTURES = Path(__file__).parents[2] / "fixtures"


def migration(*paths: Path, **options) -> Migration:
    asked = Options(**options)
    found = discovery.discover(paths, (), paths[0].parent, own_only=True)
    scripts = choose(found.targets, (), modernize=bool(asked.modernize))
    plan = MigrationJob(asked, scripts.named, {}, 60.0, scripts.parsed)
    run = run_all(scripts.chosen, plan, leftovers=scripts.leftovers, jobs=1)
    if asked.ddp:
        run.launches = launches(run.reports)
    return Migration(run, asked)


def evidence(script: str = "train.py", steps: int = 50, verdict: str = "proved", **changed) -> Evidence:
    """Evidence of a run at all levels; ``verdict`` is that of the exact check."""
    rng = random.Random(7)
    right = [2.3 * math.exp(-step / 18) + 0.25 + rng.gauss(0, 0.03) for step in range(steps)]
    half = [loss * (1 + rng.gauss(0, 0.004)) for loss in right]
    masters = [loss * (1 + rng.gauss(0, 0.008)) for loss in right]
    together = [loss * (1 + rng.gauss(0, 0.03)) for loss in right]
    scales = tuple([65536.0] * (steps // 2) + [32768.0] * (steps - steps // 2))
    exact = right if verdict == "proved" else [right[0], *(loss * 1.02 for loss in right[1:])]
    messages = {
        "proved": f"All {steps} losses, gradient norms and updates are the same in every bit.",
        "disproved": "The loss of step 2 (train.py:48, in the migrated version train.py:51) is 2.41, not 2.36.",
        "unproved": "The original is not reproducible: `loss` differs from run to run, so nothing can be compared.",
    }

    def run(name, level, losses, scales=(), processes=1, **more):
        measured = dict(scales=scales, peak_memory=412 * 2**20, steps_bound=steps)
        return Measured(name, level, processes, "stopped", tuple(losses), **{**measured, **more})

    values = dict(
        script=script,
        arguments=("--epochs", "1", "--name", "a|b `c` <i>"),
        verdict=verdict,
        summary="The migrated script reproduces the original in float32 bit for bit; 6 of 6 checks hold.",
        checks=(
            Check("runs", "The migrated script runs", "proved", "All 5 runs of it finished without an error."),
            Check("o0-exact", "O0 gives exactly the original's losses", verdict, messages[verdict]),
            Check("o0-scaled", "No gradient is used while it is scaled", "proved", "A scale of 1024 changes no bit."),
            Check(
                "o1-band",
                "O1 stays within 5 % of the original's losses",
                "proved",
                "The losses are farthest from the original's, by 0.41 %, at step 31.",
            ),
            Check(
                "o2-band",
                "O2 stays within 5 % of the original's losses",
                "proved",
                "The losses are farthest from the original's, by 0.83 %, at step 44. The scaler skipped 1 step.",
            ),
            Check(
                "one-process",
                "Two processes repeat one with the joined batches",
                "proved" if verdict == "proved" else "unproved",
                "The mean of their losses is the joined batch's loss to within 0.01 % up to step 3."
                if verdict == "proved"
                else "The model draws random numbers in the step, so its processes cannot be compared with one.",
            ),
        ),
        runs=(
            run("original", None, right),
            run("O0", "O0", exact),
            run("O0, scaled", "O0", exact, (1024.0,) * steps),
            run("O1", "O1", half, scales, peak_memory=297 * 2**20, deviation=0.0041),
            run("O2", "O2", [*masters[:-1], None], scales, skipped=1, peak_memory=268 * 2**20, deviation=0.0083),
            run("O0, 2 processes", "O0", together, processes=2),
            run("O1, 2 processes", "O1", [loss * 1.003 for loss in together], scales, processes=2),
        ),
        steps=steps,
        tolerance=0.05,
        device="cpu",
        versions={"amp-migrate": "0.1.0", "python": "3.11.2", "torch": "2.13.0"},
        notes=("apex is not installed: a stand-in took its place in the original, which so trains in float32.",),
        reach=(
            f"to backward call {steps}, after which the script goes on (some runs to {steps // 2} only), with the data "
            "that these arguments read, on the CPU, at O0, O1 in bfloat16 and float16 and O2 in bfloat16, in 1 and 2 "
            "processes."
        ),
        speeds=(Speed("O1", "original", 1.8, 1.72, 1.88, 40), Speed("O2", "original", 1.9, 1.81, 1.95, 40)),
    )
    return Evidence(**{**values, **changed})


def failed() -> Evidence:
    """Evidence of a script that does not run."""
    error = "train.py:12: ModuleNotFoundError: No module named 'lightning_bolts'"
    run = Measured("original", None, 1, "failed", error=error)
    return evidence(
        verdict="unproved",
        summary=f"Nothing is proved, because the original does not run: {error}.",
        checks=(),
        runs=(run,),
        notes=(),
        reach="",
        speeds=(),
    )


def varying() -> Evidence:
    """Evidence of a script that is not reproducible."""
    found = evidence(verdict="unproved", summary="The original differs from itself when it is run twice.", speeds=())
    first = found.runs[0]
    again = replace(first, name="original again", losses=(first.losses[0], *(loss + 0.5 for loss in first.losses[1:])))
    return replace(found, runs=(*found.runs, again))
