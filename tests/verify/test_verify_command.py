"""``amp-migrate verify`` as a command: what it takes, what it says where a script does not run, and what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from amp_migrate.commands.migrate import main
from amp_migrate.verify import runs
from amp_migrate.verify.environment import clean_environment
from amp_migrate.verify.evidence import from_json
from amp_migrate.verify.plan import LOSS_SCALE
from amp_migrate.verify.processes import Outcome, Rank
from amp_migrate.verify.traces import RankTrace
from click.testing import CliRunner, Result
from forked import Forked

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
]

FLAT = Path(__file__).parents[2] / "fixtures" / "runnable" / "flat_convnet" / "train.py"
SCRIPT = """\
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
criterion = nn.MSELoss()
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
"""
LOOP = SCRIPT.index("for epoch")
Verify = Callable[..., Result]


@pytest.fixture
def verify(forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verify:
    """Calls the command in a folder of its own, with train.py there; torch is imported already."""
    monkeypatch.setattr(runs, "run_together", forked.run_together)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)

    def call(text: str, *options: str) -> Result:
        (project / "train.py").write_text(text)
        result = CliRunner().invoke(main, ["verify", "train.py", "--steps", "6", *options])
        assert list(temporary.iterdir()) == []
        return result

    return call


def place(text: str, line: str) -> str:
    return f"train.py:{text.splitlines().index(line) + 1}"


def test_a_script_is_proved_and_left_as_it_was(verify: Verify) -> None:
    result = verify(SCRIPT, "--steps", "40", "--", "--lr", "0.05")
    assert result.exit_code == 0, result.output
    verdict, _, reach = result.stdout.rpartition("\n\n")[2].partition("\n")
    assert verdict.startswith("✓ proved: ") and reach.strip().startswith("How far it reaches: ")
    assert [path.name for path in Path.cwd().iterdir()] == ["train.py"]
    assert Path("train.py").read_text() == SCRIPT
    table = result.stdout.split("\n\n")[1].splitlines()
    # The reference for float16 is made only where the run in it is not near by itself.
    named = [line.split("  ")[0] for line in table[1:] if not line.startswith("original, plain autocast, fp16")]
    assert named == [
        *("original", "original again", "O0", "O0, scaled", "original, plain autocast", "O1", "O1, fp16", "O2"),
        *("O0, 2 processes", "O1, 2 processes", "original, batches joined"),
    ]
    assert "O0: 40 steps in" in result.stderr


def test_json_is_the_evidence(verify: Verify) -> None:
    result = verify(SCRIPT, "--levels", "O1", "--procs", "1", "--format", "json", "--quiet")
    evidence = from_json(result.stdout)
    assert (evidence.verdict, evidence.steps, result.stderr) == ("proved", 6, "")
    assert [run.name for run in evidence.runs] == [
        *("original", "original again", "O0", "O0, scaled", "original, plain autocast", "O1", "O1, fp16"),
        "original, plain autocast, fp16",
    ]
    assert evidence.runs[3].scales == (LOSS_SCALE,) * 6
    assert all(len(run.losses) == 6 and run.status == "stopped" for run in evidence.runs)
    assert set(evidence.versions) == {"amp-migrate", "python", "torch"}


def test_a_version_that_was_given_is_compared_with(verify: Verify, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        SCRIPT.replace("        optimizer.step()\n", "        optimizer.step()\n        optimizer.step()\n")
    )
    result = verify(SCRIPT, "--migrated", str(wrong), "--procs", "1", "--levels", "O0", "--format", "json")
    assert result.exit_code == 1
    assert "o0-exact" in {
        check["id"] for check in json.loads(result.stdout)["checks"] if check["verdict"] == "disproved"
    }


def test_a_folder_laid_out_as_the_project_is_compared_with(verify: Verify, tmp_path: Path) -> None:
    Path("net.py").write_text("from torch import nn\nsize = 8\n")
    text = SCRIPT.replace("import argparse", "import argparse\nfrom net import size").replace(
        "nn.Linear(8", "nn.Linear(size"
    )
    (tmp_path / "changed").mkdir()
    (tmp_path / "changed" / "train.py").write_text(text)
    (tmp_path / "changed" / "net.py").write_text("size = 8\nextra = 1\n")
    options = ("--migrated", str(tmp_path / "changed"), "--procs", "1", "--levels", "O0", "--format", "json")
    assert json.loads(verify(text, *options).stdout)["checks"][1]["verdict"] == "proved"


def test_a_branch_is_compared_with_what_it_began_from(verify: Verify) -> None:
    Path("train.py").write_text(SCRIPT)
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "first"],
    ):
        subprocess.run(["git", *words], check=True)
    Path("helper.py").write_text("rate = 0.2\n")
    changed = SCRIPT.replace("import argparse", "import argparse\nfrom helper import rate").replace(
        "lr=args.lr", "lr=rate"
    )
    result = verify(changed, "--base", "HEAD", "--procs", "1", "--levels", "O0", "--format", "json")
    evidence = json.loads(result.stdout)
    assert result.exit_code == 1 and evidence["verdict"] == "disproved"
    assert evidence["runs"][0]["status"] == "stopped" and evidence["runs"][1]["error"] is None
    unknown = verify(changed, "--base", "no-branch")
    assert unknown.exit_code == 2 and "--base no-branch: git knows no such revision" in unknown.stderr


def test_where_distribution_is_declined_one_process_is_verified_and_the_reason_noted(verify: Verify) -> None:
    by_hand = SCRIPT.replace(
        "for x, y in loader:", "for i in range(8):\n        x, y = torch.ones(4, 4), torch.ones(4, 1)"
    )
    result = verify(by_hand, "--levels", "O1", "--format", "json")
    evidence = json.loads(result.stdout)
    assert all(run["processes"] == 1 for run in evidence["runs"])
    assert any(note.startswith("distribution declined at train.py") for note in evidence["notes"])


NOT_RUN = {
    "error": (
        SCRIPT.replace(
            "        optimizer.step()\n", "        optimizer.step()\n        raise ValueError('too cold')\n"
        ),
        "        raise ValueError('too cold')",
        "ValueError: too cold",
    ),
    "import": (
        SCRIPT.replace("import argparse\n", "import argparse\nimport no_such_module_here\n"),
        "import no_such_module_here",
        "No module named 'no_such_module_here' (install it for ",
    ),
    "file": (
        SCRIPT[:LOOP] + "open('data/train.csv')\n" + SCRIPT[LOOP:],
        "open('data/train.csv')",
        "No such file or directory: 'data/train.csv'; it ran in a copy of",
    ),
}


def test_a_script_that_asks_for_a_missing_gpu_is_told_where_to_verify(verify: Verify) -> None:
    error = "AssertionError('Torch not compiled with CUDA enabled')"
    result = verify(SCRIPT.replace("        optimizer.step()\n", f"        optimizer.step()\n        raise {error}\n"))
    assert result.exit_code == 3
    assert "note: The script asks for a GPU, and none is here: verify it where one is" in result.stdout


@pytest.mark.parametrize("name", NOT_RUN)
def test_a_script_that_does_not_run_is_shown_with_its_line(name: str, verify: Verify) -> None:
    text, line, message = NOT_RUN[name]
    result = verify(text)
    assert result.exit_code == 3
    last = result.stdout.splitlines()[-1]
    assert last.startswith("? not proved: ") and "The original does not run: " in last
    assert message in last and place(text, line) in last
    assert "temporary" not in result.stdout


def test_a_call_that_only_the_migrated_script_cannot_make_is_shown_where_it_was(verify: Verify, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(SCRIPT.replace("import torch\n", "import torch\nimport os\n").replace("model(x)", "model(x, x)"))
    result = verify(SCRIPT, "--migrated", str(broken), "--procs", "1", "--levels", "O0")
    assert result.exit_code == 1
    said = " ".join(result.stdout.split())
    assert "TypeError" in said and "line 19 is one of the migrated file" in said


def test_arguments_that_the_script_does_not_take_are_said_in_its_words(verify: Verify) -> None:
    result = verify(SCRIPT, "--", "--learning-rate", "1")
    assert result.exit_code == 3
    assert "unrecognized arguments: --learning-rate 1; give the script's own arguments after --" in result.stdout


def test_a_script_that_trains_nothing_proves_nothing(verify: Verify) -> None:
    result = verify(SCRIPT.replace("range(3)", "range(0)"))
    assert result.exit_code == 3
    assert "without a single backward call" in result.stdout


def test_where_nothing_is_migrated_the_reasons_are_given(verify: Verify) -> None:
    result = verify("import torch\nprint(torch.ones(1))\n")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "error: nothing to verify: no training step was found (train.py)" in result.stderr


def test_options_of_the_script_before_the_dashes_are_explained(verify: Verify) -> None:
    result = verify(SCRIPT, "--lr", "0.1")
    assert (
        result.exit_code == 2 and "No such option: --lr (options of the script itself follow after --)" in result.stderr
    )


WRONG = {
    "both": (["--migrated", "x.py", "--base", "HEAD"], "give one of them"),
    "level": (["--levels", "O1,O7"], "'O1,O7' is no list of levels; they are O0, O1, O2, O3"),
    "size": (["--memory", "lots"], "'lots' is no size"),
    "python": (["--python", "/no/such/python"], "does not run: No such file or directory"),
    "no python": (["--python", "/bin/cat"], "does not run Python"),
    "migrated": (["--migrated", "nowhere"], "--against nowhere: no such file or directory"),
    "base": (["--base", "HEAD"], "does not lie in a git work tree"),
    "link": (["--link", "nowhere"], "--link nowhere"),
    "code": (["--select", "AMP9999"], "AMP9999"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_done_is_said_in_one_line(name: str, verify: Verify) -> None:
    options, message = WRONG[name]
    result = verify(SCRIPT, *options)
    assert result.exit_code == 2 and result.stdout == ""
    assert message in result.stderr and "Traceback" not in result.stderr


def test_a_version_that_is_the_same_shows_nothing(verify: Verify) -> None:
    result = verify(SCRIPT, "--migrated", "train.py")
    assert (result.exit_code, result.stdout) == (3, "") and "hold the same" in result.stderr


def test_what_is_no_script_is_refused(verify: Verify) -> None:
    Path("book.ipynb").write_text("{}")
    for name, message in (("gone.py", "there is no such script"), (".", "no such script"), ("book.ipynb", "notebook")):
        result = CliRunner().invoke(main, ["verify", name])
        assert result.exit_code == 2 and message in result.stderr


def test_a_file_of_that_name_is_migrated_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("verify.py").write_text("import torch\n")
    shutil.copy("verify.py", "verify")
    Path("verify").write_text("#!/usr/bin/env python\nimport torch\n")
    result = CliRunner().invoke(main, ["./verify", "--no-cache"])
    assert result.exit_code == 0 and "no training step found" in result.stderr


def test_the_help_names_the_command_and_is_quick() -> None:
    assert "amp-migrate verify" in CliRunner().invoke(main, ["--help"]).stdout
    shown = CliRunner().invoke(main, ["verify", "--help"]).stdout
    assert "Exit status" in shown and "--opt-level" in shown
    code = "import sys, amp_migrate.commands.verify; print({'libcst', 'rich', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_modules_come_from_the_copy_where_the_project_is_installed_editable(
    verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("src/mine").mkdir(parents=True)
    Path("src/mine/__init__.py").touch()
    Path("src/mine/step.py").write_text("from torch import nn\n\n\ndef criterion():\n    return nn.MSELoss()\n")
    Path("pyproject.toml").write_text("[project]\nname = 'mine'\n")
    # What an editable install comes to.
    installed = f"import sys\nsys.path.append({str(Path('src').resolve())!r})\n"
    script = installed + SCRIPT.replace("import torch\n", "import torch\nfrom mine.step import criterion as made\n", 1)
    script = script.replace("nn.MSELoss()", "made()")
    result = verify(script, "--levels", "O0", "--procs", "1")
    assert result.exit_code == 0, result.output
    first = installed.replace("append(", "insert(0, ")
    result = verify(script.replace(installed, first), "--levels", "O0", "--procs", "1")
    assert result.exit_code == 3 and "a copy cannot be run" in result.stderr


def test_the_whole_of_it_in_processes_of_its_own_and_interrupted(tmp_path: Path) -> None:
    """Without the shortcut of the other tests; stopped between its runs, it leaves neither processes nor files."""
    shutil.copy(FLAT, tmp_path / "train.py")
    (tmp_path / "temporary").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "amp_migrate", "verify", "train.py", "--steps", "4", "--procs", "1", "--levels", "O0"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path / "temporary")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("  original: 4 steps in")
    time.sleep(0.2)  # the next has begun, and may be over
    process.send_signal(signal.SIGTERM)
    rest, error = process.communicate(timeout=240)
    assert (process.returncode, rest, error.splitlines()[-1]) == (130, "", "interrupted")
    assert "Traceback" not in error
    assert list((tmp_path / "temporary").glob("amp-verify*")) == []
    running = subprocess.run(["ps", "-axo", "args"], capture_output=True, text=True).stdout
    assert str(tmp_path) not in running


def test_every_run_of_the_migrated_script_has_a_half_type_by_name(
    verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, set[str | None]] = {}
    start = runs.run_together

    def run_together(ranks: Sequence[Rank], *rest: Any, **options: Any) -> Outcome:
        level = ranks[0].environment.get("AMP_OPT_LEVEL", "original")
        given.setdefault(level, set()).add(ranks[0].environment.get("AMP_DTYPE"))
        return start(ranks, *rest, **options)

    monkeypatch.setattr(runs, "run_together", run_together)
    monkeypatch.setenv("AMP_DTYPE", "fp16")  # of the shell: not handed on
    assert verify(SCRIPT, "--procs", "1").exit_code == 0
    assert given == {"original": {None}, "O0": {"bf16"}, "O1": {"bf16", "fp16"}, "O2": {"bf16"}}


@pytest.mark.parametrize(
    ("device", "computes_in", "text", "expected"),
    [
        ("cpu", "bf16", b"import amp_runtime as amp", "bf16"),
        ("Tesla V100", "fp16", b"import amp_runtime as amp", "fp16"),
        ("NVIDIA A100", "bf16", b"import amp_runtime as amp", "bf16"),
        ("NVIDIA A100", "bf16", b"from amp_runtime.apex import amp", "fp16"),  # Apex's own type
        ("cpu", "bf16", b"from amp_runtime.apex import amp", "bf16"),
    ],
)
def test_the_half_type_is_the_one_that_training_would_take(
    device: str, computes_in: str, text: bytes, expected: str
) -> None:
    maker = runs.Maker(None, {Path("train.py"): text, Path("gone.py"): None}, {}, None, Path())  # type: ignore[arg-type]
    assert maker._type_for(RankTrace(0, device=device, half_type=computes_in)) == expected


def test_every_run_has_the_same_environment_whatever_surrounds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AMP_OPT_LEVEL",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "GROUP_RANK",
    ):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("RANKING", "kept")
    environment: dict[str, Any] = clean_environment()
    assert environment["RANKING"] == "kept"
    assert not {"AMP_OPT_LEVEL", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "GROUP_RANK"} & set(environment)
