"""The command as a whole: what goes where, exit codes, and files that cannot be dealt with."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys

import pytest
from lint_standin import STANDIN_PATH

FILL = "y = fill(x, 1e9)\n"


def codes(done):
    return [item["code"] for item in json.loads(done.stdout)["findings"]]


def test_findings_go_to_stdout_and_the_summary_to_stderr(write, invoke):
    write(train=FILL)
    done = invoke("train.py", "--format", "concise")
    assert done.exit_code == 1
    assert done.stdout == "train.py:1:5: AMP601 [const-overflow-fill] [*] `fill(x, 1000000000.0)` is wrong\n"
    assert done.stderr == "1 finding in 1 file; 1 fixable with --fix\n"


def test_a_clean_file_gives_zero(write, invoke):
    write(train="x = 1\n")
    done = invoke("train.py")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "nothing found in 1 file\n")


def test_the_summary_says_what_could_not_be_judged(write, invoke):
    write(good="x = 1\n", bad="x = (\n", fine=FILL)
    bad = "error: bad.py:1:5: syntax error: '(' was never closed\n"
    missing = "error: none.py: no such file or directory\n"
    ends = {
        ("good.py", "bad.py"): f"{bad}nothing found in 1 file; 1 file could not be judged\n",
        ("bad.py", "none.py"): f"{missing}{bad}nothing judged; 2 files could not be judged\n",
        ("fine.py", "bad.py"): f"{bad}1 finding in 1 file; 1 fixable with --fix; 1 file could not be judged\n",
    }
    for names, expected in ends.items():
        done = invoke(*names, "--format", "concise")
        assert (done.exit_code, done.stderr) == (2, expected)


@pytest.mark.parametrize(("wrong", "meant"), [("--optlevel", "--opt-level"), ("--jbos", "--jobs")])
def test_of_options_that_are_alike_the_nearest_is_named(write, invoke, wrong, meant):
    write(train=FILL)
    done = invoke("train.py", wrong, "1")
    assert done.exit_code == 2
    assert f"Did you mean '{meant}'?" in done.stderr or f"Did you mean {meant}?" in done.stderr


def test_jobs_have_a_short_name(write, invoke):
    write(train="x = 1\n")
    assert invoke("train.py", "-j", "1").exit_code == 0
    assert "'many' is neither 'auto' nor a whole number" in invoke("train.py", "-j", "many").stderr


def test_exit_zero_hides_findings_but_no_errors(write, invoke):
    write(train=FILL)
    assert invoke("train.py", "--exit-zero").exit_code == 0
    assert invoke("train.py", "none.py", "--exit-zero").exit_code == 2


def test_quiet_says_findings_only(write, invoke):
    write(train=FILL)
    assert invoke("train.py", "-q").stderr == ""


def test_only_what_is_severe_enough_is_reported_and_counted(write, invoke):
    write(train="log(x)\n")
    assert invoke("train.py", "--severity", "error").exit_code == 0
    assert invoke("train.py", "--severity", "warning").exit_code == 1
    assert invoke("train.py", "--min-severity", "error").stdout == ""


def test_the_mode_reaches_the_rules(write, invoke):
    write(train="step(x)\nreduce(x)\n")
    assert codes(invoke("train.py", "--format", "json")) == []
    done = invoke("train.py", "--opt-level", "o3", "--dtype", "bf16", "--device", "cpu", "--ddp", "--format", "json")
    assert codes(done) == ["AMP902", "AMP901"]
    document = json.loads(done.stdout)
    assert document["mode"] == {"opt_level": "O3", "dtype": "bf16", "device": "cpu", "ddp": True}
    assert document["findings"][0]["mode"] == "O3 bf16 cpu ddp"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("two.py", b"print 'loss'\n", "two.py:1: Python 2: convert with 2to3 first"),
        ("bad.py", b"x = 1\ndef f(:\n", "bad.py:2:7: syntax error: "),
        ("latin.py", b"x = '\xe9'\n", "latin.py:1: holds the byte 0xe9, which is not UTF-8"),
        ("null.py", b"\0\0", "null.py:1: holds null bytes"),
        ("none.py", None, "none.py: no such file or directory"),
        (
            "boom.py",
            b"BOOM\n",
            "boom.py: internal error: KeyError: 'no such role'; please report; the file was skipped",
        ),
        ("notes.txt", b"x", "notes.txt: is not a Python file"),
    ],
)
def test_a_bad_file_is_named_and_the_others_go_on(write, invoke, name, data, message):
    write(train=FILL)
    if data is not None:
        write({name: data})
    done = invoke(name, "train.py", "--format", "concise")
    assert done.exit_code == 2
    assert f"error: {message}" in done.stderr
    assert "train.py:1:5: AMP601" in done.stdout
    assert "Traceback" not in done.stderr


def test_verbose_says_what_was_done_and_shows_the_traceback_of_an_internal_error(write, invoke):
    write(train="BOOM\n", b="x = 1\n")
    assert "    Traceback" in invoke("train.py", "-v").stderr
    assert "mode O1 fp16 cuda; 7 rules; 2 files, 1 from the cache\n" in invoke(".", "-v").stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'PATH...': a file or a folder."),
        (["-", "a.py"], "'-' stands for standard input"),
        (["a.py", "--stdin-filename", "b.py"], "--stdin-filename goes with '-' only"),
        (["a.py", "--fix", "--diff"], "give one of them"),
        (["a.py", "--write-baseline", "b", "--fix"], "no --fix or --diff with it"),
        (["a.py", "--opt-level", "O0"], "'O0' is not one of"),
        (["a.py", "--jobs", "-1"], "'-1' is neither 'auto' nor a whole number"),
        (["a.py", "--jobs", "many"], "'many' is neither"),
        (["a.py", "--timeout", "-1"], "--timeout"),
        (["a.py", "--format", "xml"], "'xml' is not one of"),
        (["a.py", "--config", "none.toml"], "none.toml: cannot be read"),
        (["a.py", "--baseline", "none.json"], "none.json: cannot be read"),
        (["-", "--write-baseline", "b.json"], "standard input has no place"),
    ],
)
def test_wrong_options_are_errors(write, invoke, arguments, message):
    write(a=FILL)
    done = invoke(*arguments, input="")
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_standard_input_is_judged_where_its_name_says(write, invoke):
    write({"pyproject.toml": "[tool.amp-lint.per-file-ignores]\n'tests/*' = ['AMP601']\n"})
    done = invoke("-", "--format", "concise", input=FILL)
    assert done.stdout.startswith("<stdin>:1:5: AMP601")
    assert invoke("-", "--stdin-filename", "tests/a.py", input=FILL).exit_code == 0
    assert invoke("-", "--stdin-filename", "src/a.py", input=FILL).exit_code == 1


def test_standard_input_that_is_no_python_is_an_error(invoke):
    done = invoke("-", input="x = (\n")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "error: <stdin>:1:5: syntax error" in done.stderr


def test_folders_are_walked_as_git_sees_them(write, invoke):
    (write({".git/HEAD": ""})).parent.mkdir(exist_ok=True)
    write({".gitignore": "build/\n", "build/a.py": FILL, "src/b.py": FILL, "src/.hidden.py": FILL, "src/c.txt": FILL})
    done = invoke(".", "--format", "concise")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["src/b.py"]


def test_a_folder_without_python_is_a_warning(folder, invoke):
    (folder / "docs").mkdir()
    done = invoke("docs")
    assert done.exit_code == 0
    assert "warning: no Python files below docs" in done.stderr


def test_output_goes_to_a_file_at_once_and_without_colour(write, invoke, folder):
    write(train=FILL)
    done = invoke("train.py", "--output-file", "out.txt", "--color", "always", "--format", "concise")
    assert (done.exit_code, done.stdout) == (1, "")
    assert (folder / "out.txt").read_text().startswith("train.py:1:5: AMP601")
    (folder / "out.txt").chmod(stat.S_IREAD)
    done = invoke("train.py", "--output-file", "out.txt")
    assert done.exit_code == 2
    assert "out.txt: is read-only" in done.stderr
    assert list(folder.glob(".*.tmp")) == []


def test_statistics_count_by_rule(write, invoke):
    write(train="fill(x, 1)\nlog(x)\nlog(y)\n")
    assert invoke("train.py", "--statistics").stdout == "2  AMP602  log-of-zero\n1  AMP601  const-overflow-fill\n"


def test_control_characters_do_not_reach_the_terminal(write, invoke):
    write(train='fill("\x1b[2J", 1)\n')
    assert "\x1b" not in invoke("train.py").stdout


def test_colour_follows_the_option_and_the_environment(write, invoke, monkeypatch):
    write(train=FILL)
    assert "\x1b[" not in invoke("train.py").stdout
    assert "\x1b[" in invoke("train.py", "--color", "always").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in invoke("train.py").stdout
    assert "\x1b[" in invoke("train.py", "--color", "always").stderr


def test_a_terminal_gets_a_bar_and_colour_and_a_pipe_does_not(write, folder):
    write({f"m{number}.py": FILL for number in range(12)})
    primary, secondary = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, str(STANDIN_PATH), ".", "--format", "concise", "--no-cache"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=secondary, env=environment)
    assert process.stdout is not None
    output = process.stdout.read()
    process.wait(timeout=60)
    os.close(secondary)
    shown = os.read(primary, 100_000)
    os.close(primary)
    assert b"\x1b[" not in output
    assert b"12/12" in shown or b"/12" in shown
    assert b"12 findings in 12 files" in shown


def test_a_reader_that_goes_away_is_no_error(write, spawn, folder):
    write(train="".join(f"fill(x, {number})\n" for number in range(3000)))
    command = f"{sys.executable} {STANDIN_PATH} train.py -q | head -1"
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


def test_help_and_version_answer_at_once(spawn):
    # What takes the time is what is imported: a few of the project's files, and nothing that is large.
    code = "import sys; from amp_migrate.commands.lint import main; main(['--version'], standalone_mode=False)\n"
    code += "print(*sys.modules)"
    version, modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.splitlines()
    assert version.startswith("amp-lint, version")
    own = [name for name in modules.split() if name.startswith("amp_")]
    assert 5 < len(own) < 32
    assert not {"libcst", "rich", "pathspec", "torch", "amp_rules.lint.linter"} & set(modules.split())
    assert b"Exit status" in spawn("--help").stdout
