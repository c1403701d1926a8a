from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from amp_migrate.verify.environment import interpreter_environment
from amp_migrate.verify.processes import Rank
from amp_migrate.verify.runs import RECORDER
from amp_migrate.verify.warm import starter
from forked import Forked
from recording import HEAD, RUNTIME, Record, Recorded


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    with starter(sys.executable, interpreter_environment(1), 1) as started:
        yield Forked(started)


@pytest.fixture
def record(forked: Forked, tmp_path: Path) -> Record:
    """Runs a script under the recorder, in one process or several."""

    def run(body: str, processes: int = 1, folder: str = ".", **variables: Any) -> Recorded:
        place = tmp_path / folder
        (place / "record").mkdir(parents=True)
        (place / "train.py").write_text(HEAD + dedent(body))
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, (RECORDER, RUNTIME))),
            "AMP_VERIFY_RECORD": str(place / "record"),
            "AMP_VERIFY_ROOT": str(place),
            "AMP_CHECK": "off",
            **{f"AMP_VERIFY_{name.upper()}": str(value) for name, value in variables.items()},
        }
        ranks = [
            Rank(
                (sys.executable, str(place / "train.py")),
                environment | ({"RANK": str(rank), "WORLD_SIZE": str(processes)} if processes > 1 else {}),
                place / f"stdout{rank}",
                place / f"stderr{rank}",
            )
            for rank in range(processes)
        ]
        outcome = forked.run_together(ranks, place, timeout=60, memory=0)
        print((place / "stderr0").read_text())
        return Recorded(place, outcome)

    return run
