"""Writing into projects: uncommitted work is never lost, a project is written whole or not at all, and --undo."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from amp_migrate import git, projects
from amp_migrate.problems import Problem
from amp_migrate.vendoring import copies
from amp_migrate.write import journal, replacing, transaction
from amp_migrate.write.lock import LockedError, locked
from cli_standin import STANDIN_PATH, TRAIN

pytestmark = pytest.mark.heavy

USING = "import amp_runtime as amp\n" + TRAIN
AFTER = TRAIN.replace("loss.backward()", "amp.scaler.scale(loss).backward()")
NAMES = ("a.py", "b.py", "c.py")


def run_git(folder, *arguments):
    options = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *options, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def plain_git(monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def repository(folder):
    """A repository with three committed scripts."""
    run_git(folder, "init", "-q")
    for name in NAMES:
        (folder / name).write_text(TRAIN)
    run_git(folder, "add", ".")
    run_git(folder, "commit", "-qm", "start")
    return folder


def texts(folder):
    return [(folder / name).read_text() for name in NAMES]


def litter(folder):
    """What a run left in the tree beside the files of the project."""
    return [
        path
        for path in folder.rglob("*")
        if path.name.startswith(".") and path.name != ".git" and ".git" not in path.parts
    ]


def journals(repository):
    return sorted(path.name for path in (repository / ".git/amp-migrate").glob("*.json"))


# ---- uncommitted changes -----------------------------------------------------------------------------------


def change(file):
    file.write_text(TRAIN + "# mine\n")


def stage(file):
    change(file)
    run_git(file.parent, "add", file.name)


def stage_and_change(file):
    stage(file)
    file.write_text(TRAIN + "# mine again\n")


def forget(file):
    run_git(file.parent, "rm", "-q", "--cached", file.name)


def ignore(file):
    forget(file)
    (file.parent / ".gitignore").write_text(file.name)


def rename(file):
    other = file.with_name("c.py")
    other.unlink()
    run_git(file.parent, "mv", "-f", file.name, other.name)
    run_git(file.parent, "mv", other.name, file.name)
    run_git(file.parent, "add", "-A")
    run_git(file.parent, "checkout", "HEAD", other.name)
    change(file)


def conflict(file):
    run_git(file.parent, "checkout", "-qb", "other")
    file.write_text(TRAIN + "# theirs\n")
    run_git(file.parent, "commit", "-qam", "theirs")
    run_git(file.parent, "checkout", "-q", "-")
    file.write_text(TRAIN + "# ours\n")
    run_git(file.parent, "commit", "-qam", "ours")
    command = ["git", "-c", "user.name=n", "-c", "user.email=e@x", "merge", "-q", "other"]
    assert subprocess.run(command, cwd=file.parent, capture_output=True).returncode == 1
    file.write_text(TRAIN + "# half resolved\n")


def test_a_refused_file_has_its_error_and_no_notes(repository, invoke):
    change(repository / "b.py")
    refused = invoke("b.py", "--ddp", "-w")
    assert refused.exit_code == 2 and "error: b.py: " in refused.stderr and "AMP280" not in refused.stderr
    assert "AMP280" in invoke("b.py", "--ddp", "-w", "--allow-dirty").stderr


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (change, "it holds uncommitted changes"),
        (stage, "it holds staged changes"),
        (stage_and_change, "it holds staged and other changes"),
        (forget, "it is not in git yet"),
        (ignore, "git ignores it"),
        (rename, "it holds uncommitted changes"),
        (conflict, "it is in a merge conflict"),
    ],
)
def test_one_file_with_uncommitted_changes_keeps_the_project_from_being_written(repository, invoke, spoil, words):
    spoil(repository / "b.py")
    before = texts(repository)
    done = invoke("a.py", "b.py", "c.py", "-w")
    assert done.exit_code == 2
    advice = "add --allow-dirty" if spoil is ignore else "commit or stash first, or add --allow-dirty"
    assert f"error: b.py: {words}; nothing was written: {advice}\n" in done.stderr
    assert "error: a.py" not in done.stderr
    assert texts(repository) == before
    assert journals(repository) == []
    done = invoke("a.py", "b.py", "c.py", "-w", "--allow-dirty")
    assert done.exit_code == 0
    assert all("amp.scaler" in text for text in texts(repository))


@pytest.mark.parametrize(("pattern", "words"), [("", "it is not in git yet"), ("new.py", "git ignores it")])
def test_a_file_that_git_does_not_hold_is_not_overwritten(repository, invoke, pattern, words):
    (repository / "new.py").write_text(TRAIN)
    (repository / ".gitignore").write_text(pattern)
    done = invoke("new.py", "-w")
    assert done.exit_code == 2
    assert f"error: new.py: {words}; nothing was written" in done.stderr
    assert (repository / "new.py").read_text() == TRAIN


def test_uncommitted_changes_elsewhere_do_not_matter(repository, invoke):
    change(repository / "b.py")
    (repository / "notes.txt").write_text("mine")
    assert invoke("a.py", "-w").exit_code == 0
    assert (repository / "a.py").read_text() == AFTER


def test_a_file_that_would_not_change_may_be_dirty(repository, invoke):
    (repository / "b.py").write_text("import torch\n# mine\n")
    assert invoke(".", "-w").exit_code == 0
    assert (repository / "a.py").read_text() == AFTER


def test_a_diff_needs_no_clean_tree(repository, invoke):
    change(repository / "a.py")
    assert invoke("a.py").exit_code == 0


@pytest.mark.parametrize("name", ["with space/träin.py", "new\nline/t.py", "[ab]*?/:t.py", '"q"/-w.py', "tab\t/t.py"])
def test_odd_names_are_asked_about_literally(repository, invoke, name):
    file = repository / name
    file.parent.mkdir()
    file.write_text(TRAIN)
    run_git(repository, "add", "-A")
    run_git(repository, "commit", "-qm", "odd")
    change(file)
    assert invoke(".", "-w").exit_code == 2
    assert (repository / "a.py").read_text() == TRAIN
    run_git(repository, "commit", "-qam", "clean")
    assert invoke(".", "-w").exit_code == 0
    assert "amp.scaler" in file.read_text()


def test_git_is_asked_once_for_a_repository_and_in_parts_for_very_many_files(repository, monkeypatch):
    calls = []
    real = git._git

    def counting(root, arguments, *rest):
        calls.append(len(arguments))
        return real(root, arguments, *rest)

    monkeypatch.setattr(git, "_git", counting)
    change(repository / "b.py")
    assert list(git.uncommitted([repository / name for name in NAMES]).files) == [repository / "b.py"]
    assert len(calls) == 1
    many = [repository / f"{'x' * 200}{number}.py" for number in range(300)]
    assert git.uncommitted([*many, repository / "b.py"]).files == {repository / "b.py": "it holds uncommitted changes"}
    assert len(calls) > 2


def test_many_dirty_files_are_counted_and_not_all_listed(repository, invoke):
    for number in range(30):
        (repository / f"n{number}.py").write_text(TRAIN)
    done = invoke(".", "-w")
    assert done.stderr.count("it is not in git yet") == 20
    assert "10 more files with uncommitted changes" in done.stderr


def test_submodules_and_work_trees_are_repositories_of_their_own(repository, folder, invoke):
    run_git(repository, "clone", "-q", str(repository), "../library")
    run_git(repository, "submodule", "--quiet", "add", str(repository.parent / "library"), "sub")
    run_git(repository, "commit", "-qm", "submodule")
    run_git(repository, "worktree", "add", "-q", "../tree")
    tree = repository.parent / "tree"
    for place in (repository / "sub", tree):
        change(place / "a.py")
        done = invoke(place / "a.py", "-w")
        assert done.exit_code == 2
        assert "it holds uncommitted changes" in done.stderr
        run_git(place, "checkout", "a.py")
        assert invoke(place / "a.py", "-w").exit_code == 0
        assert invoke("--undo", place).exit_code == 0
        assert (place / "a.py").read_text() == TRAIN
        assert run_git(place, "status", "--porcelain") == ""


def test_without_git_there_is_a_note_and_no_traceback(repository, invoke, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    done = invoke("a.py", "-w")
    assert done.exit_code == 0
    assert "note: git cannot tell whether . holds uncommitted changes: git is not installed" in done.stderr
    assert (repository / "a.py").read_text() == AFTER


def test_a_broken_repository_gives_a_note(folder, invoke):
    (folder / ".git").mkdir()
    (folder / "a.py").write_text(TRAIN)
    done = invoke("a.py", "-w")
    assert done.exit_code == 0
    assert "note: git cannot tell whether . holds uncommitted changes: fatal: not a git repository" in done.stderr


def test_outside_git_there_is_nothing_to_protect(folder, invoke):
    (folder / "a.py").write_text(TRAIN)
    done = invoke("a.py", "-w")
    assert done.exit_code == 0
    assert "git" not in done.stderr.replace("amp-migrate", "")


def test_the_repository_of_a_running_hook_is_not_mistaken_for_this_one(repository, invoke, monkeypatch):
    run_git(repository, "init", "-q", "../other")
    monkeypatch.setenv("GIT_DIR", str(repository.parent / "other/.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository.parent / "other/.git/index"))
    assert invoke("a.py", "-w").exit_code == 0


# ---- undo --------------------------------------------------------------------------------------------------


def test_undo_puts_back_run_after_run(repository, invoke):
    (repository / "a.py").chmod(0o755)
    run_git(repository, "commit", "-qam", "mode")
    assert invoke("a.py", "b.py", "-w").exit_code == 0
    done = invoke("c.py", "-w")
    assert "note: `amp-migrate --undo` puts the files back" in done.stderr
    first = invoke("--undo")
    assert (first.exit_code, first.stdout) == (0, "")
    assert "put back c.py" in first.stderr
    assert "is undone; 1 earlier run can be undone" in first.stderr
    assert texts(repository) == [AFTER, AFTER, TRAIN]
    assert invoke("--undo").exit_code == 0
    assert texts(repository) == [TRAIN, TRAIN, TRAIN]
    assert run_git(repository, "status", "--porcelain") == ""
    third = invoke("--undo")
    assert third.exit_code == 2
    assert "error: nothing to undo: no run of amp-migrate is known that changed /" in third.stderr
    assert litter(repository) == []


def test_undo_outside_git_works_from_the_project_and_from_above(folder, invoke, monkeypatch):
    (folder / "project/lib").mkdir(parents=True)
    for name in ("project/train.py", "project/lib/other.py"):
        (folder / name).write_text(TRAIN)
    assert "amp-migrate --undo project" in invoke("project", "-w").stderr
    assert invoke("--undo", "project").exit_code == 0
    assert (folder / "project/lib/other.py").read_text() == TRAIN
    assert invoke("project", "-w").exit_code == 0
    monkeypatch.chdir(folder / "project/lib")
    assert invoke("--undo").exit_code == 0
    assert (folder / "project/train.py").read_text() == TRAIN
    assert sorted(path.name for path in folder.rglob("*")) == ["lib", "other.py", "project", "train.py"]


def test_undo_of_a_path_takes_the_last_run_that_changed_it(repository, invoke):
    invoke("a.py", "-w")
    invoke("b.py", "-w")
    assert invoke("--undo", "a.py").exit_code == 0
    assert texts(repository) == [TRAIN, AFTER, TRAIN]
    assert invoke("--undo", "c.py").exit_code == 2


def test_undo_refuses_as_a_whole_when_one_file_was_edited(repository, invoke):
    invoke(".", "-w")
    (repository / "b.py").write_text(AFTER + "# mine\n")
    done = invoke("--undo")
    assert done.exit_code == 2
    assert "error: b.py: was edited since; nothing was put back" in done.stderr
    assert texts(repository) == [AFTER, AFTER + "# mine\n", AFTER]
    done = invoke("--undo", "--allow-dirty")
    assert done.exit_code == 0
    assert texts(repository) == [TRAIN, TRAIN, TRAIN]
    [line] = [line for line in done.stderr.splitlines() if "is kept as" in line]
    assert Path(line.split(" is kept as ")[1]).read_text() == AFTER + "# mine\n"


def test_undo_brings_back_removed_files_on_request_and_passes_over_restored_ones(repository, invoke):
    invoke(".", "-w")
    run_git(repository, "checkout", "a.py")
    (repository / "b.py").unlink()
    done = invoke("--undo")
    assert done.exit_code == 2
    assert "b.py: was removed since" in done.stderr
    done = invoke("--undo", "--allow-dirty")
    assert done.exit_code == 0
    assert "put back a.py" not in done.stderr
    assert texts(repository) == [TRAIN, TRAIN, TRAIN]


def test_an_older_run_is_not_undone_under_a_newer_one(repository, invoke):
    invoke("a.py", "b.py", "-w")
    (repository / "b.py").write_text(TRAIN)
    invoke("b.py", "-w", "--allow-dirty")
    (repository / "b.py").write_text(AFTER + "# x\n")
    done = invoke("--undo", "a.py")
    assert done.exit_code == 2
    assert "b.py: was changed by a later run, too; nothing was put back, undo that one first" in done.stderr


def test_undo_can_be_tried(repository, invoke):
    invoke("a.py", "-w")
    done = invoke("--undo", "--check")
    assert done.exit_code == 1
    assert "would put back a.py" in done.stderr
    assert texts(repository) == [AFTER, TRAIN, TRAIN]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-w"], "cannot be combined with -w or -o"),
        (["-o", "x"], "cannot be combined with -w or -o"),
        (["--format", "json"], "prints no document"),
        (["-"], "reads no standard input"),
        (["a.py", "b.py"], "takes one path"),
    ],
)
def test_undo_stands_alone(repository, invoke, arguments, words):
    done = invoke("--undo", *arguments)
    assert done.exit_code == 2
    assert words in done.stderr


def test_undo_fails_as_a_whole(repository, invoke, monkeypatch):
    invoke(".", "-w")
    real = os.replace

    def failing(source, target):
        if os.path.basename(target) == "b.py" and ".tmp" in str(source):
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(replacing.os, "replace", failing)
    done = invoke("--undo")
    assert done.exit_code == 2
    assert texts(repository) == [AFTER, AFTER, AFTER]
    monkeypatch.setattr(replacing.os, "replace", real)
    assert invoke("--undo").exit_code == 0
    assert texts(repository) == [TRAIN, TRAIN, TRAIN]


def test_undo_keeps_encodings_and_newlines(folder, invoke):
    data = ("# coding: gbk\r\n# 训练\r\n" + TRAIN.replace("\n", "\r\n")).encode("gbk")
    (folder / "a.py").write_bytes(data)
    assert invoke("a.py", "-w").exit_code == 0
    assert (folder / "a.py").read_bytes() != data
    assert invoke("--undo").exit_code == 0
    assert (folder / "a.py").read_bytes() == data


def test_only_the_last_runs_are_kept(repository, invoke, monkeypatch):
    monkeypatch.setattr(journal, "KEPT_RUNS", 3)
    for _ in range(5):
        (repository / "a.py").write_text(TRAIN)
        assert invoke("a.py", "-w", "--allow-dirty").exit_code == 0
    assert journals(repository) == ["000003.json", "000004.json", "000005.json"]
    monkeypatch.setattr(journal, "_KEPT_BYTES", 10)
    (repository / "a.py").write_text(TRAIN)
    invoke("a.py", "-w", "--allow-dirty")
    assert journals(repository) == ["000006.json"]


def test_the_journal_says_what_is_needed(repository, invoke):
    invoke("a.py", "-w")
    document = json.loads((repository / ".git/amp-migrate/000001.json").read_text())
    assert document["version"] == 1
    [item] = document["files"]
    assert (item["path"], item["before"], item["mode"] & 0o600) == ("a.py", journal.digest(TRAIN.encode()), 0o600)
    assert item["after"] == journal.digest(AFTER.encode())


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"version": 2}'])
def test_a_damaged_journal_is_named(repository, invoke, data):
    invoke("a.py", "-w")
    (repository / ".git/amp-migrate/000001.json").write_bytes(data)
    done = invoke("--undo")
    assert done.exit_code == 2
    assert "000001.json: this journal is damaged" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_original_is_not_put_back(repository, invoke):
    invoke("a.py", "-w")
    file = repository / ".git/amp-migrate/000001.json"
    document = json.loads(file.read_text())
    document["files"][0]["before"] = "0" * 64
    file.write_text(json.dumps(document))
    assert "the original of a.py is not whole" in invoke("--undo").stderr
    assert (repository / "a.py").read_text() == AFTER


def test_a_moved_repository_keeps_its_runs(repository, folder, invoke, monkeypatch):
    invoke("a.py", "-w")
    moved = folder.parent / (folder.name + "-moved")
    monkeypatch.chdir(folder.parent)
    folder.rename(moved)
    assert invoke("--undo", moved).exit_code == 0
    assert (moved / "a.py").read_text() == TRAIN


# ---- the vendored runtime ----------------------------------------------------------------------------------


def vendored(repository):
    return copies.contents(repository / "amp_runtime")


@pytest.fixture
def runtime(repository, tmp_path_factory, monkeypatch):
    source = tmp_path_factory.mktemp("installed") / "amp_runtime"
    source.mkdir()
    (source / "__init__.py").write_text("scaler = 1\nEMA = 2\n")
    monkeypatch.setattr(sys, "path", [str(source.parent), *sys.path])
    for name in NAMES:
        (repository / name).write_text(USING)
    run_git(repository, "commit", "-qam", "they import the runtime")
    return source


def test_undo_removes_the_copy_of_the_runtime(runtime, repository, invoke):
    assert invoke("a.py", "-w", "--vendor").exit_code == 0
    (repository / "amp_runtime/__pycache__").mkdir()
    (repository / "amp_runtime/__pycache__/x.pyc").write_bytes(b"")
    done = invoke("--undo")
    assert "removed amp_runtime" in done.stderr
    assert run_git(repository, "status", "--porcelain") == ""
    assert not (repository / "amp_runtime").exists()


def test_undo_keeps_a_changed_copy_and_one_that_another_run_needs(runtime, repository, invoke):
    invoke("a.py", "-w", "--vendor")
    invoke("b.py", "-w", "--vendor")
    assert "amp_runtime stays" in invoke("--undo", "a.py").stderr
    assert (repository / "amp_runtime/__init__.py").exists()
    invoke("--undo")
    invoke("c.py", "-w", "--vendor")
    (repository / "amp_runtime/__init__.py").write_text("mine\n")
    invoke("--undo")
    assert (repository / "amp_runtime/__init__.py").read_text() == "mine\n"


def test_undo_takes_what_a_copy_has_got_since_out_again(runtime, repository, invoke):
    (repository / "b.py").write_text(USING + "amp.EMA\n")
    run_git(repository, "commit", "-qam", "one uses more")
    invoke("a.py", "-w", "--vendor")
    small = vendored(repository)
    assert b"EMA = 2" not in small["__init__.py"]
    invoke("b.py", "-w", "--vendor")
    assert b"EMA = 2" in vendored(repository)["__init__.py"]
    assert json.loads(vendored(repository)["VENDORED.json"])["scripts"] == ["a.py", "b.py"]
    assert "put back amp_runtime" in invoke("--undo").stderr
    assert vendored(repository) == small
    assert "removed amp_runtime" in invoke("--undo").stderr
    assert run_git(repository, "status", "--porcelain") == ""


def test_a_run_that_fails_leaves_the_copy_as_it_was(runtime, repository, invoke, monkeypatch):
    (repository / "b.py").write_text(USING + "amp.EMA\n")
    invoke("a.py", "-w", "--vendor", "--allow-dirty")
    small = vendored(repository)
    monkeypatch.setattr(transaction, "replace_all", lambda items, stuck: Problem(items[0].path, "no"))
    assert invoke("b.py", "-w", "--vendor", "--allow-dirty").exit_code == 2
    assert vendored(repository) == small
    assert litter(repository) == []


def test_a_copy_that_a_crash_left_away_is_put_back(runtime, repository, invoke):
    invoke("a.py", "-w", "--vendor")
    (repository / "b.py").write_text(USING + "amp.EMA\n")
    invoke("b.py", "-w", "--vendor", "--allow-dirty")
    (place,) = (store for store in journal.stores_about([repository]))
    last = place.journals()[-1]
    place.mark(last, "writing")
    # As between the two renames: the new one is not in its place, and no file was replaced yet.
    (repository / "b.py").write_text(USING + "amp.EMA\n")
    (repository / "amp_runtime").rename(repository / "gone")
    invoke("c.py", "-w", "--vendor", "--allow-dirty")
    shutil.rmtree(repository / "gone")
    assert json.loads(vendored(repository)["VENDORED.json"])["scripts"] == ["a.py", "c.py"]
    assert b"EMA = 2" not in vendored(repository)["__init__.py"]


def test_a_failing_write_takes_the_copy_of_the_runtime_back(runtime, repository, invoke):
    (repository / "b.py").chmod(0o444)
    run_git(repository, "config", "core.fileMode", "false")
    assert invoke("a.py", "b.py", "-w", "--vendor").exit_code == 2
    assert texts(repository) == [USING, USING, USING]
    assert not (repository / "amp_runtime").exists()
    assert (journals(repository), litter(repository)) == ([], [])


# ---- runs that are cut off ---------------------------------------------------------------------------------

DRIVER = """
    import os, runpy, signal, sys
    real, count = os.replace, 0

    def replace(source, target):
        global count
        if str(target).endswith(".py"):
            count += 1
            if count == {nth}:
                os.kill(os.getpid(), signal.{signal})
        real(source, target)

    os.replace = replace
    sys.argv = ["amp-migrate", {arguments}]
    runpy.run_path({standin!r}, run_name="__main__")
"""


def cut_off(folder, nth, *arguments, how="SIGKILL"):
    """Run the command and kill it before the ``nth`` file is replaced."""
    listed = ", ".join(map(repr, arguments))
    code = textwrap.dedent(DRIVER).format(nth=nth, arguments=listed, standin=STANDIN_PATH, signal=how)
    # A shell starts its background jobs deaf to interrupts.
    hearing = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=60, preexec_fn=hearing)


@pytest.mark.parametrize("nth", [2, 3])
def test_a_killed_run_is_noticed_and_undone(repository, invoke, nth):
    assert cut_off(repository, nth, ".", "-w").returncode == -signal.SIGKILL
    assert AFTER in texts(repository) and TRAIN in texts(repository)
    assert journals(repository) == ["000001.writing.json"]
    done = invoke(".", "-w", "--allow-dirty")
    assert done.exit_code == 2
    assert "a run over . was cut off while it wrote; `amp-migrate --undo` puts its files back" in done.stderr
    assert "warning: a run over . was cut off" in invoke(".").stderr
    done = invoke("--undo")
    assert done.exit_code == 0
    assert "which was cut off, is undone" in done.stderr
    assert texts(repository) == [TRAIN, TRAIN, TRAIN]
    assert (journals(repository), litter(repository)) == ([], [])
    assert run_git(repository, "status", "--porcelain") == ""
    assert invoke(".", "-w").exit_code == 0


def test_a_run_killed_before_its_first_file_is_no_obstacle(repository, invoke):
    assert cut_off(repository, 1, ".", "-w").returncode == -signal.SIGKILL
    assert texts(repository) == [TRAIN, TRAIN, TRAIN]
    assert litter(repository) != []
    done = invoke(".", "-w")
    assert done.exit_code == 0
    assert "left no changes; its journal was removed" in done.stderr
    assert texts(repository) == [AFTER, AFTER, AFTER]
    assert (journals(repository), litter(repository)) == (["000001.json"], [])


def test_a_run_killed_after_its_last_file_counts_as_done(repository, invoke, monkeypatch):
    invoke(".", "-w")
    os.rename(repository / ".git/amp-migrate/000001.json", repository / ".git/amp-migrate/000001.writing.json")
    assert invoke(".", "-w", "--allow-dirty").exit_code == 0
    assert journals(repository) == ["000001.json"]
    assert invoke("--undo").exit_code == 0
    assert texts(repository) == [TRAIN, TRAIN, TRAIN]


def test_a_killed_undo_is_finished_by_the_next(repository, invoke):
    invoke(".", "-w")
    assert cut_off(repository, 2, "--undo").returncode == -signal.SIGKILL
    assert sorted(texts(repository)) == sorted([AFTER, AFTER, TRAIN])
    done = invoke(".", "-w", "--allow-dirty")
    assert done.exit_code == 2
    assert "puts its files back" in done.stderr
    assert invoke("--undo").exit_code == 0
    assert texts(repository) == [TRAIN, TRAIN, TRAIN]
    assert (journals(repository), litter(repository)) == ([], [])


def test_an_interrupted_run_takes_itself_back(repository):
    done = cut_off(repository, 3, ".", "-w", how="SIGINT")
    assert done.returncode == 130
    assert texts(repository) == [TRAIN, TRAIN, TRAIN]
    assert (journals(repository), litter(repository)) == ([], [])


def test_a_killed_run_is_noticed_outside_git_too(folder, invoke):
    for name in NAMES:
        (folder / name).write_text(TRAIN)
    cut_off(folder, 2, ".", "-w")
    assert invoke(".", "-w").exit_code == 2
    assert invoke("--undo").exit_code == 0
    assert texts(folder) == [TRAIN, TRAIN, TRAIN]
    assert litter(folder) == []


# ---- places that cannot be written -------------------------------------------------------------------------


def test_a_full_disk_leaves_everything_as_it_was(repository, spawn):
    (repository / "b.py").write_text(TRAIN + "# long\n" * 2000)
    run_git(repository, "commit", "-qam", "long")
    before = texts(repository)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))  # noqa: E731
    done = spawn(".", "-w", preexec_fn=limit)
    assert done.returncode == 2
    assert b"b.py: cannot be written: File too large" in done.stderr
    assert texts(repository) == before
    assert (journals(repository), litter(repository)) == ([], [])


def test_a_journal_that_does_not_fit_keeps_the_files_from_being_written(repository, spawn):
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))  # noqa: E731
    done = spawn("a.py", "-w", preexec_fn=limit)
    assert done.returncode == 2
    assert b"the journal cannot be written: File too large; nothing was written" in done.stderr
    assert (texts(repository)[0], journals(repository), litter(repository)) == (TRAIN, [], [])


def test_a_git_folder_that_cannot_be_written_is_no_obstacle(repository, state, invoke):
    (repository / ".git/amp-migrate").write_text("")
    assert invoke("a.py", "-w").exit_code == 0
    assert list(state.rglob("000001.json"))
    (repository / ".git/amp-migrate").unlink()
    assert invoke("--undo").exit_code == 0
    assert texts(repository) == [TRAIN, TRAIN, TRAIN]


def test_without_a_journal_nothing_is_written(folder, state, invoke):
    (folder / "a.py").write_text(TRAIN)
    (state / "amp-migrate").write_text("")
    done = invoke("a.py", "-w")
    assert done.exit_code == 2
    assert "no journal can be kept" in done.stderr
    assert "nothing was written" in done.stderr
    assert (folder / "a.py").read_text() == TRAIN


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_folder_of_somebody_else_is_left_alone(folder, state, tmp_path_factory):
    from amp_migrate.write.replacing import Replacement

    (folder / "a.py").write_text(TRAIN)
    folder.chmod(0o755)
    child = os.fork()
    if child == 0:
        os.seteuid(65534)
        problem = replacing.replace_all([Replacement(folder / "a.py", b"new", None, folder / "a.py")])
        os._exit(0 if problem is not None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (folder / "a.py").read_text() == TRAIN


# ---- several at once ---------------------------------------------------------------------------------------


def test_another_run_is_waited_for_and_then_named(repository, invoke, monkeypatch):
    monkeypatch.setattr(transaction.JournalStore, "locked", lambda store: locked(store.folder / "lock", 0.1))
    invoke("a.py", "-w")
    with locked(repository / ".git/amp-migrate/lock"):
        done = invoke("b.py", "-w")
        assert done.exit_code == 2
        assert f"another amp-migrate is writing in . (process {os.getpid()}, since" in done.stderr
        assert invoke("--undo").exit_code == 2
    assert texts(repository) == [AFTER, TRAIN, TRAIN]
    assert invoke("b.py", "-w").exit_code == 0


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    file = tmp_path / "lock"
    code = (
        "import os, signal, sys; from pathlib import Path; from amp_migrate.write.lock import locked\n"
        "with locked(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(file)]).returncode == -signal.SIGKILL
    with locked(file, 0), pytest.raises(LockedError), locked(file, 0):
        pass


def test_runs_at_the_same_time_do_not_mix(repository, invoke):
    command = [sys.executable, STANDIN_PATH, ".", "-w", "--allow-dirty"]
    runs = [subprocess.Popen(command, cwd=repository, stderr=subprocess.DEVNULL) for _ in range(4)]
    assert all(run.wait(60) in (0, 2) for run in runs)
    assert texts(repository) == [AFTER, AFTER, AFTER]
    assert invoke("--undo").exit_code == 0
    assert texts(repository) == [TRAIN, TRAIN, TRAIN]
    assert litter(repository) == []


# ---- which files belong together ---------------------------------------------------------------------------


def test_scripts_of_one_project_belong_together(folder):
    (folder / "repo/sub").mkdir(parents=True)
    (folder / "repo/.git").mkdir()
    (folder / "plain/lib").mkdir(parents=True)
    files = [folder / name for name in ("repo/a.py", "repo/sub/b.py", "plain/c.py", "plain/lib/d.py")]
    a, b, c, d = files
    assert projects.together(files, []) == [[c, d], [a, b]]
    assert projects.together(files, [[a, c]]) == [[c, d, a, b]]


# ---- code that is nested too deeply ------------------------------------------------------------------------

SCRIPT = """\
import torch
{imports}
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in torch.utils.data.DataLoader([(torch.zeros(4), 1)] * 8, batch_size=4):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""


def table(branches):
    """A function as programs write them: one branch under the other."""
    tests = "".join(f"    elif v == {number}:\n        return {number}\n" for number in range(1, branches))
    return f"def pick(v):\n    if v == 0:\n        return 0\n{tests}"


@pytest.fixture
def analysis(folder, monkeypatch):
    from amp_rules.plan.migration import migrate

    monkeypatch.setattr("amp_rules.migrate", migrate)


@pytest.mark.parametrize("name", ["train.py", "tables.py"])
def test_a_long_chain_of_branches_is_not_nested_too_deeply(folder, invoke, analysis, name):
    (folder / "train.py").write_text(SCRIPT.format(imports="import tables\ntables.pick(3)"))
    (folder / "tables.py").write_text(table(3))
    (folder / name).write_text(table(1500) + (folder / name).read_text())
    done = invoke("train.py", "-w")
    assert done.exit_code == 0
    assert "amp.scaler" in (folder / "train.py").read_text()


@pytest.mark.parametrize("name", ["train.py", "tables.py"])
def test_deeply_nested_code_is_named_and_the_other_scripts_go_on(folder, invoke, analysis, name):
    (folder / "train.py").write_text(SCRIPT.format(imports="import tables\ntables.pick(3)"))
    (folder / "tables.py").write_text(table(3))
    (folder / "other.py").write_text(SCRIPT.format(imports=""))
    (folder / name).write_text(f"deep = x{'[0]' * 100_000}\n" + (folder / name).read_text())
    done = invoke("train.py", "other.py", "-w")
    assert f"{name}: the code is nested too deeply" in done.stderr or (
        f"leads to {name}, which cannot be read: the code is nested too deeply" in done.stderr
    )
    assert "internal error" not in done.stderr
    assert "amp.scaler" in (folder / "other.py").read_text()
    assert "amp.scaler" not in (folder / "train.py").read_text()


def test_a_run_below_the_working_directory_is_named_and_not_undone(folder, invoke, monkeypatch):
    project = folder / "project"
    project.mkdir()
    run_git(project, "init", "-q")
    (project / "train.py").write_text(TRAIN)
    assert invoke("project/train.py", "-w", "--allow-dirty").exit_code == 0
    written = (project / "train.py").read_text()
    done = invoke("--undo")
    assert done.exit_code == 2
    assert "nothing to undo" in done.stderr
    assert (project / "train.py").read_text() == written != TRAIN
    assert invoke("--undo", "project").exit_code == 0
    assert (project / "train.py").read_text() == TRAIN


def test_a_run_above_the_working_directory_is_named_and_not_undone(folder, invoke, monkeypatch):
    (folder / "lone.py").write_text(TRAIN)
    project = folder / "project"
    project.mkdir()
    (project / "train.py").write_text(TRAIN)
    assert invoke("lone.py", "-w").exit_code == 0
    written = (folder / "lone.py").read_text()
    for in_git in (False, True):
        if in_git:
            run_git(project, "init", "-q")
        monkeypatch.chdir(project)
        done = invoke("--undo")
        assert done.exit_code == 2
        assert "nothing to undo in this project; the last run above this folder changed" in done.stderr
        assert (folder / "lone.py").read_text() == written != TRAIN
        assert invoke("--undo", "--check").exit_code == 2
    assert invoke("train.py", "-w", "--allow-dirty").exit_code == 0
    assert invoke("--undo").exit_code == 0
    assert (project / "train.py").read_text() == TRAIN
    assert invoke("--undo").exit_code == 2
    monkeypatch.chdir(folder)
    assert invoke("--undo").exit_code == 0
    assert (folder / "lone.py").read_text() == TRAIN


def test_a_check_of_an_undo_says_that_nothing_is_left_to_put_back(repository, invoke):
    text = (repository / "a.py").read_text()
    invoke("a.py", "-w", "--allow-dirty")
    (repository / "a.py").write_text(text)
    done = invoke("--undo", "--check")
    assert "would forget the run of" in done.stderr
