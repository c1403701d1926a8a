from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import ROOT

sys.path.insert(0, str(ROOT / "docs" / "_ext"))


@pytest.fixture(scope="session")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as ``scripts/docs.sh`` builds it. Tests that use it share a worker: ``xdist_group("site")``.

    ``AMP_TEST_SITE`` names a folder with one that is built already, for work on it.
    """
    if built := os.environ.get("AMP_TEST_SITE"):
        return Path(built).resolve()
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-d", str(folder / "trees")]
    command += [str(ROOT / "docs"), str(folder / "html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return folder / "html"
