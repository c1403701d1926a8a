"""Scripts migrated with ``--quantize``, run: the float model is the original's, and int8 costs little."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import amp_runtime as amp
import pytest
import torch
from amp_rules import migrate
from amp_rules.plan.options import Options, Quantization
from warm import Start, Warm

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed"),
    pytest.mark.heavy,
    pytest.mark.slow,
]

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "AMP119"
BAND = 0.05
"""How far int8 may be from the float model, as a share of the samples that are told right."""
KEYS = {
    "trains_for_it": ["conv.weight", "conv.bias", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"],
    "trains_for_it_in_a_script": [f"{layer}.{name}" for layer in (0, 2, 4) for name in ("weight", "bias")],
}
INPUTS = {"trains_for_it": torch.zeros(3, 1, 8, 8), "trains_for_it_in_a_script": torch.zeros(3, 12)}


@dataclass(frozen=True)
class Run:
    """A folder in which a script ran, and what the main process printed."""

    folder: Path
    lines: list[str]

    def number(self, label: str) -> float:
        """What an evaluation gave."""
        return next(float(line.split()[-1]) for line in self.lines if line.startswith(label))


Trained = Callable[..., Run]


@pytest.fixture
def trained(warm: Warm, tmp_path: Path) -> Trained:
    def run(name: str, kind: Quantization | None, ranks: int = 1, level: str = "O0") -> Run:
        folder = tmp_path / f"{kind}{ranks}"
        folder.mkdir()
        script = folder / "train.py"
        script.write_bytes((FIXTURES / name / "before.py").read_bytes())
        if kind is not None:
            report = migrate(script, Options(ddp=ranks > 1, quantize=kind))
            script.write_text(report.changes[0].after, encoding="utf-8")
        logs = [(folder / f"out{rank}", folder / f"err{rank}") for rank in range(ranks)]
        environment = {**os.environ, "AMP_OPT_LEVEL": level, "OMP_NUM_THREADS": "1"}
        if ranks == 1:
            ended = warm.run([Start(("train.py",), environment, *logs[0])], folder, seconds=400)
        else:
            ended = warm.launch(["train.py"], environment, folder, logs, seconds=400)
        assert not any(ended.statuses), [error.read_text(encoding="utf-8") for _, error in logs]
        assert not any(out.read_text(encoding="utf-8").strip() for out, _ in logs[1:])
        return Run(folder, logs[0][0].read_text(encoding="utf-8").splitlines())

    return run


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize(
    "name", ["best_checkpoint", "handed_through_functions", "of_a_script", "evaluates_in_its_loop"]
)
def test_the_float_model_is_the_original_bit_for_bit(name: str, kind: Quantization, trained: Trained) -> None:
    before, after = trained(name, None), trained(name, kind)
    told = [line for line in after.lines if not re.match(r"amp: |float32: |int8: ", line)]
    assert told[: len(before.lines)] == before.lines
    files = [path.relative_to(before.folder) for path in before.folder.rglob("*.pt*")]
    assert files
    for path in files:
        assert_equal(*(torch.load(run.folder / path, weights_only=True) for run in (before, after)))


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_int8_costs_little(kind: Quantization, trained: Trained) -> None:
    for ranks in (1, 2):
        run = trained("best_checkpoint", kind, ranks)
        assert run.number("int8:") == pytest.approx(run.number("float32:"), abs=BAND)
        assert run.number("float32:") > 0.6
        assert (run.folder / "net_int8.pt").is_file()


@pytest.mark.parametrize(("ranks", "level"), [(1, "O0"), (1, "O2"), (2, "O1")])
@pytest.mark.parametrize("name", list(KEYS))
def test_a_model_that_trained_for_int8_keeps_its_accuracy_there(
    name: str, ranks: int, level: str, trained: Trained
) -> None:
    run = trained(name, "qat", ranks, level)
    assert run.number("int8:") == pytest.approx(run.number("fake-quantized:"), abs=BAND)
    assert run.number("int8:") > 0.7
    file = next(path for path in run.folder.glob("*.pt") if not path.stem.endswith("_int8"))
    weights = torch.load(file, weights_only=True)
    assert list(weights.get("net", weights)) == KEYS[name], "a checkpoint that any reader of the model can load"
    quantized = amp.load_quantized(file.with_name(f"{file.stem}_int8.pt"))
    assert quantized.kind == "qat" and len(quantized(INPUTS[name])) == 3


def assert_equal(one: object, other: object) -> None:
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_equal(value, other[key])
    elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other
