"""What raises in torch where the runtime converts: writes through an index, LSTMs on the CPU, fused kernels of SGD."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from amp_rules.plan.options import Options

sys.path.insert(0, str(Path(__file__).parents[1] / "rules"))

from migrating import FIXTURES, migrated_text

SCRIPT = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x):
        h = self.body(x)
        index = torch.arange(len(h)) % 2
        {write}
        return out.sum(0)


model = Net()
optimizer = torch.optim.{optimizer}
for x, y in DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
ADAM = "Adam(model.parameters(), lr=0.1)"


def script(write: str, optimizer: str = ADAM) -> str:
    return SCRIPT.format(write=write, optimizer=optimizer)


def translated(folder: Path, text: str, dtype: str = "auto") -> str:
    report, result = migrated_text(folder, text, Options(target="torch", dtype=dtype))
    assert report.precision == "migrated", report.refusals
    return result


def output(folder: Path, text: str, level: str) -> list[str]:
    path = folder / f"run_{level}.py"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, env={**os.environ, "AMP_OPT_LEVEL": level}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_writes_of_mixed_types_convert(dtype: str, tmp_path: Path) -> None:
    before = (FIXTURES / "torch" / "precision_index_writes" / "before.py").read_text()
    after = translated(tmp_path, before, dtype)
    assert output(tmp_path, after, "O0") == output(tmp_path, before, "O0")
    assert len(output(tmp_path, after, "O1")) == 4


@pytest.mark.parametrize(
    ("write", "written"),
    [
        ("out = torch.zeros(2, 4).index_add(0, index, h)", "index, h.float())"),
        ("out = torch.zeros(2, 4, dtype=x.dtype).index_add(0, index, h)", "index, h.to(at_least_float32(x.dtype)))"),
        ("out = x.new_zeros(2, 4).index_copy(0, index[:2], h[:2])", "h[:2].to(x.dtype))"),
        ("out = x[:2].clone().index_add(0, index, h)", "index, h.to(x[:2].dtype))"),
        ("out = torch.empty_like(x)\n        out[index] = h", "out[index] = h.to(out.dtype)"),
    ],
)
def test_what_is_written_gets_the_type_of_what_it_is_written_into(write: str, written: str, tmp_path: Path) -> None:
    assert written in translated(tmp_path, script(write))


@pytest.mark.parametrize(
    "write",
    [
        "out = torch.zeros_like(h).index_copy(0, index[:2], h[:2])",
        "out = torch.zeros(2, 4).scatter_(0, index[None, :4], 1.0)",
        "out = {}\n        out[len(x)] = h\n        out = h",
        "out = torch.zeros(8, 4)\n        out[:4] = h[:4]",
        "out = torch.zeros(2, dtype=torch.long).index_add(0, index, torch.ones_like(index)) * h.sum()",
    ],
)
def test_writes_of_one_type_or_of_numbers_are_left_alone(write: str, tmp_path: Path) -> None:
    # Counters are another rewrite's.
    assert f"        {write.splitlines()[-1].strip()}\n" in translated(tmp_path, script(write))


def test_a_type_that_no_words_name_declines(tmp_path: Path) -> None:
    text = script("out = next(iter([torch.zeros(2, 4)])).index_add(0, index, h)")
    report, _ = migrated_text(tmp_path, text, Options(target="torch"))
    assert report.precision == "declined"
    assert "raises where one of its tensors is half" in report.refusals[0].message


def test_the_default_type_is_asked_for_where_the_script_changes_it(tmp_path: Path) -> None:
    text = "import torch\n\ntorch.set_default_dtype(torch.float64)\n"
    text += script("out = torch.zeros(2, 4).index_add(0, index, h)").removeprefix("import torch\n")
    assert "h.to(torch.get_default_dtype())" in translated(tmp_path, text)


@pytest.mark.parametrize(
    ("optimizer", "is_fused"),
    [
        (ADAM, True),
        ("AdamW(model.parameters())", True),
        # Its momentum begins with memory that nobody wrote where the scaler skips the first step.
        ("SGD(model.parameters(), lr=0.1, momentum=0.9)", False),
    ],
)
def test_the_fused_kernel_of_sgd_is_not_asked_for(optimizer: str, is_fused: bool, tmp_path: Path) -> None:
    text = translated(tmp_path, script("out = h", optimizer))
    assert ("fused=" in text) == is_fused
    assert f"optimizer = torch.optim.{optimizer[:-1]}" in text


@pytest.mark.parametrize("made", ["nn.LSTM(4, 4)", 'getattr(nn, "LSTM")(4, 4)'])
def test_lstms_compute_in_half_on_cuda_alone(made: str, tmp_path: Path) -> None:
    text = script("out = h").replace("nn.Linear(4, 4)", made).replace("self.body(x)", "self.body(x[None])[0][0]")
    after = translated(tmp_path, text)
    assert 'USE_AMP = torch.cuda.is_available() and os.environ.get("AMP_OPT_LEVEL"' in after
    assert output(tmp_path, after, "O0") == output(tmp_path, text, "O0")
    assert output(tmp_path, after, "O1")


def test_what_the_linter_knows_to_raise_declines(tmp_path: Path) -> None:
    text = script("out = torch.zeros(1, 4, 4)\n        out.baddbmm_(h.t()[None], h[None])")
    report, _ = migrated_text(tmp_path, text, Options(target="torch"))
    assert report.precision == "declined"
    assert "AMP714" in report.refusals[0].message and report.refusals[0].span.start.line == 17


@pytest.mark.parametrize(
    ("read", "line"),
    [
        ("print(nn.functional.softmax(out, 0).sum())", "        out = model(x).float()\n"),
        ("print((out.detach() @ y[:4]).sum())", "        out = model(x).float()\n"),
        ("print(nn.MSELoss()(out, y[:4, 0]).item())", "        out = model(x).float()\n"),
        # These are as right in half.
        ("print(out.argmax(), out.shape)", "        out = model(x)\n"),
        # What it is may be anything.
        ("print(out)", "        out = model(x)\n"),
        ("out = out[0]\n    print(nn.functional.softmax(out, 0).sum())", "        out = model(x)\n"),
    ],
)
def test_outputs_that_are_computed_with_after_their_region_are_float32(read: str, line: str, tmp_path: Path) -> None:
    text = script("out = h").replace("loss = model(x).square()", "out = model(x)\n    loss = out.square()")
    after = translated(tmp_path, text.replace("print(loss.item())", read))
    assert line in after
    assert output(tmp_path, after, "O1")
