"""The command as a whole: what goes where, exit codes, and files that cannot be dealt with."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from cli_standin import STANDIN_PATH, TRAIN

AFTER = TRAIN.replace("loss.backward()", "amp.scaler.scale(loss).backward()")
DIFF = """\
diff --git a/train.py b/train.py
--- a/train.py
+++ b/train.py
@@ -1,3 +1,3 @@
 import torch
 loss = net(x)
-loss.backward()
+amp.scaler.scale(loss).backward()
"""


@pytest.fixture
def train(folder):
    file = folder / "train.py"
    file.write_text(TRAIN)
    return file


def test_the_diff_goes_to_stdout_and_the_summary_to_stderr(train, invoke):
    done = invoke("train.py", "--ddp")
    assert (done.exit_code, done.stdout) == (0, DIFF)
    assert done.stderr == (
        "train.py: precision migrated, distribution migrated\n"
        "  note: train.py:2: AMP280 batch-of-all-ranks: a note\n"
        "1 edit in 1 file: AMP101 scale-loss 1\n"
        "next: read the diff, then write it with -w, or pipe it into `git apply`\n"
    )
    assert train.read_text() == TRAIN


def test_writing_tells_how_to_launch(train, invoke):
    done = invoke("train.py", "--ddp", "-w")
    assert "torchrun --standalone --nproc-per-node N train.py" in done.stderr
    assert "AMP_OPT_LEVEL=O0 python train.py" in done.stderr


def test_output_elsewhere_tells_how_to_launch_what_was_written(train, invoke):
    assert "torchrun --standalone --nproc-per-node N out/train.py" in invoke("train.py", "--ddp", "-o", "out").stderr


def test_a_refusal_names_place_reason_and_recipe(folder, invoke):
    (folder / "train.py").write_text(TRAIN + "# DECLINE\n")
    done = invoke("train.py")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == (
        "train.py: precision declined, distribution declined\n"
        "  train.py:4: AMP900 odd-step: `loss` is not understood\n"
        "      Write this by hand:\n"
        "          optimizer.step()\n"
        "nothing to change\n"
    )


def test_quiet_says_only_errors(train, folder, invoke):
    (folder / "bad.py").write_text("x = (\n")
    done = invoke("train.py", "bad.py", "-q")
    assert (done.exit_code, done.stdout) == (2, DIFF)
    assert done.stderr.splitlines() == ["error: bad.py:1:5: syntax error: '(' was never closed"]


def test_verbose_lists_every_edit(train, invoke):
    assert "  train.py:3:1: AMP101 scale-loss: scales dynamic\n" in invoke("train.py", "-v").stderr


def test_check_tells_by_its_exit_code_whether_anything_is_due(train, invoke):
    due = invoke("train.py", "--check")
    assert (due.exit_code, due.stdout) == (1, "")
    assert "would change train.py" in due.stderr
    assert train.read_text() == TRAIN
    train.write_text(AFTER)
    assert invoke("train.py", "--check").exit_code == 0


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("two.py", b"print 'loss'\n", "two.py:1: Python 2: convert with 2to3 first"),
        ("bad.py", b"x = 1\ndef f(:\n", "bad.py:2:7: syntax error: "),
        ("latin.py", b"x = '\xe9'\n", "latin.py:1: holds the byte 0xe9, which is not UTF-8"),
        ("null.py", b"\0\0", "null.py:1: holds null bytes"),
        ("empty.py", b" \n", "empty.py: is empty"),
        ("deep.py", b"x" + b"[0]" * 100_000, "deep.py: the code is nested too deeply"),
        ("deeper.py", b"loss.backward() # DEEP" + b"\nx" + b".y" * 200, "deeper.py: the code is nested too deeply"),
        ("endless.py", b"loss.backward() # DEEP", "endless.py: internal error: RecursionError; please report"),
        ("book.ipynb", b"{}", "book.ipynb: is not a notebook: it has no cells"),
        ("none.py", None, "none.py: no such file or directory"),
        (
            "boom.py",
            b"loss.backward() # BOOM",
            "boom.py: internal error: KeyError: 'no such role'; please report",
        ),
        ("wrong.py", b"loss.backward() # UNPARSABLE", "wrong.py: internal error: RuntimeError: the new text"),
    ],
)
def test_a_bad_file_is_named_and_left_alone_and_the_others_go_on(train, folder, invoke, name, data, message):
    if data is not None:
        (folder / name).write_bytes(data)
    done = invoke(name, "train.py", "-w")
    assert done.exit_code == 2
    assert f"error: {message}" in done.stderr
    assert "Traceback" not in done.stderr
    assert train.read_text() == AFTER
    if data is not None:
        assert (folder / name).read_bytes() == data


def test_the_traceback_of_an_internal_error_is_shown_on_request(folder, invoke):
    (folder / "boom.py").write_text("loss.backward() # BOOM\n")
    done = invoke("boom.py", "-v")
    assert "Traceback" in done.stderr
    assert "raise KeyError" in done.stderr


def test_a_file_without_read_permission_is_named(train, folder, invoke, monkeypatch):
    (folder / "secret.py").write_text(TRAIN)
    real = Path.read_bytes

    def guarded(path):
        if path.name == "secret.py":
            # Root, as whom the tests may run, is never refused by the system.
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", guarded)
    done = invoke("secret.py", "train.py")
    assert (done.exit_code, done.stdout) == (2, DIFF)
    assert "secret.py: cannot be read: permission denied" in done.stderr


def test_a_shared_module_is_rewritten_once(folder, invoke):
    for name in ("a.py", "b.py"):
        (folder / name).write_text("import shared\n" + TRAIN)
    (folder / "shared.py").write_text(TRAIN)
    done = invoke("a.py", "b.py", "shared.py")
    assert done.exit_code == 0
    assert done.stdout.count("+++ b/shared.py") == 1
    assert done.stdout.count("+amp.scaler") == 3
    assert "3 edits in 3 files" in done.stderr


def test_walked_files_without_a_training_step_are_silent(train, folder, invoke):
    (folder / "utils.py").write_text("x = 1\n")
    (folder / "__init__.py").write_text("")
    done = invoke(".")
    assert (done.exit_code, done.stdout) == (0, DIFF)
    assert "utils" not in done.stderr
    assert "utils.py: no training step found" in invoke("utils.py").stderr


def test_a_folder_without_python_is_a_warning(folder, invoke):
    (folder / "docs").mkdir()
    done = invoke("docs")
    assert done.exit_code == 0
    assert "warning: no Python files below docs" in done.stderr


def test_a_path_of_no_characters_is_not_the_working_directory(train, invoke):
    done = invoke("", "-w", "--allow-dirty")
    assert (done.exit_code, train.read_text()) == (2, TRAIN)
    assert "a path is empty" in done.stderr


def test_a_file_that_may_not_be_read_stops_no_other(train, folder, invoke, monkeypatch):
    (folder / "secret.py").write_text(TRAIN)
    real = Path.read_bytes

    def guarded(path):
        if path.name == "secret.py":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", guarded)
    monkeypatch.setattr("click.types.os.access", lambda path, mode: False)
    done = invoke("secret.py", "train.py")
    assert (done.exit_code, done.stdout) == (2, DIFF)
    assert "error: secret.py: cannot be read: permission denied" in done.stderr


def test_links_that_lead_in_a_circle_are_named(train, folder, invoke):
    (folder / "a.py").symlink_to("b.py")
    (folder / "b.py").symlink_to("a.py")
    done = invoke("a.py", "train.py")
    assert (done.exit_code, done.stdout) == (2, DIFF)
    assert "error: a.py: " in done.stderr and "internal error" not in done.stderr
    assert "no run of amp-migrate is known that changed a.py" in invoke("a.py", "--undo").stderr


def test_a_bound_of_no_number_is_refused(train, invoke):
    done = invoke("train.py", "--timeout", "nan")
    assert done.exit_code == 2 and "--timeout needs a number of seconds" in done.stderr


def test_what_is_to_be_done_next_can_be_done(train, folder, invoke):
    assert "git apply" in invoke("train.py").stderr
    for arguments in (("--format", "json"), ("--format", "cells")):
        assert "next: " not in invoke("train.py", *arguments).stderr
    assert "next: " not in invoke("-", input=TRAIN).stderr
    train.rename(folder / "my train.py")
    assert "AMP_OPT_LEVEL=O0 python 'my train.py'\n" in invoke("my train.py", "-w", "--allow-dirty").stderr


def test_json_is_complete_and_repeatable(train, folder, invoke):
    (folder / "b.py").write_text(TRAIN + "# DECLINE\n")
    (folder / "c.py").write_text("x = (\n")
    done = invoke("train.py", "b.py", "c.py", "--format", "json")
    assert done.exit_code == 2
    document = json.loads(done.stdout)
    assert document["version"] == 1
    assert document["entries"][1] == {
        "path": "train.py",
        "precision": "migrated",
        "distribution": "not requested",
        "changes": ["train.py"],
        "notes": [
            {
                "code": "AMP280",
                "name": "batch-of-all-ranks",
                "path": "train.py",
                "cell": None,
                "line": 2,
                "text": "a note",
            }
        ],
    }
    assert document["files"] == [{"path": "train.py", "encoding": "utf-8", "diff": DIFF, "cells": []}]
    assert document["edits"] == [
        {
            "code": "AMP101",
            "name": "scale-loss",
            "path": "train.py",
            "cell": None,
            "start": {"line": 3, "column": 1},
            "end": {"line": 3, "column": 16},
            "message": "scales dynamic",
        }
    ]
    [refusal] = document["refusals"]
    assert (refusal["path"], refusal["unit"], refusal["start"]["line"]) == ("b.py", "precision", 4)
    assert refusal["reason"] == "`loss` is not understood"
    assert refusal["recipe"].startswith("Write this by hand")
    assert [(item["path"], item["line"]) for item in document["errors"]] == [("c.py", 1)]
    assert document["summary"]["edits_by_code"] == {"AMP101": 1}
    assert invoke("b.py", "c.py", "train.py", "--format", "json").stdout == done.stdout


def test_standard_input_gives_a_diff_or_the_text(folder, invoke):
    assert invoke("-", input=TRAIN).stdout == DIFF.replace("train.py", "<stdin>")
    assert invoke("-", "--stdin-filename", "train.py", input=TRAIN).stdout == DIFF
    for option in (["-w"], ["-o", "-"]):
        done = invoke("-", *option, input=TRAIN)
        assert (done.exit_code, done.stdout) == (0, AFTER)
        assert "next:" not in done.stderr
    assert list(folder.iterdir()) == []


def test_standard_input_that_needs_no_change_is_passed_on(invoke):
    data = "# coding: gbk\n# 训练\r\nx = 1".encode("gbk")
    assert invoke("-", "-w", input=data).stdout_bytes == data


def test_standard_input_that_is_no_python_gives_an_error_and_no_text(invoke):
    done = invoke("-", "-w", input="x = (\n")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "error: <stdin>:1:5: syntax error" in done.stderr
    assert "<stdin>:1: holds the byte 0xff" in invoke("-", input=b"\xff").stderr


def test_output_to_stdout_takes_one_file_only(train, folder, invoke):
    assert invoke("train.py", "-o", "-").stdout == AFTER
    (folder / "shared.py").write_text(TRAIN)
    train.write_text("import shared\n" + TRAIN)
    done = invoke("train.py", "-o", "-")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "shared.py" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train.py", "-", "-w"], "cannot be combined with other paths"),
        (["train.py", "-w", "-o", "x"], "give one of them"),
        (["train.py", "-w", "--check"], "--check writes nothing"),
        (["train.py", "--stdin-filename", "x.py"], "goes with '-' only"),
        (["train.py", "-o", "-", "--format", "json"], "cannot take both"),
        (["train.py", "-o", ""], "-o needs a path"),
        (["train.py", "--loss-scale", "0"], "'0' is neither 'dynamic' nor a positive number"),
        (["train.py", "--loss-scale", "inf"], "'inf' is neither"),
        (["train.py", "--opt-level", "O9"], "'O9' is not one of"),
        ([], "Missing argument"),
        (["train.py", "--dry-run"], "No such option: --dry-run; nothing is written without -w."),
        (["train.py", "--fp16"], "No such option: --fp16; the type is --dtype fp16, and the level --opt-level."),
    ],
)
def test_wrong_options_are_errors(train, invoke, arguments, words):
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert train.read_text() == TRAIN


def test_the_level_may_be_written_small(train, invoke):
    assert invoke("train.py", "--opt-level", "o2").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "environment", "coloured"),
    [([], {}, False), (["--color", "always"], {"NO_COLOR": "1"}, True), (["--color", "never"], {}, False)],
)
def test_colour_when_nobody_watches(train, spawn, arguments, environment, coloured):
    done = spawn("train.py", *arguments, env=environment)
    assert (b"\x1b[" in done.stdout, b"\x1b[" in done.stderr) == (coloured, coloured)


@pytest.mark.parametrize(
    ("environment", "arguments", "coloured"),
    [
        ({}, [], True),
        ({"NO_COLOR": "1"}, [], False),
        ({}, ["--color", "never"], False),
        ({"TERM": "dumb"}, [], False),
    ],
)
def test_colour_on_a_terminal(train, folder, environment, arguments, coloured):
    master, slave = pty.openpty()
    base = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    command = [sys.executable, STANDIN_PATH, "train.py", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**base, "TERM": "xterm", **environment},
        stdout=slave,
        stderr=slave,
        timeout=60,
    )
    os.close(slave)
    output = os.read(master, 100_000)
    os.close(master)
    assert done.returncode == 0
    assert b"amp.scaler" in output
    assert (b"\x1b[" in output) == coloured


def test_bytes_on_stdout_are_those_of_the_file(folder, spawn, git_apply):
    data = ("# coding: gbk\n# 训练\r\n" + TRAIN).encode("gbk")
    (folder / "train.py").write_bytes(data)
    done = spawn("train.py", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert done.returncode == 0
    git_apply(done.stdout)
    assert (folder / "train.py").read_bytes() == data.replace(b"loss.b", b"amp.scaler.scale(loss).b")


def test_a_diff_from_a_subfolder_of_a_repository_applies(folder, spawn, git_apply):
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / "src dir").mkdir()
    (folder / "src dir/träin.py").write_text(TRAIN, encoding="utf-8")
    done = spawn("src dir")
    git_apply(done.stdout, cwd=folder / "src dir")
    assert (folder / "src dir/träin.py").read_text(encoding="utf-8") == AFTER


def test_a_full_disk_behind_stdout_is_an_error(train, spawn):
    with open("/dev/full", "wb") as full:
        done = spawn("train.py", stdout=full)
    assert done.returncode == 2
    assert b"error: standard output cannot be written: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def test_nobody_reading_on_is_no_error(train, folder, spawn):
    reader, writer = os.pipe()
    os.close(reader)
    done = spawn("train.py", stdout=writer)
    os.close(writer)
    assert done.returncode == 0
    assert b"Error" not in done.stderr


def test_help_names_the_exit_codes_and_version_names_the_program(spawn):
    assert b"Exit status:" in spawn("--help").stdout
    assert spawn("--version").stdout.startswith(b"amp-migrate, version 0.")


def test_the_module_runs_as_the_program(folder):
    done = subprocess.run([sys.executable, "-m", "amp_migrate", "--help"], cwd=folder, capture_output=True)
    assert done.stdout.startswith(b"Usage: amp-migrate ")


def test_an_option_without_its_dashes_is_asked_for(folder, invoke):
    done = invoke("undo")
    assert done.exit_code == 2 and "undo: no such file or directory. Did you mean amp-migrate --undo?" in done.stderr
    (folder / "check").mkdir()
    assert "Did you mean" not in invoke("check").stderr


def test_a_script_that_is_misspelled_is_asked_for(folder, invoke):
    (folder / "main.py").write_text(TRAIN)
    assert "mian.py: no such file or directory; did you mean main.py?" in invoke("mian.py").stderr
    assert "mian.py: there is no such script; did you mean main.py?" in invoke("verify", "mian.py").stderr


def test_where_the_project_lists_torch_the_runtime_is_to_be_listed(folder, invoke):
    def next_steps(**files):
        for name in ("requirements.txt", "pyproject.toml", "setup.py", "Pipfile", "environment.yml"):
            (folder / name).unlink(missing_ok=True)
        for name, text in files.items():
            (folder / name.replace("_", ".")).write_text(text)
        (folder / "train.py").write_text(f"import amp_runtime as amp\n{TRAIN}")
        lines = invoke("train.py", "-w", "--allow-dirty").stderr.splitlines()
        return [line for line in lines if "list the runtime" in line]

    (line,) = next_steps(requirements_txt="numpy\ntorch>=2.4\n")
    assert line.startswith("next: list the runtime in requirements.txt, where torch is: ")
    (line,) = next_steps(setup_py='setup(install_requires=["torch"])\n')
    assert line.startswith("next: list the runtime in setup.py, where torch is: amp-runtime, for pip `")
    index = '[[source]]\nurl = "https://download.pytorch.org/whl/torch_stable.html"\nname = "pytorch"\n'
    assert not next_steps(Pipfile=f'{index}\n[packages]\nnumpy = "*"\n')
    (line,) = next_steps(Pipfile=f'{index}\n[packages]\ntorch = "*"\n')
    assert "list the runtime in Pipfile, where torch is: amp-runtime" in line
    (line,) = next_steps(environment_yml="dependencies:\n  - pytorch>=2.4\n  - pip:\n    - timm\n")
    assert line.startswith("next: list the runtime in environment.yml, below `- pip:`: ")
    (line,) = next_steps(environment_yml="dependencies:\n  - pytorch>=2.4\n  - pip\n")
    assert "in environment.yml, below `- pip:`, which its dependencies do not have yet: " in line
    assert next_steps(requirements_txt="numpy=1.19.5=pypi_0\npytorch=2.4.0=py3.11_cuda\n") == []
    assert next_steps() == []
    assert next_steps(requirements_txt="numpy  # for torch\n") == []
    assert next_steps(requirements_txt="torchvision\n") == []
    assert next_steps(requirements_txt="torch\namp-runtime\n") == []
    (folder / "train.py").write_text(TRAIN)  # where no file imports it, none needs it
    assert "list the runtime" not in invoke("train.py", "-w", "--allow-dirty").stderr
    (line,) = next_steps(pyproject_toml='[project]\ndependencies = ["torch>=2.4"]\n')
    assert "pyproject.toml" in line
