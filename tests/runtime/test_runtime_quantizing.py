"""Models in int8: outputs, sizes, files and errors. Passed over where torchao is not installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import amp_runtime as amp
import pytest
import torch
from torch import nn
from torch.nn import functional as F

needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None,
    reason='torchao is not installed: pip install -c constraints.txt -e ".[quantize]"',
)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.drop = nn.Dropout(0.5)
        self.wide = nn.Linear(16 * 16, 256)
        self.out = nn.Linear(256, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.out(self.drop(F.relu(self.wide(x.flatten(1)))))


class Branching(nn.Module):
    """Export cannot follow it: it decides by a value."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 64)
        self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        self.head = nn.Linear(64, 4)
        self.own = nn.Parameter(torch.ones(64, 64))

    def forward(self, tokens):
        x = self.body(self.embedding(tokens).mean(1))
        if x.sum().item() > 1e9:
            x = -x
        return self.head(x @ self.own / 64)


def images(batches=4, size=16):
    torch.manual_seed(1)
    return [(torch.randn(size, 1, 8, 8), torch.randint(10, (size,))) for _ in range(batches)]


def trained_conv():
    torch.manual_seed(0)
    model = ConvNet()
    for x, _ in images():
        model(x)  # running statistics other than 0 and 1
    return model


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 10))


def off(found, expected):
    found, expected = found.detach(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.fixture(scope="module")
def static():
    model = trained_conv()
    return model, amp.quantize(model, "static", calibration=images())


@needs_torchao
def test_dynamic_is_near_and_small():
    model = mlp().train()
    x = torch.randn(8, 32)
    quantized = amp.quantize(model, "dynamic")
    assert off(quantized(x), model(x)) < 0.05
    assert quantized.bytes < 0.35 * quantized.float_bytes
    assert model.training and model[0].weight.dtype is torch.float32 and quantized.left_float == {}


ON_AN_OLD_PROCESSOR = """
import warnings
import torch
from amp_runtime._quantizing import products

torch.manual_seed(0)
left, right = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((24, 1500), (1500, 40)))
left[0], right[:, 0] = 127, 127
expected = left.to(torch.int32) @ right.to(torch.int32)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    products.mend()
    products.mend()
assert len(told) <= 1, told
with torch.autocast("cpu", dtype=torch.bfloat16):
    assert torch.equal(torch._int_mm(left, right), expected)
out = torch.empty(24, 40, dtype=torch.int32)
torch._int_mm(left, right, out=out)
assert torch.equal(out, expected)
"""


@pytest.mark.parametrize("isa", ["AVX2", "DEFAULT"])
def test_int8_products_are_exact_on_every_processor(isa):
    # oneDNN reads the variable once, so each takes a process. Without VNNI its own products overflow.
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa}
    found = subprocess.run(
        [sys.executable, "-c", ON_AN_OLD_PROCESSOR], env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr


@needs_torchao
def test_dynamic_names_what_has_no_kernel(capsys):
    quantized = amp.quantize(trained_conv(), "dynamic")
    assert set(quantized.left_float) == {"conv.weight"}
    assert "float stay conv.weight" in capsys.readouterr().out


@needs_torchao
def test_static_is_near_small_and_folds_batch_norm(static):
    model, quantized = static
    x = torch.randn(16, 1, 8, 8)
    assert model.training
    assert off(quantized(x), model.eval()(x)) < 0.1
    model.train()
    assert quantized.bytes < 0.3 * quantized.float_bytes
    assert quantized.left_float == {}
    assert not any("norm" in name for name in quantized.state_dict())


@needs_torchao
@pytest.mark.parametrize("size", [1, 2, 7])
def test_static_takes_other_batches(static, size):
    _, quantized = static
    assert quantized(torch.randn(size, 1, 8, 8)).shape == (size, 10)


@needs_torchao
def test_a_script_may_call_train_and_use_autocast_around_it(static):
    _, quantized = static
    x = torch.randn(4, 1, 8, 8)
    expected = quantized(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(quantized.train().eval()(x), expected)


@needs_torchao
def test_a_static_model_is_saved_whole(static, tmp_path):
    _, quantized = static
    amp.save_quantized(quantized, tmp_path / "int8.pt")
    loaded = amp.load_quantized(tmp_path / "int8.pt")
    for size in (1, 5):
        x = torch.randn(size, 1, 8, 8)
        assert torch.equal(loaded(x), quantized(x))
    assert (loaded.kind, loaded.left_float) == ("static", {})
    amp.save_quantized(loaded, tmp_path / "again.pt")
    assert torch.equal(amp.load_quantized(tmp_path / "again.pt")(x), quantized(x))


@needs_torchao
def test_a_dynamic_model_is_loaded_with_its_class(tmp_path):
    quantized = amp.quantize(mlp(), "dynamic")
    amp.save_quantized(quantized, tmp_path / "int8.pt")
    with pytest.raises(ValueError, match="that need the model's class"):
        amp.load_quantized(tmp_path / "int8.pt")
    with pytest.raises(ValueError, match="other weights"):
        amp.load_quantized(tmp_path / "int8.pt", nn.Linear(2, 2))
    x = torch.randn(3, 32)
    assert torch.equal(amp.load_quantized(tmp_path / "int8.pt", mlp())(x), quantized(x))


@needs_torchao
def test_static_leaves_what_cannot_be_exported_and_names_it(tmp_path):
    torch.manual_seed(0)
    model = Branching().eval()
    tokens = torch.randint(20, (8, 5))
    quantized = amp.quantize(model, "static", calibration=[tokens])
    assert set(quantized.left_float) == {"embedding.weight", "own"}
    assert "cannot be exported" in quantized.left_float["own"]
    assert off(quantized(tokens), model(tokens)) < 0.1
    amp.save_quantized(quantized, tmp_path / "int8.pt")
    loaded = amp.load_quantized(tmp_path / "int8.pt", Branching())
    assert torch.equal(loaded(tokens[:1]), quantized(tokens[:1]))


def check_qat(model, batches, path):
    prepared = amp.quantize(model, "qat", calibration=batches)
    assert {name.removeprefix("model.") for name, _ in prepared.named_parameters()} == set(
        dict(model.named_parameters())
    )
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.05)
    losses = []
    for epoch in range(6):
        prepared.train()
        if epoch == 5:
            prepared.freeze_observers()
        for x, y in batches:
            loss = F.cross_entropy(prepared(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0]
    x = batches[0][0][:5] * 0.9
    prepared.eval()
    assert torch.equal(prepared(x), prepared(x)), "dropout rests, and batch norm"
    quantized = amp.convert_quantized(prepared)
    assert off(quantized(x), prepared(x)) < 0.1
    assert quantized.bytes < 0.36 * quantized.float_bytes
    amp.save_quantized(quantized, path)
    assert torch.equal(amp.load_quantized(path)(x), quantized(x))


@needs_torchao
def test_qat_trains_freezes_and_converts(tmp_path):
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 10))
    torch.manual_seed(0)
    batches = [(torch.randn(16, 32), torch.randint(10, (16,))) for _ in range(4)]
    check_qat(model, batches, tmp_path / "int8.pt")


@needs_torchao
@pytest.mark.parametrize("frozen_first", [False, True])
def test_ranges_that_are_frozen_before_any_step_are_found_in_the_only_epoch(frozen_first):
    torch.manual_seed(0)
    batches = [(torch.randn(16, 32), torch.randint(10, (16,))) for _ in range(4)]
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    prepared = amp.quantize(model, "qat", calibration=batches)
    # A script calls `train()` in the epoch's function, below the line that freezes, or above it.
    for step in (
        (prepared.freeze_observers, prepared.train) if frozen_first else (prepared.train, prepared.freeze_observers)
    ):
        step()
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.05)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(prepared(x), y).backward()
        optimizer.step()
    prepared.eval()
    x = batches[0][0]
    assert off(prepared(x), model(x)) < 0.5
    assert off(amp.convert_quantized(prepared)(x), prepared(x)) < 0.1
    prepared.train()
    assert not any(module.observer_enabled for module in prepared.modules() if hasattr(module, "observer_enabled"))


@needs_torchao
def test_a_checkpoint_of_training_for_int8_is_that_of_the_model(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(8, 8)
            self.other = nn.Linear(8, 8)
            self.unused = nn.Linear(2, 2)
            self.other.weight = self.model.weight
            self.register_buffer("mean", torch.zeros(8))
            self.register_buffer("scratch", torch.zeros(8), persistent=False)

        def forward(self, x):
            return self.other(F.relu(self.model(x - self.mean))) + self.scratch

    torch.manual_seed(0)
    model, x = Tied(), torch.randn(4, 8)
    first, second = (amp.quantize(model, "qat", calibration=[batch]) for batch in (x, 9 * x))
    first(3 * x)
    assert list(first.state_dict()) == list(model.state_dict())
    torch.save({"model": first.state_dict()}, tmp_path / "net.pt")
    state = torch.load(tmp_path / "net.pt", weights_only=True)["model"]
    model.load_state_dict(state)
    assert not torch.equal(second.eval()(x), first.eval()(x)), "the ranges differ"
    second.load_state_dict(state)
    assert torch.equal(second(x), first(x)), "they go with the weights"
    third = amp.quantize(model, "qat", calibration=[x])
    third.load_state_dict(dict(state))  # the weights alone
    assert torch.isfinite(third(x)).all()
    with pytest.raises(RuntimeError, match="Missing key"):
        third.load_state_dict({"other.weight": state["other.weight"]})


@needs_torchao
@pytest.mark.parametrize("kind", ["static", "qat"])
def test_a_model_that_draws_is_compared_by_the_same_numbers(kind):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x) + 3 * torch.randn_like(x)

    amp.quantize(Noisy(), kind, calibration=[torch.randn(4, 8)])


@needs_torchao
def test_a_model_that_trains_for_int8_stays_float32_at_every_level():
    prepared = amp.quantize(mlp(), "qat", calibration=[torch.randn(4, 32)])
    amp.init(opt_level="O2", dtype="bf16", quantize="qat")
    try:
        model = amp.prepare_model(prepared)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        model(torch.randn(4, 32, dtype=torch.bfloat16)).sum().backward()
    finally:
        amp.shutdown()


@needs_torchao
@pytest.mark.slow  # torchao traces its patterns of batch norm for two minutes
def test_qat_folds_batch_norm(tmp_path):
    check_qat(trained_conv(), images(), tmp_path / "int8.pt")


@needs_torchao
def test_qat_refuses_a_model_that_evaluates_in_another_way():
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x) if self.training else self.layer(x).softmax(1)

    with pytest.raises(RuntimeError, match="evaluates in another way"):
        amp.quantize(Other(), "qat", calibration=[torch.randn(4, 8)])


@needs_torchao
def test_qat_says_that_a_model_cannot_be_exported():
    with pytest.raises(RuntimeError, match="cannot export the model, which 'qat' needs"):
        amp.quantize(Branching(), "qat", calibration=[torch.randint(20, (8, 5))])


@needs_torchao
def test_random_states_stay_as_they_were():
    model, loader = mlp(), torch.utils.data.DataLoader(torch.randn(32, 32), batch_size=8, shuffle=True)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    amp.quantize(model, "static", calibration=loader)
    assert torch.equal(torch.rand(1), expected)


@needs_torchao
def test_inputs_are_made_of_batches():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, left, right=None):
            return self.layer(left) + right

    torch.manual_seed(0)
    batch = {"left": torch.randn(64, 16), "right": torch.randn(64, 16), "label": torch.ones(64)}
    model = Two()
    quantized = amp.quantize(model, "static", calibration=[batch])
    given = {"left": torch.randn(6, 16), "right": torch.randn(6, 16)}
    assert off(quantized(**given), model(**given)) < 0.2
    pair = amp.quantize(model, "static", calibration=[batch], inputs=lambda b: (b["left"], b["right"]))
    assert pair(given["left"], given["right"]).shape == (6, 16)


@needs_torchao
@pytest.mark.parametrize("kind", ["static", "qat"])
def test_no_calibration_data_is_an_error(kind):
    with pytest.raises(ValueError, match="without calibration"):
        amp.quantize(mlp(), kind)
    with pytest.raises(ValueError, match="loader without a batch"):
        amp.quantize(mlp(), kind, calibration=[])


@needs_torchao
def test_wrong_use_is_refused(tmp_path):
    with pytest.raises(ValueError, match="allowed: 'dynamic', 'static', 'qat'"):
        amp.quantize(mlp(), "int4")
    with pytest.raises(TypeError, match=r"batch of str; give inputs="):
        amp.quantize(mlp(), "static", calibration=["text"])
    with pytest.raises(RuntimeError, match="under autocast"), torch.autocast("cpu", dtype=torch.bfloat16):
        amp.quantize(mlp(), "dynamic")
    with pytest.raises(ValueError, match="nothing that can be int8"):
        amp.quantize(nn.Sequential(nn.Conv1d(2, 2, 1)), "dynamic")
    with pytest.raises(TypeError, match="convert_quantized got Sequential"):
        amp.convert_quantized(mlp())
    with pytest.raises(TypeError, match="save_quantized got Sequential"):
        amp.save_quantized(mlp(), tmp_path / "x.pt")
    small = amp.quantize(mlp(), "dynamic")
    amp.save_quantized(small, tmp_path / "small.pt")
    for other in (nn.Sequential(nn.Linear(5, 3)), nn.Sequential(*mlp(), nn.Linear(4, 4)), mlp()[:1]):
        with pytest.raises(ValueError, match="with other weights than Sequential has: "):
            amp.load_quantized(tmp_path / "small.pt", other)
    torch.save({"model": 1}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="no int8 model"):
        amp.load_quantized(tmp_path / "other.pt")


RANKS = """
import os
import re
import amp_runtime as amp
import torch
from torch import nn

amp.init(opt_level="O0", ddp=True)
torch.manual_seed(0)
model = amp.prepare_model(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)))
mine = [torch.randn(8, 32) * (1 + amp.rank()) for _ in range(1 + amp.rank())]
quantized = amp.quantize(model, "static", calibration=mine)
outputs = amp.gather(quantized(torch.ones(2, 32)))
assert torch.equal(outputs[:2], outputs[2:]), "ranks have the ranges of the main process"
path = os.path.join(os.environ["CHECK_DIR"], "int8.pt")
amp.save_quantized(quantized, path)
amp.barrier()
assert torch.equal(amp.load_quantized(path)(torch.ones(2, 32)), quantized(torch.ones(2, 32)))
for empty in (0, 1):
    try:
        amp.quantize(model, "static", calibration=[] if amp.rank() == empty else mine)
    except (ValueError, RuntimeError) as error:
        assert "loader without a batch" in str(error), error
    else:
        raise AssertionError("rank %d had no batch, and nobody was told" % empty)
narrow = [torch.randn(8, 31)]
for kind, bad, words in (
    ("static", None, "without calibration"),
    ("static", narrow, "cannot be multiplied"),
    ("static", mine + narrow, "== 32|x31"),
    ("qat", narrow, "cannot be multiplied"),
    ("qat", [], "loader without a batch"),
    ("int4", mine, "allowed: 'dynamic', 'static', 'qat'"),
):
    try:
        amp.quantize(model, kind if amp.rank() or kind != "int4" else "dynamic", bad if amp.rank() else mine)
    except (ValueError, RuntimeError, AssertionError) as error:
        assert re.search(words, str(error)), error
        assert amp.rank() or "failed on rank 1" in str(error), error
    else:
        raise AssertionError(f"rank 1 had {bad} for {kind}, and nobody was told")
prepared = amp.prepare_model(amp.quantize(model, "qat", calibration=mine))
optimizer = torch.optim.SGD(prepared.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    prepared(mine[0]).pow(2).mean().backward()
    optimizer.step()
outputs = amp.gather(amp.convert_quantized(prepared)(torch.ones(2, 32)))
assert torch.equal(outputs[:2], outputs[2:])
print("done")
"""


@needs_torchao
@pytest.mark.heavy
@pytest.mark.slow
def test_two_ranks_get_the_same_model_or_the_same_error(launcher, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(RANKS)
    done = launcher.together(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout


def test_without_torchao_the_error_says_how_to_install_it(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchao"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(ImportError, match="pip install 'torchao"):
        amp.quantize(mlp(), "dynamic")
    with pytest.raises(ImportError, match="pip install 'torchao"):
        amp.init(opt_level="O0", quantize="static")  # before anything has trained
    with pytest.raises(ValueError, match="allowed: 'dynamic', 'static', 'qat'"):
        amp.init(opt_level="O0", quantize="int4")
    assert amp.opt_level() == "O0"
