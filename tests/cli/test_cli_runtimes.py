"""The runtime that amp-migrate brings along, beside another one that scripts import."""

from __future__ import annotations

import sys

import pytest
from amp_migrate import runtimes
from amp_migrate.out import summary
from amp_migrate.vendoring import installed
from cli_standin import TRAIN

USING = "import amp_runtime as amp\n" + TRAIN


def make_runtime(folder, version, code="x = 1\n"):
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("import torch_is_not_imported_here\n" + code + "scaler = x\n")
    if version is not None:
        (folder / "_version.py").write_text(f'"""Told."""\n\n__version__ = "{version}"\n')
    return folder


@pytest.fixture
def own(folder, monkeypatch):
    """The runtime of the wheel, version 0.4.0, which is found at the end of the path."""
    runtime = make_runtime(folder / "site/amp_migrate/own_runtime/amp_runtime", "0.4.0")
    monkeypatch.setattr(runtimes, "_BROUGHT", runtime)
    monkeypatch.setattr(sys, "path", [str(folder / "site"), str(runtime.parent), *sys.path])
    (folder / "work").mkdir()
    (folder / "work/train.py").write_text(USING)
    monkeypatch.chdir(folder / "work")
    return runtime


def test_alone_it_is_what_scripts_import(own):
    assert installed.runtime_folder() == runtimes.imported_runtime() == own
    assert runtimes.other_runtime() is None


def test_the_same_runtime_once_more_is_no_other_one(own, folder):
    make_runtime(folder / "site/amp_runtime", "0.4.0")
    assert runtimes.imported_runtime() == folder / "site/amp_runtime"
    assert runtimes.other_runtime() is None


@pytest.mark.parametrize(
    ("version", "code", "named"),
    [
        ("0.3.0", "x = 1\n", "amp_runtime 0.3.0"),
        ("0.4.0", "x = 2\n", "another build of amp_runtime 0.4.0"),
        (None, "x = 1\n", "amp_runtime of an unknown version"),
    ],
)
def test_another_one_is_told_and_never_copied(own, folder, invoke, version, code, named):
    other = make_runtime(folder / "site/amp_runtime", version, code)
    told = f"note: scripts here import {named} ({other}), and amp-migrate 0.4.0 writes for its own; "
    asked = invoke("--version")
    assert asked.exit_code == 0 and asked.stdout.startswith("amp-migrate, version ") and asked.stdout.count("\n") == 1
    assert told in asked.stderr
    # A diff may be for anywhere.
    assert told not in invoke("train.py").stderr
    written = invoke("train.py", "--vendor", "-o", "out")
    assert written.exit_code == 0 and told not in written.stderr
    copied = (folder / "work/out/amp_runtime/__init__.py").read_text()
    assert copied.endswith("\nx = 1\nscaler = x\n")
    assert told in invoke("train.py", "-w").stderr


def test_the_version_stands_alone_where_there_is_nothing_to_tell(own, invoke):
    assert invoke("--version").stderr == ""


def test_where_the_runtime_is_gone_it_is_said_how_to_get_it(own, invoke, monkeypatch):
    (own / "__init__.py").unlink()
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "runtime" not in entry])
    done = invoke("train.py", "-w", "--vendor")
    assert done.exit_code == 2
    assert "the package amp_runtime, which is to be copied, is missing here: pip install " in done.stderr


@pytest.mark.parametrize("is_here", [True, False])
def test_the_line_that_installs_the_runtime_is_for_where_it_is_missing(folder, invoke, monkeypatch, is_here):
    monkeypatch.setattr(summary, "trains_here", lambda: is_here)
    (folder / "train.py").write_text(f"import amp_runtime as amp\n{TRAIN}")
    done = invoke("train.py", "-w")
    assert done.exit_code == 0 and ("next: where it trains: " in done.stderr) is not is_here


def test_a_runtime_without_torch_trains_nowhere(own, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path[:2])
    assert runtimes.imported_runtime() == own and not runtimes.trains_here()
    (own.parent / "torch").mkdir()
    (own.parent / "torch/__init__.py").touch()
    assert runtimes.trains_here()
