"""What all folders share."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from warm import Warm


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Processes that have torch already, which scripts are forked off."""
    warm = Warm()
    yield warm
    warm.close()


@pytest.fixture
def invoke(folder: Path) -> Callable[..., Result]:
    """Call amp-migrate in this process, in the ``folder`` of those who ask for it."""
    from amp_migrate.commands.migrate import main

    def call(*arguments: object, **kwargs: Any) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments], **kwargs)

    return call


TURN = os.environ.get("AMP_TEST_TURN", "")
"""Number of the turn, as `scripts/test.sh full` chooses it; empty for all tests."""

TURNS = {"slow": 12, "heavy": 4}
"""In how many turns each test of a marker runs once; the first marker counts."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what has its turn. Let one worker have the tests of a file, which share what is made once; long ones go
    where there is room."""
    if TURN:
        left_out = [item for item in items if not _has_its_turn(item, int(TURN))]
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
    for item in items:
        if not any(item.iter_markers("xdist_group")) and not any(item.iter_markers("heavy")):
            item.add_marker(pytest.mark.xdist_group(item.path.name))


def _has_its_turn(item: pytest.Item, number: int) -> bool:
    """Tests of one script share what is made once, so they have their turn together. The same in every process."""
    turns = next((turns for marker, turns in TURNS.items() if any(item.iter_markers(marker))), 1)
    group = next((mark.args[0] for mark in item.iter_markers("xdist_group")), item.name)
    return zlib.crc32(group.encode()) % turns == number % turns
