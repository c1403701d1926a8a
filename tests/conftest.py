"""What all folders share."""

from __future__ import annotations

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one worker have the tests of a file, which share what is made once; long ones go where there is room."""
    for item in items:
        if not any(item.iter_markers("xdist_group")) and not any(item.iter_markers("heavy")):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
