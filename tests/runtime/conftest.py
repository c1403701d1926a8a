"""Every test starts and ends as a script before ``amp.init``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import amp_runtime as amp

    for name in ("AMP_OPT_LEVEL", "AMP_LOSS_SCALE", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    amp.shutdown()
    yield
    amp.shutdown()
