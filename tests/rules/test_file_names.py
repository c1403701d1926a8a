"""Which texts may name one file: ``*`` is what is not known, and holes for numbers are filled with digits."""

from __future__ import annotations

import pytest
from amp_rules.roles.file_paths import may_be_same
from amp_rules.roles.gapped_texts import NUMBER


@pytest.mark.parametrize(
    ("read", "written"),
    [
        ("*/model.pt", "out/model.pt"),
        ("*/words.txt", "*.txt"),
        (f"*/epoch_{NUMBER}.pt", "*/epoch_12.pt"),
        ("*/epoch_12.pt", f"*/epoch_{NUMBER}.pt"),
        (f"epoch_{NUMBER}.pt", "epoch_*.pt"),
        ("step_*/model.bin", "step_*"),
    ],
)
def test_names_that_may_be_of_one_file(read: str, written: str) -> None:
    assert may_be_same(read, written)


@pytest.mark.parametrize(
    ("read", "written"),
    [
        ("*/words.txt", "*/results/*_of_*.txt"),
        (f"*/batch_{NUMBER}", "out/*_*_accuracy.txt"),
        (f"epoch_{NUMBER}.pt", "epoch_best.pt"),
        ("*", "*"),
        ("*", "out/model.pt"),
    ],
)
def test_names_of_two_files(read: str, written: str) -> None:
    assert not may_be_same(read, written)
