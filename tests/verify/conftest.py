from __future__ import annotations

from collections.abc import Iterator

import pytest
from forked import Forked


@pytest.fixture(scope="module")
def forked() -> Iterator[Forked]:
    """A process that has torch already, which scripts are forked off."""
    forked = Forked()
    yield forked
    forked.close()
