"""Every test starts and ends as a script before ``amp.init``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Launcher
from warm import Warm

pytest.importorskip("torch")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever the runtime does rests on what the processor has."""
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.half)


@pytest.fixture(scope="session")
def launcher(warm: Warm) -> Launcher:
    return Launcher(warm)


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import amp_runtime as amp

    for name in ("AMP_OPT_LEVEL", "AMP_DTYPE", "AMP_LOSS_SCALE", "AMP_CHECK", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    amp.shutdown()
    yield
    amp.shutdown()
