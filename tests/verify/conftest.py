from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from amp_migrate.verify.environment import interpreter_environment
from amp_migrate.verify.warm import starter
from forked import Forked


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    with starter(sys.executable, interpreter_environment(1), 1) as started:
        yield Forked(started)
