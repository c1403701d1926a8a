"""The results are made once a session and shared by the workers of pytest-xdist."""

from collections.abc import Iterator

import pytest
from proofs import Proofs


@pytest.fixture(scope="session")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proofs]:
    base = tmp_path_factory.getbasetemp()
    # Each worker has a folder of its own inside the one of the session.
    shared = base.parent if base.name.startswith("popen-") else base
    proofs = Proofs(shared / "proofs")
    yield proofs
    proofs.close()
