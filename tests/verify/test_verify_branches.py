"""Runs forked from a process that has imported what the original imports: as they would be, and sooner."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from amp_migrate.verify.processes import Rank, run_together
from amp_migrate.verify.warm import Warm, can_fork
from waiting import lives, wait_for

pytestmark = [
    pytest.mark.skipif(not can_fork(), reason="nothing is forked on this system"),
    pytest.mark.heavy,
]

PLENTY = 2**40
SCRIPT = "import os, large\nprint(os.environ.get('LARGE'), large.imported_by == os.getpid(), large.imported_by)\n"
LARGE = "import os\nimported_by = os.getpid()\nos.environ['LARGE'] = 'here'\n"


def given(folder: Path) -> dict[str, str]:
    paths = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder / "site-packages")}
    return {**paths, "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@contextmanager
def remembering(folder: Path, module: str) -> Iterator[Warm]:
    """Processes to fork from, one of which has imported the module ``large``."""
    installed = folder / "site-packages"
    installed.mkdir()
    (installed / "large.py").write_text(module)
    with Warm(sys.executable, given(folder)) as warm:
        warm.remember(["large"])
        yield warm


def said(warm: Warm, folder: Path, **variables: str) -> list[str]:
    """What a script of one process prints that imports it."""
    (folder / "train.py").write_text(SCRIPT)
    rank = Rank((sys.executable, "train.py"), {**given(folder), **variables}, folder / "out", folder / "err")
    outcome = run_together([rank], folder, timeout=240, memory=PLENTY, starter=warm)
    assert outcome.statuses == (0,), (folder / "err").read_text()
    return (folder / "out").read_text().splitlines()


def test_a_module_is_imported_once_with_what_it_leaves_in_the_environment(tmp_path: Path) -> None:
    with remembering(tmp_path, LARGE) as warm:
        trunk, branch = sorted(warm.parents())
        assert said(warm, tmp_path) == said(warm, tmp_path) == [f"here False {max(trunk, branch)}"]


def test_a_process_of_several_imports_it_itself_because_it_may_read_its_rank(tmp_path: Path) -> None:
    with remembering(tmp_path, LARGE) as warm:
        (line,) = said(warm, tmp_path, WORLD_SIZE="2", RANK="0")
        assert line.startswith("here True ")


@pytest.mark.parametrize(
    "module",
    [
        f"{LARGE}print('printed')\n",
        f"{LARGE}os.write(1, b'printed\\n')\n",
        f"{LARGE}import threading, time\nthreading.Thread(target=time.sleep, args=(1,), daemon=True).start()\n",
        f"{LARGE}assert 'train.py' in __import__('sys').argv[0]\n",
    ],
    ids=["prints", "writes", "thread", "raises"],
)
def test_what_cannot_be_imported_once_is_imported_by_each(module: str, tmp_path: Path) -> None:
    with remembering(tmp_path, module) as warm:
        *printed, line = said(warm, tmp_path)
        assert line.startswith("here True ")
        assert printed == ["printed"] * ("printed" in module)
        assert warm.forget() is False, "that was noticed once"


def test_an_idle_pool_of_torch_is_begun_anew(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "sitecustomize.py").write_text("import torch\ntorch.set_num_threads(3)\n")
    (tmp_path / "train.py").write_text(
        "import torch\nones = torch.ones(1024, 1024)\nprint(torch.get_num_threads(), (ones @ ones).sum().item())\n"
    )
    rank = Rank((sys.executable, "train.py"), given(tmp_path), tmp_path / "out", tmp_path / "err")
    with Warm(sys.executable, given(tmp_path)) as warm:
        outcome = run_together([rank], tmp_path, timeout=240, memory=PLENTY, starter=warm)
    assert outcome.statuses == (0,)
    assert (tmp_path / "out").read_text() == f"3 {1024.0**3}\n"


def test_branches_end_with_the_verification(tmp_path: Path) -> None:
    with remembering(tmp_path, LARGE) as warm:
        said(warm, tmp_path)
        parents = warm.parents()
        assert len(parents) == 2
    wait_for(lambda: not any(map(lives, parents)))
