"""--vendor: what is used of the runtime, beside the script."""

from __future__ import annotations

import json
import sys

import pytest
from amp_migrate.vendoring import copies, installed
from cli_standin import TRAIN

USING = "import amp_runtime as amp\n" + TRAIN

ROOT = """
from amp_runtime._ema import EMA as EMA
from amp_runtime._scaler import scaler as scaler

__all__ = ["EMA", "scaler"]
"""


@pytest.fixture
def runtime(folder, monkeypatch):
    """A small runtime, so that the test does not depend on the real one."""
    source = folder / "installed/amp_runtime"
    (source / "__pycache__").mkdir(parents=True)
    (source / "__init__.py").write_text(ROOT)
    (source / "_scaler.py").write_text("import torch_is_not_imported_here as t\n\nscaler = t\n")
    (source / "_ema.py").write_text("EMA = 1\n")
    (source / "__pycache__/__init__.pyc").write_bytes(b"")
    monkeypatch.setattr(sys, "path", [str(folder / "installed"), *sys.path])
    (folder / "work").mkdir()
    (folder / "work/train.py").write_text(USING)
    monkeypatch.chdir(folder / "work")
    return source


SMALL = ["amp_runtime/VENDORED.json", "amp_runtime/__init__.py", "amp_runtime/_scaler.py"]


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_writing_copies_what_is_used_beside_the_script(runtime, folder, invoke):
    done = invoke("train.py", "-w", "--vendor")
    assert done.exit_code == 0
    assert "wrote amp_runtime, 3 files of the runtime" in done.stderr
    assert files(folder / "work") == [*SMALL, "train.py"]
    head = (folder / "work/amp_runtime/__init__.py").read_text()
    assert head.startswith("# amp_runtime ") and "`amp-migrate --vendor -w train.py`" in head.replace("\n# ", " ")


def test_output_elsewhere_takes_the_runtime_along(runtime, folder, invoke):
    assert invoke("train.py", "-o", "out", "--vendor").exit_code == 0
    assert files(folder / "work/out") == [*SMALL, "train.py"]


def test_a_diff_only_announces_the_copy(runtime, folder, invoke):
    done = invoke("train.py", "--vendor")
    assert "--vendor will copy what is used of the runtime to amp_runtime" in done.stderr
    assert files(folder / "work") == ["train.py"]


def test_a_folder_that_this_program_did_not_make_is_kept_and_nothing_is_written(runtime, folder, invoke):
    copy = folder / "work/amp_runtime"
    copy.mkdir()
    (copy / "__init__.py").write_text("mine\n")
    done = invoke("train.py", "-w", "--vendor")
    assert done.exit_code == 2
    assert "amp_runtime: exists, and no record says that --vendor made it" in done.stderr
    assert (copy / "__init__.py").read_text() == "mine\n"
    assert (folder / "work/train.py").read_text() == USING


@pytest.mark.parametrize("edit", ["edited", "removed", "added"])
def test_an_edited_copy_is_kept_and_nothing_is_written(runtime, folder, invoke, edit):
    assert invoke("train.py", "-w", "--vendor").exit_code == 0
    (folder / "work/b.py").write_text(USING + "amp.EMA\n")
    file = folder / "work/amp_runtime" / ("_own.py" if edit == "added" else "_scaler.py")
    file.unlink() if edit == "removed" else file.write_text("mine\n")
    before = copies.contents(folder / "work")
    done = invoke("b.py", "-w", "--vendor")
    assert done.exit_code == 2
    assert f"was edited since --vendor made it ({file.name})" in done.stderr
    assert copies.contents(folder / "work") == before


def test_a_copy_of_everything_that_an_earlier_version_made_is_no_obstacle(runtime, folder, invoke):
    assert installed.copy_whole(folder / "work", runtime) is None
    assert invoke("train.py", "-w", "--vendor").exit_code == 0
    assert "amp_runtime/VENDORED.json" not in files(folder / "work")


def test_a_second_run_adds_and_a_third_changes_nothing(runtime, folder, invoke):
    invoke("train.py", "-w", "--vendor")
    (folder / "work/b.py").write_text(USING + "amp.EMA\n")
    assert invoke("b.py", "-w", "--vendor").exit_code == 0
    assert "amp_runtime/_ema.py" in files(folder / "work")
    record = json.loads((folder / "work/amp_runtime/VENDORED.json").read_text())
    assert (record["scripts"], record["names"]) == (["b.py", "train.py"], ["EMA", "scaler.scale"])
    before = copies.contents(folder / "work")
    assert "wrote" not in invoke("train.py", "-w", "--vendor").stderr
    assert copies.contents(folder / "work") == before


def test_a_script_that_was_migrated_before_gets_its_copy_and_what_it_uses_since(runtime, folder, invoke):
    invoke("train.py", "-w")
    assert files(folder / "work") == ["train.py"]
    assert "wrote amp_runtime" in invoke("train.py", "-w", "--vendor").stderr
    with (folder / "work/train.py").open("a") as file:
        file.write("amp.EMA\n")
    assert "--vendor will change amp_runtime" in invoke("train.py", "--vendor").stderr
    assert "wrote amp_runtime" in invoke("train.py", "-w", "--vendor").stderr
    assert "amp_runtime/_ema.py" in files(folder / "work")


def test_a_newer_version_replaces_an_unedited_copy(runtime, folder, invoke):
    invoke("train.py", "-w", "--vendor")
    (runtime / "_scaler.py").write_text("scaler = 2\n")
    invoke("train.py", "-w", "--vendor")
    assert (folder / "work/amp_runtime/_scaler.py").read_text() == "scaler = 2\n"


def test_nothing_is_copied_where_nothing_is_used(runtime, folder, invoke):
    (folder / "work/train.py").write_text("x = 1\n")
    assert invoke("train.py", "-w", "--vendor").exit_code == 0
    assert files(folder / "work") == ["train.py"]


def test_a_failing_copy_leaves_nothing_behind(runtime, folder, monkeypatch, invoke):
    def failing(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(copies.os, "rename", failing)
    done = invoke("train.py", "-w", "--vendor")
    assert "amp_runtime: cannot be written: No space left on device" in done.stderr
    assert files(folder / "work") == ["train.py"]


def test_the_working_directorys_own_copy_is_not_taken_for_the_installed_one(runtime, folder, monkeypatch):
    (folder / "work/amp_runtime").mkdir()
    (folder / "work/amp_runtime/__init__.py").write_text("old\n")
    monkeypatch.setattr(sys, "path", [str(folder / "work"), "", *sys.path])
    assert installed.runtime_folder() == runtime
