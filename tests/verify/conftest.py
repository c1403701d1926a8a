from __future__ import annotations

import pytest
from forked import Forked
from warm import Warm


@pytest.fixture(scope="session")
def forked(warm: Warm) -> Forked:
    return Forked(warm)
