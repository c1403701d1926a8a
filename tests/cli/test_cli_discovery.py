"""Which files a folder stands for."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from amp_migrate.problems import UserError
from amp_migrate.run import discovery
from amp_migrate.run.discovery import discover


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


# ---- ignore files as git reads them ------------------------------------------------------------------------


@pytest.fixture
def plain_git(monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def listed_by_git(folder):
    command = ["git", "ls-files", "-z", "-o", "-c", "--exclude-standard", "--", "*.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
    return sorted(name for name in os.fsdecode(done.stdout).split("\0") if name)


@pytest.mark.parametrize(
    "patterns",
    [
        "*.py\n!keep.py",
        "/*\n!/src/\n/src/*\n!/src/keep.py",
        "a/\n!a/keep.py",
        "**/gen.py",
        "src/**\n!src/a/",
        "src/**/gen.py",
        "gen.py   \r\n\\#odd.py\n\\!odd.py\nspace\\ .py\n",
        "\ufeffgen.py",
        "[g-k]*.py\n![!g]eep.py",
        "[[:alpha:]]en.py\nke[\\]e]p.py",
        "[[:punct:]]odd.py\nspace[[:blank:]].py",
        "?.py\nsrc/?/",
        "[unclosed.py",
        "/\n//\n!\n**\n!*/\n!keep.py",
        "src/*/keep.py",
    ],
)
def test_patterns_mean_what_they_mean_to_git(folder, tree, plain_git, patterns):
    names = ("gen.py", "keep.py", "#odd.py", "!odd.py", "space .py", "[unclosed.py")
    tree(*(f"{base}{name}" for base in ("", "a/", "src/", "src/a/", "src/a/b/") for name in names))
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / ".gitignore").write_bytes(patterns.encode())
    assert found(folder) == sorted(listed_by_git(folder), key=lambda name: name.split("/"))


@pytest.mark.parametrize("seed", range(25))
def test_random_patterns_mean_what_they_mean_to_git(folder, plain_git, seed):
    chance = random.Random(seed)
    pieces = ["a", "b", "out", "x.py", "*", "**", "*.py", "?", "[ab]", "o*"]

    def pattern():
        text = "/".join(chance.choice(pieces) for _ in range(chance.choice([1, 1, 1, 2, 3])))
        return chance.choice(["", "", "!"]) + chance.choice(["", "", "/"]) + text + chance.choice(["", "", "/"])

    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    folders = [folder]
    for _ in range(6):
        folders.append(chance.choice(folders) / chance.choice(["a", "b", "out", "src"]))
        folders[-1].mkdir(exist_ok=True)
    for place in folders:
        for name in ("x.py", "y.py"):
            (place / name).touch()
    for place in chance.sample(folders, 3):
        (place / ".gitignore").write_text("\n".join(pattern() for _ in range(chance.randint(1, 4))))
    (folder / ".git/info/exclude").write_text(pattern())
    assert sorted(found(folder)) == listed_by_git(folder)


def test_the_users_own_ignore_file_holds_everywhere(folder, tree, plain_git, monkeypatch, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "git").mkdir()
    (home / "git/ignore").write_text("scratch.py\n")
    (home / "mine").write_text("other.py\n")
    tree("scratch.py", "other.py", "train.py")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    assert found(folder) == ["other.py", "train.py"]
    subprocess.run(["git", "config", "core.excludesFile", str(home / "mine")], cwd=folder, check=True)
    assert found(folder) == ["scratch.py", "train.py"]


def test_a_repository_in_a_repository_has_patterns_of_its_own(folder, tree, plain_git):
    tree(".git/HEAD", "modules/sub/info/x", "sub/gen.py", "sub/local.py", "sub/train.py", "gen.py")
    (folder / ".gitignore").write_text("gen.py\nmodules\n")
    (folder / "sub/.git").write_text("gitdir: ../modules/sub\n")
    (folder / "modules/sub/info/exclude").write_text("local.py\n")
    assert found(folder) == ["sub/gen.py", "sub/train.py"]


def test_a_work_tree_shares_the_patterns_of_its_repository(folder, plain_git):
    options = ["-c", "user.name=n", "-c", "user.email=e@x"]
    subprocess.run(["git", "init", "-q", "repo"], cwd=folder, check=True)
    subprocess.run(["git", *options, "commit", "-q", "--allow-empty", "-m", "x"], cwd=folder / "repo", check=True)
    subprocess.run(["git", "worktree", "add", "-q", "../tree"], cwd=folder / "repo", check=True, capture_output=True)
    (folder / "repo/.git/info/exclude").write_text("local.py\n")
    (folder / "tree/local.py").touch()
    (folder / "tree/train.py").touch()
    assert found(folder, "tree") == ["tree/train.py"]


def test_an_ignored_folder_is_searched_when_it_is_named(folder, tree):
    tree(".git/HEAD", "runs/train.py", "runs/sub/gen.py", "runs/sub/train.py")
    (folder / ".gitignore").write_text("runs/\n")
    (folder / "runs/.gitignore").write_text("gen.py\n")
    assert found(folder, "runs") == ["runs/sub/train.py", "runs/train.py"]


# ---- what is not the project's own -------------------------------------------------------------------------


def passed_over(folder, *paths):
    result = discover([Path(path) for path in paths or ["."]], own_only=True)
    assert result.problems == []
    return [target.path.relative_to(folder).as_posix() for target in result.targets], result.notes


@pytest.mark.parametrize(
    "head",
    [
        "# @generated by a tool\n",
        "# Generated by the protocol buffer compiler.  DO NOT EDIT!\n",
        "#!/usr/bin/env python\n# AUTOGENERATED! DO NOT EDIT! File to edit: nbs/train.ipynb.\n",
        '"""This file was automatically generated from modular_x.py.\n\nDo NOT edit this file manually.\n"""\n',
    ],
)
def test_generated_code_is_passed_over_with_a_note(folder, tree, head):
    tree("train.py")
    (folder / "made.py").write_text(head + "loss.backward()\n")
    names, notes = passed_over(folder)
    assert names == ["train.py"]
    assert notes == ["not searched for scripts, generated (name it to have it migrated): made.py"]
    assert passed_over(folder, "made.py") == (["made.py"], [])


@pytest.mark.parametrize(
    "text",
    [
        "# Do not modify the arguments.\nimport torch\n",
        '"""Train on generated images. Do not edit the seed."""\n',
        "import torch\n# This file was automatically generated. DO NOT EDIT.\n",
        "# Code follows user@generated.org\n",
        "x = 'Generated by me, DO NOT EDIT'\n",
    ],
)
def test_words_like_those_of_generators_are_no_reason(folder, text):
    (folder / "train.py").write_text(text)
    assert passed_over(folder) == (["train.py"], [])


def test_vendored_built_and_minified_code_is_passed_over_with_a_note(folder, tree):
    tree("train.py", "third_party/apex/main.py", "src/vendor/x.py", "build/lib/a.py", "setup.py", "x_pb2.py")
    tree("dist/a.py", "dist/a-1.0.whl", "sub/build/train.py", "sub/dist/train.py")
    (folder / "table.py").write_text("x = [" + "1, " * 4000 + "]\n")
    (folder / "huge.py").write_text("x = 1\n" * 400_000)
    names, notes = passed_over(folder)
    assert names == ["setup.py", "sub/build/train.py", "sub/dist/train.py", "train.py"]
    assert notes == [
        "not searched for scripts, built (name it to have it migrated): build, dist",
        "not searched for scripts, code of others (name it to have it migrated): src/vendor, third_party",
        "not searched for scripts, generated (name it to have it migrated): x_pb2.py",
        "not searched for scripts, larger than 2 MB: huge.py",
        "not searched for scripts, minified (name it to have it migrated): table.py",
    ]
    assert passed_over(folder, "third_party")[0] == ["third_party/apex/main.py"]
    assert len(found(folder)) == 11


def test_very_many_files_and_very_deep_folders_are_bounded_with_a_message(folder, tree, monkeypatch):
    monkeypatch.setattr(discovery, "_MAX_DEPTH", 3)
    monkeypatch.setattr(discovery, "_MAX_FILES", 4)
    tree("a/b/c/d/e.py", "a/b/c/f.py", "train.py")
    names, notes = passed_over(folder)
    assert names == ["a/b/c/f.py", "train.py"]
    assert notes == ["not searched for scripts, more than 3 folders deep: a/b/c/d"]
    tree("1.py", "2.py", "3.py")
    result = discover([Path(".")])
    assert [str(problem) for problem in result.problems] == [
        ".: holds more than 4 Python files; name a folder further down, or exclude some"
    ]
    assert result.targets == []


def test_a_folder_that_may_not_be_searched_is_a_problem(folder, tree, monkeypatch):
    tree("secret/a.py", "train.py")
    real = os.scandir

    def guarded(path):
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(discovery.os, "scandir", guarded)
    result = discover([Path(".")])
    assert [str(problem) for problem in result.problems] == ["secret: cannot be read: Permission denied"]
    assert [target.path.name for target in result.targets] == ["train.py"]


def test_a_file_that_may_not_be_read_is_a_problem(folder, tree, monkeypatch):
    tree("secret.py", "train.py")
    monkeypatch.setattr(discovery.os, "access", lambda path, mode: path.name != "secret.py")
    result = discover([Path(".")])
    assert [str(problem) for problem in result.problems] == ["secret.py: cannot be read: permission denied"]
    assert [target.path.name for target in result.targets] == ["train.py"]


def test_a_pattern_that_is_none_is_the_users_mistake(folder):
    with pytest.raises(UserError, match=r"exclude: .*'!'"):
        discover([Path(".")], exclude=["!"])
