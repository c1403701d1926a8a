"""Which files a folder stands for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from amp_migrate.discovery import discover


@pytest.fixture
def tree(folder):
    def make(*names, **contents):
        for name in names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        for name, text in contents.items():
            (folder / name).write_text(text)

    return make


def found(folder, *paths, **kwargs):
    result = discover([Path(path) for path in paths or ["."]], **kwargs)
    assert result.problems == []
    return [target.path.relative_to(folder).as_posix() for target in result.targets]


def test_a_folder_stands_for_its_python_files_in_order(folder, tree):
    tree("b.py", "a/z.py", "a/b.py", "c.txt", "a.py", "B.py")
    assert found(folder) == ["B.py", "a/b.py", "a/z.py", "a.py", "b.py"]


def test_environments_caches_hidden_folders_and_the_vendored_runtime_are_skipped(folder, tree):
    tree("train.py", ".hidden/a.py", ".b.py", "__pycache__/a.py", "node_modules/x/a.py")
    tree("env/pyvenv.cfg", "env/lib/a.py", "mini/conda-meta/x", "mini/a.py")
    tree("amp_runtime/__init__.py", "amp_runtime/scaler.py", "env2/kept.py")
    assert found(folder) == ["env2/kept.py", "train.py"]


def test_gitignore_files_hold_inner_before_outer(folder, tree):
    tree(".git/HEAD", "sub/keep.py", "sub/gen.py", "gen.py", "out/a.py", "deep/out/b.py", "train.py")
    (folder / ".gitignore").write_text("gen.py\n/out/\n# a comment\n")
    (folder / "sub/.gitignore").write_text("!gen.py\n")
    assert found(folder) == ["deep/out/b.py", "sub/gen.py", "sub/keep.py", "train.py"]
    assert found(folder, "deep") == ["deep/out/b.py"]


def test_gitignore_above_the_named_folder_holds_up_to_the_repository(folder, tree):
    tree("repo/.git/info/none", "repo/sub/gen.py", "repo/sub/local.py", "repo/sub/train.py")
    (folder / ".gitignore").write_text("*.py\n")
    (folder / "repo/.gitignore").write_text("sub/gen.py\n")
    (folder / "repo/.git/info/exclude").write_text("local.py\n")
    assert found(folder, "repo/sub") == ["repo/sub/train.py"]


def test_exclude_is_relative_to_the_configuration(folder, tree):
    tree("legacy/a.py", "sub/legacy/b.py", "train.py", "train_test.py")
    assert found(folder, exclude=["/legacy/", "*_test.py"], root=folder) == ["sub/legacy/b.py", "train.py"]


def test_a_named_file_is_taken_whatever_is_ignored(folder, tree):
    tree(".git/HEAD", "gen.py")
    (folder / ".gitignore").write_text("gen.py\n")
    assert found(folder, "gen.py", exclude=["gen.py"], root=folder) == ["gen.py"]


def test_a_file_reached_twice_comes_once_and_counts_as_named(folder, tree):
    tree("a.py", "b.py")
    (folder / "link.py").symlink_to("a.py")
    (folder / "loop").symlink_to(".")
    result = discover([Path("."), Path("b.py"), Path("link.py")])
    assert [(target.path.name, target.named) for target in result.targets] == [("a.py", True), ("b.py", True)]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("none.py", None, "no such file or directory"),
        ("book.ipynb", b"{}", "notebooks are not supported yet"),
        ("model.pt", b"\0", "is not a Python file (.py)"),
        ("script", b"#!/bin/sh\n", "is not a Python file (.py)"),
    ],
)
def test_what_is_no_python_file_is_refused(folder, name, data, message):
    if data is not None:
        (folder / name).write_bytes(data)
    result = discover([Path(name)])
    assert [str(problem) for problem in result.problems] == [f"{name}: {message}"]
    assert result.targets == []


def test_a_script_without_suffix_is_known_by_its_first_line(folder):
    (folder / "train").write_text("#!/usr/bin/env python3\n")
    assert found(folder, "train") == ["train"]


def test_dead_and_circular_links_are_problems_and_not_crashes(folder):
    (folder / "dead.py").symlink_to("nowhere.py")
    (folder / "circle.py").symlink_to("circle.py")
    result = discover([Path("dead.py"), Path("circle.py")])
    assert len(result.problems) == 2


def test_a_pipe_is_not_waited_for(folder):
    os.mkfifo(folder / "pipe.py")
    result = discover([Path("pipe.py"), Path(".")])
    assert [str(problem) for problem in result.problems] == ["pipe.py: is not a regular file"]
