from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def state(tmp_path_factory, monkeypatch):
    """Journals and caches of these tests alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
