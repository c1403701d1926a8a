"""``amp-migrate verify`` of versions that make int8 models: what is near, what is far, and what is not known."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from amp_migrate.commands.migrate import main
from amp_migrate.verify import runs as making_runs
from amp_migrate.verify.budget import Bound, Budget
from amp_migrate.verify.checks import int8
from amp_migrate.verify.evidence import Check, Evidence, from_json
from amp_migrate.verify.hand_made import quantizes
from amp_migrate.verify.plan import INT8, O0, ORIGINAL, Asked, planned
from amp_migrate.verify.printed import printed_by
from amp_migrate.verify.quantizing import without_int8
from amp_migrate.verify.traces import Batch, Entry, Failure, Int8, Said, Trace, WrittenFile
from amp_migrate.verify.verdict import judge
from click.testing import CliRunner
from forked import Forked
from recording import Record
from test_verify_checks import ASKED, LOSSES, failed, found, rank, run, runs

QUANTIZING = replace(ASKED, int8="migrated", quantize="static")
NEAR = Int8("static", "train.py:50", apart=0.01, calls=3, tensors=3)

needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")
runs_scripts = pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes")


# ---- the run ---------------------------------------------------------------------------------------------------------


def test_the_run_is_made_where_there_is_an_int8_model_alone_and_goes_to_its_end() -> None:
    assert INT8 not in {run.name for run in planned(ASKED)}
    (made,) = [run for run in planned(QUANTIZING) if run.name == INT8]
    assert (made.level, made.processes, made.quantizes, made.reach) == ("O0", 1, True, "end")
    budget = Budget(steps=5)
    budget.expect(planned(QUANTIZING))
    budget.note(next(planned(QUANTIZING)), run(ORIGINAL, rank(), level=None))
    assert (budget.bound(made), budget.patience(made)) == (Bound(), None)
    spent = budget.spent
    budget.note(made, run(INT8, rank(), seconds=1e6))
    assert budget.spent == spent, "the others have no less for it"
    assert budget.going(made, Bound(), 3.0, 40).of is None, "nobody knows how many steps it makes to its end"


# ---- the check -------------------------------------------------------------------------------------------------------


def judged(*made: Int8, **changes: object) -> dict[str, Check]:
    return found(runs(run(INT8, replace(rank(), int8=made), **{"status": "ended", **changes})), QUANTIZING)


def test_what_is_near_is_proved_with_its_distance_and_training_is_compared() -> None:
    checks = judged(NEAR)
    assert (checks[int8.ID].verdict, checks[int8.TRAINING_ID].verdict) == ("proved", "proved")
    assert "3 calls" in checks[int8.ID].message and "train.py:50) differ by 1 %" in checks[int8.ID].message
    evidence = judge(QUANTIZING, runs(run(INT8, replace(rank(), int8=(NEAR,)))))
    assert evidence.verdict == "proved" and "; the int8 model at O0 in 1 process." in evidence.reach


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({"apart": int8.NEAR}, "proved", "differ by 10 %"),
        ({"apart": int8.NEAR * 1.01}, "unproved", "more than rounding does to most models"),
        ({"apart": int8.FAR}, "unproved", "may need more batches"),
        ({"apart": int8.FAR * 1.01}, "disproved", "calibration with other data"),
        ({"apart": int8.FAR * 1.01, "loaded": True}, "disproved", "quantize it when it has those"),
        ({"loaded": True}, "unproved", "quantize it when it has those"),
        ({"known": False}, "unproved", "neither trained by the script, nor loaded, nor copied"),
        ({"finite": False}, "disproved", "not finite"),
        ({"unlike": "(4, 2) in place of (4, 3)"}, "disproved", "(4, 2) in place of (4, 3)"),
        ({"calls": 0, "tensors": 0, "called": False}, "unproved", "the script does not call it"),
        ({"tensors": 0}, "unproved", "no tensors of floats"),
        ({"error": "ValueError: x"}, "unproved", "with the same inputs (ValueError: x)"),
        ({"called": False}, "proved", "which the script does not make itself,"),
        ({"kind": "qat"}, "proved", "those of the model that trained with rounding"),
    ],
)
def test_each_distance_and_each_doubt_has_its_verdict(changes: dict[str, object], verdict: str, words: str) -> None:
    check = judged(replace(NEAR, **changes))[int8.ID]
    assert (check.verdict, words in check.message) == (verdict, True), check


def test_of_several_models_the_worst_is_told() -> None:
    far = replace(NEAR, apart=0.9, site="train.py:70")
    open_ = replace(NEAR, apart=0.2, site="train.py:60")
    assert "train.py:70" in judged(NEAR, open_, far)[int8.ID].message
    assert "train.py:60" in judged(NEAR, open_)[int8.ID].message
    assert "train.py:60" in judged(NEAR, replace(open_, apart=0.02))[int8.ID].message


def test_a_training_that_differs_is_disproof_and_that_for_int8_is_another_one() -> None:
    others = rank([*LOSSES[:9], 3.0, *LOSSES[10:]])
    traces = runs(run(INT8, replace(others, int8=(NEAR,))))
    assert found(traces, QUANTIZING)[int8.TRAINING_ID].verdict == "disproved"
    traces = runs(run(INT8, replace(others, int8=(replace(NEAR, kind="qat"),))))
    assert int8.TRAINING_ID not in found(traces, QUANTIZING)


def test_without_an_int8_model_it_is_open() -> None:
    assert judged()[int8.ID].verdict == "unproved"


def of_a_failure(trace: Trace) -> Check:
    checks = found(runs(trace), QUANTIZING)
    assert checks["runs"].verdict == "proved", "the run is judged by its own check"
    assert int8.TRAINING_ID not in checks
    return checks[int8.ID]


def test_a_run_that_did_not_come_to_its_end_is_open_and_says_what_helps() -> None:
    check = of_a_failure(run(INT8, rank(), status="timeout", failure=Failure("its time was up")))
    assert check.verdict == "unproved" and "the script's own arguments after --" in check.message
    check = of_a_failure(run(INT8, rank(), status="memory", failure=Failure("it took more than 1 GiB of memory")))
    assert check.verdict == "unproved" and "--memory" in check.message


def test_without_torchao_it_is_open_and_any_other_error_is_disproof() -> None:
    missing = (
        "ImportError: amp.quantize needs torchao, which cannot be imported (No module named 'torchao'); install it "
        "with: pip install 'torchao>=0.18'"
    )
    check = of_a_failure(failed(INT8, missing))
    assert check.verdict == "unproved" and "pip install" in check.message
    assert of_a_failure(failed(INT8, "RuntimeError: amp.quantize was called under autocast")).verdict == "disproved"


# ---- a version that was given ----------------------------------------------------------------------------------------


def test_a_version_that_quantizes_is_known_by_its_calls() -> None:
    assert quantizes([b"x = 1\n", b"q = amp.quantize(model, 'static')\n"])
    assert quantizes([b"q = amp.convert_quantized(model)\n"])
    assert not quantizes([b"amp.init(quantize=None)\n", b"dequantize(x)\n"])


BEHIND = len(LOSSES)
EPOCH = Said("epoch 1: 0.5", before=BEHIND)
DONE = Said("best 0.500", before=BEHIND)


def behind(*said: Said, passes: int, files: tuple[WrittenFile, ...] = (), **changes: object) -> Trace:
    """A run to its end, with what it says and how often it evaluates behind its training."""
    made = rank()
    evaluations = tuple(Batch(1, epoch, BEHIND, (0, 1)) for epoch in range(passes))
    made = replace(made, said=said, batches=(*made.batches, *evaluations))
    printed = ("".join(f"{one.text}\n" for one in said if not one.silent),)
    return run(O0, made, **{"status": "ended", "printed": printed, "files": files, **changes})


RIGHT = behind(EPOCH, DONE, passes=1)
ADDED = Said("float32: 0.5", before=BEHIND), Said("int8: 0.5", before=BEHIND)
INT8_FILE = WrittenFile("net_int8.pt", "values", entries=(Entry("amp_quantized", "int", "2"),))


def test_what_is_added_behind_the_training_is_left_out() -> None:
    file = WrittenFile("net.pt", "values", entries=(Entry("weight", "float32 (3,)"),))
    made = without_int8(behind(EPOCH, *ADDED, DONE, passes=3, files=(file, INT8_FILE)), RIGHT)
    assert made.printed == RIGHT.printed and printed_by(made) == printed_by(RIGHT)
    assert (made.files, made.ranks[0].batches) == ((file,), RIGHT.ranks[0].batches)


def test_what_is_silent_on_another_rank_is_left_out_there() -> None:
    silent = [replace(one, silent=True) for one in (EPOCH, *ADDED, DONE)]
    made = without_int8(behind(*silent, passes=1), RIGHT)
    assert [one.text for one in made.ranks[0].said] == [EPOCH.text, DONE.text]


def test_nothing_is_left_out_of_other_lines_nor_before_the_end_of_the_training() -> None:
    lacking = behind(EPOCH, *ADDED, passes=1)
    assert without_int8(lacking, RIGHT).printed == lacking.printed, "a line of the original is missing"
    early = behind(replace(ADDED[0], before=3), EPOCH, DONE, passes=1)
    assert without_int8(early, RIGHT).printed == early.printed
    stopped = behind(EPOCH, *ADDED, DONE, passes=2, status="stopped")
    assert without_int8(stopped, RIGHT) is stopped


# ---- the recorder ----------------------------------------------------------------------------------------------------

MAKES = """
import amp_runtime as amp
amp.init(opt_level="O0")
model = amp.prepare_model(model)
loader = DataLoader(data, batch_size=4)
def hook(module, args, output):
    print("hooked")
for x, y in loader:
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
"""
USES = """
model[2].register_forward_hook(hook)
model.train()
with torch.no_grad():
    found = quantized(next(iter(loader))[0])
print(model.training, torch.rand(1).item(), random.random())
"""


@needs_torchao
@runs_scripts
def test_both_models_are_called_and_the_script_sees_nothing_of_it(record: Record) -> None:
    script = f"{MAKES}quantized = amp.quantize(model, 'dynamic')\n{USES}"
    followed, alone = (record(script, folder=f"it{mode}", int8=mode, seed=0) for mode in ("follow", ""))
    assert followed.stdout == alone.stdout
    (made,) = followed.rank.int8
    assert (made.kind, made.calls, made.called, made.known, made.loaded) == ("dynamic", 1, True, True, False)
    assert 0 < made.apart < int8.NEAR and made.site.startswith("train.py:")
    assert alone.rank.int8 == ()


@needs_torchao
@runs_scripts
def test_a_model_that_is_never_called_is_called_with_what_the_float_model_saw(record: Record) -> None:
    (made,) = record(f"{MAKES}quantized = amp.quantize(model, 'dynamic')\n", int8="follow").rank.int8
    assert not made.called and made.calls and 0 < made.apart < int8.NEAR


@needs_torchao
@runs_scripts
def test_weights_that_are_loaded_later_are_those_that_count_and_those_that_are_trained_do_not(record: Record) -> None:
    quantized = "quantized = amp.quantize(model, 'dynamic')\n"
    loading = "model.load_state_dict({k: 5 * v for k, v in model.state_dict().items()})\n"
    (made,) = record(f"{MAKES}{quantized}{loading}{USES}", folder="loads", int8="follow").rank.int8
    assert made.loaded and made.apart > int8.FAR
    training = "for _ in range(9):\n    F.mse_loss(model(x), y).backward()\n    optimizer.step()\n"
    (made,) = record(f"{MAKES}{quantized}{training}{USES}", folder="trains", int8="follow").rank.int8
    assert not made.loaded and made.apart < int8.NEAR


@runs_scripts
@pytest.mark.parametrize("kind", ["static", "qat"])
def test_turned_off_no_model_is_made_and_torchao_is_not_asked_for(kind: str, record: Record) -> None:
    making = f"model = amp.quantize(model, '{kind}', calibration=loader)\n" if kind == "qat" else ""
    ending = (
        "amp.unwrap(model).freeze_observers()\nquantized = amp.convert_quantized(model)\n"
        if kind == "qat"
        else "quantized = amp.quantize(model, 'static', calibration=loader)\n"
    )
    script = MAKES.replace('"O0"', f'"O0", quantize="{kind}"').replace("def hook", f"{making}def hook")
    script += f"{ending}print(torch.equal(quantized(x), model(x)), 'torchao' in sys.modules)\n"
    found = record(f"sys.modules['torchao'] = None\n{script}", int8="off")
    assert "True True" in found.stdout and "amp:" not in found.stdout
    assert (found.rank.int8, len(found.rank.backwards)) == ((), 8)


# ---- whole verifications ---------------------------------------------------------------------------------------------

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x):
        return self.layers(x)


def train(model, loader, optimizer):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
    return correct / len(loader.dataset)


def main():
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x[:, :3].argmax(1)
    train_loader = DataLoader(TensorDataset(x[:192], y[:192]), batch_size=32, shuffle=True)
    test_loader = DataLoader(TensorDataset(x[192:], y[192:]), batch_size=64)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(3):
        train(model, train_loader, optimizer)
        print(f"epoch {epoch}: {evaluate(model, test_loader):.3f}")
        if epoch == 0:
            torch.save(model.state_dict(), "net.pt")
    model.load_state_dict(torch.load("net.pt"))
    print(f"kept: {evaluate(model, test_loader):.3f}")


if __name__ == "__main__":
    main()
"""
QUANTIZED = '    quantized = amp.quantize(model, "static", calibration=train_loader)\n'
LOADED = '    model.load_state_dict(torch.load("net.pt"))\n'
SMALL = "[(x[:64] * 0.05, y)]"
Verified = Callable[..., Evidence]


@pytest.fixture
def verified(forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verified:
    """What is found out about the script as it is quantized, or about an edited migration of it."""
    monkeypatch.setattr(making_runs, "run_together", forked.run_together)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    Path("train.py").write_text(SCRIPT, encoding="utf-8")

    def verify(*edits: tuple[str, str], quantize: str = "static", given: bool = True) -> Evidence:
        options = ["--quantize", quantize]
        if given:
            shutil.copy("train.py", "int8.py")
            assert CliRunner().invoke(main, ["int8.py", *options, "-w", "--quiet"]).exit_code == 0
            text = Path("int8.py").read_text(encoding="utf-8")
            for before, after in edits:
                assert text.count(before) == 1, f"{before!r} in\n{text}"
                text = text.replace(before, after)
            Path("int8.py").write_text(text, encoding="utf-8")
            options = ["--migrated", "int8.py"]
        words = ["verify", "train.py", "--procs", "1", "--levels", "O0", "--steps", "10", "--format", "json", "--quiet"]
        result = CliRunner().invoke(main, [*words, *options])
        assert result.exit_code in (0, 1, 3), result.output
        return from_json(result.stdout)

    return verify


def verdict_on(evidence: Evidence, id_: str = int8.ID) -> tuple[str, str]:
    return next((check.verdict, check.message) for check in evidence.checks if check.id == id_)


@needs_torchao
@runs_scripts
@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["dynamic", "static", "qat"])
@pytest.mark.parametrize("given", [False, True])
def test_a_right_int8_model_is_proved(kind: str, given: bool, verified: Verified) -> None:
    evidence = verified(quantize=kind, given=given)
    assert evidence.verdict == "proved", evidence.checks
    assert verdict_on(evidence)[0] == "proved"
    ids = {check.id for check in evidence.checks}
    assert (int8.TRAINING_ID in ids) == (kind != "qat") and {"o0-exact", "o0-printed"} <= ids
    (run,) = [run for run in evidence.runs if run.name == INT8]
    assert (run.status, len(run.losses)) == ("ended", 18), "--steps bounds the others"
    assert any("turned off from outside" in note for note in evidence.notes) == given
    assert any("trains with rounding" in note for note in evidence.notes) == (kind == "qat" and not given)


WRONG: dict[str, tuple[tuple[tuple[str, str], ...], str, str]] = {
    "calibrated with other data": (
        (("calibration=train_loader", f"calibration={SMALL}"),),
        "disproved",
        "calibration with other data",
    ),
    "quantized before the best is loaded": (
        ((QUANTIZED, ""), (LOADED, f"{QUANTIZED}{LOADED}")),
        "disproved",
        "quantize it when it has those",
    ),
    "another model": (
        (("amp.quantize(model,", "amp.quantize(Net(),"),),
        "unproved",
        "neither trained",
    ),
    "a scale is wrong": (
        ((QUANTIZED, f"{QUANTIZED}    next(quantized.buffers()).mul_(4)\n"),),
        "disproved",
        "no more than 10 %",
    ),
}


@needs_torchao
@runs_scripts
@pytest.mark.heavy
@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_int8_model_is_not_proved(kind: str, verified: Verified) -> None:
    edits, verdict, words = WRONG[kind]
    evidence = verified(*edits)
    assert evidence.verdict == verdict, evidence.checks
    found, message = verdict_on(evidence)
    assert (found, words in message) == (verdict, True), message
    assert verdict_on(evidence, "o0-exact")[0] == "proved"


@runs_scripts
@pytest.mark.heavy
def test_without_torchao_all_else_is_compared(verified: Verified) -> None:
    Path("torchao.py").write_text("raise ImportError('none here')\n", encoding="utf-8")
    evidence = verified(given=False)
    found, message = verdict_on(evidence)
    assert (evidence.verdict, found, "install it with" in message) == ("unproved", "unproved", True), evidence.checks
    assert {check.verdict for check in evidence.checks if check.id != int8.ID} == {"proved"}


@runs_scripts
@pytest.mark.heavy
def test_where_the_migration_makes_no_int8_model_a_note_says_why(verified: Verified) -> None:
    text = SCRIPT.replace("model = Net()", "model = Net().double()")
    Path("train.py").write_text(text.replace("torch.randn(256, 8)", "torch.randn(256, 8).double()"), encoding="utf-8")
    evidence = verified(given=False)
    assert INT8 not in {run.name for run in evidence.runs}
    assert any("makes no int8 model" in note and "AMP181" in note for note in evidence.notes), evidence.notes


def test_evidence_of_it_is_json() -> None:
    evidence = judge(QUANTIZING, runs(run(INT8, replace(rank(), int8=(NEAR,)))))
    assert from_json(evidence.to_json()) == evidence
    assert isinstance(QUANTIZING, Asked)
