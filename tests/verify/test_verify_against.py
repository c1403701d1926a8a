"""``amp-migrate verify --against``: right versions that were made by hand are proved, and broken ones disproved."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from amp_migrate.commands.migrate import main
from amp_migrate.verify import runs
from amp_migrate.verify.evidence import Evidence, from_json
from click.testing import CliRunner
from forked import Forked

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
    pytest.mark.campaign,
]

BY_HAND = Path(__file__).with_name("by_hand")
LAUNCHES = {
    "train_gpus.py": ("--launch", "torchrun --nproc-per-node 2 train_gpus.py"),
    "train_option.py": (
        *("--launch", "python -m torch.distributed.launch --nproc-per-node 2 train_option.py --distributed", "--"),
    ),
}
ALONE = ("--procs", "1", "--levels", "O0")
TOGETHER = ("--procs", "2", "--levels", "O0")
Verified = Callable[..., Evidence]


@pytest.fixture
def verified(forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verified:
    """What is found out about a version beside train.py, in which texts are replaced."""
    monkeypatch.setattr(runs, "run_together", forked.run_together)
    project = tmp_path / "project"
    shutil.copytree(BY_HAND, project)
    monkeypatch.chdir(project)

    def verify(version: str, edits: tuple[tuple[str, str], ...] = (), options: tuple[str, ...] = ()) -> Evidence:
        edit(project / version, edits)
        words = ["verify", "train.py", "--against", version, "--steps", "14", "--format", "json", "--quiet", *options]
        result = CliRunner().invoke(main, words)
        assert result.exit_code in (0, 1, 3), result.output
        return from_json(result.stdout)

    return verify


def edit(path: Path, edits: tuple[tuple[str, str], ...]) -> None:
    text = path.read_text(encoding="utf-8")
    for before, after in edits:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")


def verdicts(evidence: Evidence) -> dict[str, str]:
    return {check.id: check.verdict for check in evidence.checks}


def message(evidence: Evidence, id_: str) -> str:
    return next(check.message for check in evidence.checks if check.id == id_)


@pytest.mark.parametrize("version", LAUNCHES)
def test_a_right_version_is_proved_alone_and_as_it_is_launched(version: str, verified: Verified) -> None:
    evidence = verified(version, (), LAUNCHES[version])
    assert evidence.verdict == "proved", evidence.checks
    assert {"o0-exact", "o1-band", "o1-half", "meet", "ranks-agree", "shares", "one-process"} <= set(verdicts(evidence))


def test_a_script_that_starts_its_processes_itself_is_compared_in_them(verified: Verified) -> None:
    launch = "python train_spawn.py --world-size 2"
    evidence = verified("train_spawn.py", (), ("--levels", "O0", "--launch", launch, "--"))
    found = verdicts(evidence)
    assert (evidence.verdict, found["meet"], found["one-process"]) == ("proved", "proved", "proved"), evidence.checks
    # bfloat16 needs no loss scale.
    assert "o0-scaled" not in found


def test_without_its_option_a_distribution_of_its_own_stays_open(verified: Verified) -> None:
    evidence = verified("train_option.py", (), TOGETHER)
    assert (evidence.verdict, verdicts(evidence)["meet"]) == ("unproved", "unproved")
    assert "--launch" in message(evidence, "meet")


def test_a_version_without_distribution_is_compared_alone_and_that_is_said(verified: Verified) -> None:
    text = (BY_HAND / "train.py").read_text()
    text = text.replace("            loss = ", '            with torch.autocast("cpu"):\n                loss = ')
    Path("train_amp.py").write_text(text)
    evidence = verified(
        "train_amp.py",
        (
            ("loss.backward()", "scaler.scale(loss).backward()"),
            ("            nn.utils", "            scaler.unscale_(optimizer)\n            nn.utils"),
            ("optimizer.step()", "scaler.step(optimizer)\n            scaler.update()"),
            ("    for epoch in", '    scaler = torch.amp.GradScaler("cpu")\n    for epoch in'),
        ),
        ("--levels", "O0"),
    )
    assert evidence.verdict == "proved", evidence.checks
    assert not any(run.processes > 1 for run in evidence.runs)
    assert any("no distributed training" in note for note in evidence.notes)


GPUS, OPTION = "train_gpus.py", "train_option.py"
CLIP = "            scaler.unscale_(optimizer)\n"
DDP = "    model = DistributedDataParallel(model, device_ids=[rank], output_device=rank)\n"
WRONG: dict[str, tuple[str, tuple[tuple[str, str], ...], str, tuple[str, ...]]] = {
    "clipped while scaled": (GPUS, ((CLIP, ""),), "o0-scaled", ALONE),
    "stepped on scaled gradients": (
        GPUS,
        ((CLIP, ""), ("scaler.step(optimizer)", "optimizer.step()")),
        # torch itself stops at the update.
        "runs",
        ALONE,
    ),
    "no update of the scaler": (GPUS, (("            scaler.update()\n", ""),), "runs", ALONE),
    "a loss outside of autocast": (
        GPUS,
        (
            (
                "            with autocast():\n",
                "            with autocast():\n                pass\n            if True:\n",
            ),
        ),
        "o1-half",
        ("--procs", "1", "--levels", "O0,O1"),
    ),
    "no sampler": (GPUS, (("sampler=sampler, ", "shuffle=True, "),), "shares", TOGETHER),
    "no set_epoch": (GPUS, (("        sampler.set_epoch(epoch)\n", ""),), "new-order", TOGETHER),
    "gradients not averaged": (GPUS, ((DDP, ""),), "ranks-agree", TOGETHER),
    "a rate by rank": (GPUS, (("lr=args.lr)", "lr=args.lr * (1 + dist.get_rank()))"),), "ranks-agree", TOGETHER),
    "a step left out": (GPUS, (("scaler.step(optimizer)", "epoch and scaler.step(optimizer)"),), "o0-exact", ALONE),
    "gradients kept": (OPTION, (("            optimizer.zero_grad()\n", ""),), "o0-exact", ALONE),
    "cast after it was wrapped": (
        OPTION,
        (
            ("nn.Linear(8, 1)).to(torch.bfloat16)", "nn.Linear(8, 1))"),
            ("    optimizer = ", "    model.to(torch.bfloat16)\n    optimizer = "),
        ),
        "o1-together",
        ("--levels", "O0,O1", *LAUNCHES[OPTION]),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_broken_version_is_disproved(name: str, verified: Verified) -> None:
    version, edits, by, options = WRONG[name]
    evidence = verified(version, edits, options)
    assert (evidence.verdict, verdicts(evidence).get(by)) == ("disproved", "disproved"), evidence.checks


def test_a_loss_that_torch_refuses_in_regions_for_cuda_is_refused_on_a_cpu_too(verified: Verified) -> None:
    before = "nn.functional.mse_loss(model(x), y)"
    loss = "nn.functional.binary_cross_entropy(model(x).sigmoid(), y.abs())"
    edit(Path("train.py"), ((before, loss),))
    evidence = verified(GPUS, ((before, loss),), ("--procs", "1", "--levels", "O0,O1"))
    assert (evidence.verdict, "unsafe to autocast" in message(evidence, "runs")) == ("disproved", True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_only_a_gpu_can_run_is_open_and_not_wrong(verified: Verified) -> None:
    line = "    rank = int("
    check = f'    assert torch.cuda.is_available(), "no CUDA"\n{line}'
    evidence = verified(GPUS, ((line, check),), ALONE)
    assert (evidence.verdict, "this machine has none" in message(evidence, "runs")) == ("unproved", True)


def test_a_version_for_a_gpu_only_computes_nothing_in_half_here_and_that_is_open(verified: Verified) -> None:
    off = (("autocast():", "autocast(enabled=torch.cuda.is_available()):"),)
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    evidence = verified(GPUS, off, ("--procs", "1", "--levels", "O0,O1"))
    assert (evidence.verdict, verdicts(evidence)["o1-half"]) == ("unproved", "unproved")


def test_a_version_that_shuffles_what_the_original_reads_in_order_is_open(verified: Verified) -> None:
    edit(Path("train.py"), (("shuffle=True", "shuffle=False"),))
    evidence = verified(GPUS, (), TOGETHER)
    found = verdicts(evidence)
    assert (evidence.verdict, found["o0-exact"], found["in-order"]) == ("unproved", "proved", "unproved")


def test_a_version_of_another_place_brings_its_modules(verified: Verified, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    text = (
        Path("train.py")
        .read_text()
        .replace("def make_data", "def unused")
        .replace("import torch\n", "import torch\nfrom made import make_data\n", 1)
    )
    (other / "mine.py").write_text(text)
    made = Path("train.py").read_text()
    start, end = made.index("def make_data"), made.index("def main")
    (other / "made.py").write_text(f"import torch\nfrom torch.utils.data import TensorDataset\n\n\n{made[start:end]}")
    evidence = verified(str(other / "mine.py"), (), ALONE)
    assert evidence.verdict == "proved", evidence.checks


REFUSED = {
    "nowhere": (["--against", "nowhere.py"], 2, "--against nowhere.py: no such file or directory"),
    "same": (["--against", "train.py"], 3, "hold the same"),
    "both": (["--against", "train_gpus.py", "--base", "HEAD"], 2, "give one of them"),
    "notebook": (["--against", "book.ipynb"], 2, "notebook"),
    "folder": (["--against", "empty"], 2, "it holds no train.py"),
    "launch": (["--launch", "accelerate launch train.py"], 2, "accelerate is not known"),
    "script": (
        ["--against", "train_gpus.py", "--launch", "torchrun --nproc-per-node 2 x.py"],
        2,
        "--launch starts x.py, and what is compared is train_gpus.py",
    ),
    "count": (
        ["--against", "train_gpus.py", "--procs", "3", "--launch", "torchrun --nproc-per-node 2 train_gpus.py"],
        2,
        "--launch starts 2 processes, and --procs says 3",
    ),
    "types": (["--types", "fp8"], 2, "'fp8' is no list of half types; they are fp16, bf16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared_is_said_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(BY_HAND, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    Path("book.ipynb").write_text("{}")
    Path("empty").mkdir()
    options, status, words = REFUSED[name]
    result = CliRunner().invoke(main, ["verify", "train.py", *options])
    assert (result.exit_code, result.stdout) == (status, "")
    assert words in result.stderr and "Traceback" not in result.stderr


def test_a_version_that_python_cannot_read_is_disproved_at_its_line(verified: Verified) -> None:
    Path("train_broken.py").write_text("import torch\n\ndef main(:\n")
    evidence = verified("train_broken.py", (), ALONE)
    assert evidence.verdict == "disproved"
    assert "SyntaxError" in message(evidence, "runs") and "train_broken.py:3" in message(evidence, "runs")


def test_a_script_that_starts_several_where_one_is_meant_shows_nothing(
    forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "run_together", forked.run_together)
    shutil.copytree(BY_HAND, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    text = Path("train.py").read_text()
    Path("train.py").write_text(text.replace('"--epochs"', '"--world-size", type=int)\nparser.add_argument("--epochs"'))
    Path("train_spawn.py").write_text(
        Path("train_spawn.py").read_text().replace('parser.add_argument("--world-size", type=int, default=1)\n', "")
    )
    launch = ["--launch", "python train_spawn.py --world-size 2"]
    words = ["verify", "train.py", "--against", "train_spawn.py", "--steps", "4", "--levels", "O0", *launch]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 3 and "give the arguments with which it starts one after --" in result.stderr
