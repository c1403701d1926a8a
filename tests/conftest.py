"""What all folders share."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from turns import TURN, has_its_turn
from warm import Warm


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Processes that have torch already, which scripts are forked off."""
    warm = Warm()
    yield warm
    warm.close()


CHROMEDRIVER = Path("/usr/bin/chromedriver")
_FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --hide-scrollbars""".split()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium with an empty profile, which keeps a log of its console and its requests.

    It reaches no machine but this one.
    """
    if not CHROMEDRIVER.exists() or shutil.which("chromium") is None:
        pytest.skip("no Chromium with its driver: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    offline = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"
    for flag in (*_FLAGS, offline, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(CHROMEDRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    """Garbage is looked for again behind a test: a run of the linter in this process leaves that to itself."""
    yield
    gc.enable()


@pytest.fixture
def invoke(folder: Path) -> Callable[..., Result]:
    """Call amp-migrate in this process, in the ``folder`` of those who ask for it."""
    from amp_migrate.commands.migrate import main

    def call(*arguments: object, **kwargs: Any) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments], **kwargs)

    return call


TURNS = {"slow": 48, "heavy": 16}
"""In how many turns each test of a marker runs once; the first marker counts."""

LIGHT = 4 if os.environ.get("AMP_TEST_AGAIN") else 1
"""The same of all others: a run of what another run has tried under other conditions needs not have all."""


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """No garbage is looked for among the tests: all of them stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what has its turn. Let one worker have the tests of a file, which share what is made once; long ones go
    where there is room."""
    if TURN:
        left_out = [item for item in items if not _has_its_turn(item, TURN)]
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
    for item in items:
        if not any(item.iter_markers("xdist_group")) and not any(item.iter_markers("heavy")):
            item.add_marker(pytest.mark.xdist_group(item.path.name))


def _has_its_turn(item: pytest.Item, turn: str) -> bool:
    """Tests of one script share what is made once, so they have their turn together."""
    turns = next((turns for marker, turns in TURNS.items() if any(item.iter_markers(marker))), LIGHT)
    group = next((mark.args[0] for mark in item.iter_markers("xdist_group")), item.name)
    return has_its_turn(group, turns, turn)
