"""Which versions of a script ``amp-migrate verify`` compares."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from amp_migrate.problems import NothingShownError
from amp_migrate.verify.versions import since


def test_a_script_is_not_compared_with_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("width = 1\n")
    Path("train.py").write_text("import net\n")
    Path("other.py").write_text("x = 1\n")
    Path("notes.txt").write_text("x\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *arguments], check=True)
    advice = "where the migration is committed already, --base HEAD~1 is the state before"
    with pytest.raises(NothingShownError, match=advice):
        since(Path("train.py"), "HEAD")
    Path("notes.txt").write_text("y\n")
    with pytest.raises(NothingShownError, match=f"train.py and what it imports are the same as in HEAD.*{advice}"):
        since(Path("train.py"), "HEAD")
    Path("other.py").write_text("x = 2\n")
    assert any(advice in note for note in since(Path("train.py"), "HEAD").notes)
    Path("net.py").write_text("width = 2\n")
    assert not any("the same" in note for note in since(Path("train.py"), "HEAD").notes)
