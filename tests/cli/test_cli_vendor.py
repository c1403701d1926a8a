"""--vendor: the runtime beside the script."""

from __future__ import annotations

import sys

import pytest
from amp_migrate.write import vendor
from cli_standin import TRAIN


@pytest.fixture
def runtime(folder, monkeypatch):
    """A small runtime, so that the test does not depend on the real one."""
    source = folder / "installed/amp_runtime"
    (source / "optim").mkdir(parents=True)
    (source / "__pycache__").mkdir()
    (source / "__init__.py").write_text("import torch_is_not_imported_here\n")
    (source / "optim/lamb.py").write_text("x = 1\n")
    (source / "__pycache__/__init__.pyc").write_bytes(b"")
    monkeypatch.setattr(sys, "path", [str(folder / "installed"), *sys.path])
    (folder / "work").mkdir()
    (folder / "work/train.py").write_text(TRAIN)
    monkeypatch.chdir(folder / "work")
    return source


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_writing_copies_the_runtime_beside_the_script(runtime, folder, invoke):
    assert invoke("train.py", "-w", "--vendor").exit_code == 0
    assert files(folder / "work") == ["amp_runtime/__init__.py", "amp_runtime/optim/lamb.py", "train.py"]


def test_output_elsewhere_takes_the_runtime_along(runtime, folder, invoke):
    assert invoke("train.py", "-o", "out", "--vendor").exit_code == 0
    assert files(folder / "work/out") == ["amp_runtime/__init__.py", "amp_runtime/optim/lamb.py", "train.py"]


def test_a_diff_only_announces_the_copy(runtime, folder, invoke):
    done = invoke("train.py", "--vendor")
    assert "--vendor will copy amp_runtime to amp_runtime" in done.stderr
    assert files(folder / "work") == ["train.py"]


def test_a_different_copy_is_kept_and_nothing_is_written(runtime, folder, invoke):
    copy = folder / "work/amp_runtime"
    copy.mkdir()
    (copy / "__init__.py").write_text("mine\n")
    done = invoke("train.py", "-w", "--vendor")
    assert done.exit_code == 2
    assert "amp_runtime: exists and differs" in done.stderr
    assert (copy / "__init__.py").read_text() == "mine\n"
    assert (folder / "work/train.py").read_text() == TRAIN


def test_an_equal_copy_is_no_obstacle(runtime, folder, invoke):
    assert vendor.copy_runtime(folder / "work", runtime) is None
    assert invoke("train.py", "-w", "--vendor").exit_code == 0


def test_nothing_is_copied_where_nothing_changes(runtime, folder, invoke):
    (folder / "work/train.py").write_text("x = 1\n")
    assert invoke("train.py", "-w", "--vendor").exit_code == 0
    assert files(folder / "work") == ["train.py"]


def test_a_failing_copy_leaves_nothing_behind(runtime, folder, monkeypatch):
    def failing(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(vendor.os, "rename", failing)
    problem = vendor.copy_runtime(folder / "work", runtime)
    assert str(problem) == "amp_runtime: cannot be written: No space left on device"
    assert files(folder / "work") == ["train.py"]


def test_the_working_directorys_own_copy_is_not_taken_for_the_installed_one(runtime, folder, monkeypatch):
    (folder / "work/amp_runtime").mkdir()
    (folder / "work/amp_runtime/__init__.py").write_text("old\n")
    monkeypatch.setattr(sys, "path", [str(folder / "work"), "", *sys.path])
    assert vendor.runtime_folder() == runtime
