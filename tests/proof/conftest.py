"""The results are made once a session and shared by the workers of pytest-xdist."""

from pathlib import Path

import pytest
from apex_proofs import ApexProofs
from plain_proofs import PlainProofs
from proofs import Proofs
from shard_proofs import ShardProofs, TableProofs
from warm import Warm


@pytest.fixture(scope="session")
def proofs(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Proofs:
    return Proofs(_shared(tmp_path_factory) / "proofs", warm)


@pytest.fixture(scope="session")
def apex_proofs(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> ApexProofs:
    return ApexProofs(_shared(tmp_path_factory) / "apex", warm)


@pytest.fixture(scope="session")
def plain_proofs(tmp_path_factory: pytest.TempPathFactory, warm: Warm, proofs: Proofs) -> PlainProofs:
    return PlainProofs(_shared(tmp_path_factory) / "plain_torch", warm, proofs)


@pytest.fixture(scope="session")
def shard_proofs(tmp_path_factory: pytest.TempPathFactory, warm: Warm, proofs: Proofs) -> ShardProofs:
    return ShardProofs(_shared(tmp_path_factory) / "shards", warm, proofs)


@pytest.fixture(scope="session")
def table_proofs(tmp_path_factory: pytest.TempPathFactory, warm: Warm, proofs: Proofs) -> TableProofs:
    return TableProofs(_shared(tmp_path_factory) / "tables", warm, proofs)


def _shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    # Each worker has a folder of its own inside the one of the session.
    return base.parent if base.name.startswith("popen-") else base
