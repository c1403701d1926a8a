"""What is remembered belongs to one state of the program's own files."""

from __future__ import annotations

import shutil
from pathlib import Path

import amp_migrate
import pytest
from amp_migrate.run import store


@pytest.mark.parametrize("name", ["lint/suppress.py", "notebook/reading.py", "run/deciding.py", "problems.py"])
def test_a_change_of_any_file_of_the_program_makes_another_key(name, tmp_path, monkeypatch):
    copy = tmp_path / "amp_migrate"
    shutil.copytree(Path(amp_migrate.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(amp_migrate, "__path__", [str(copy)])
    before = store.fingerprint()
    assert before == store.fingerprint()
    with (copy / name).open("a") as file:
        file.write("# changed\n")
    assert store.fingerprint() != before
