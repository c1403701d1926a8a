"""What each level makes of a model, its checkpoints, its gradients and its optimizer's state."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import amp_runtime as amp
import pytest
import torch
import torch.nn.functional as F
from torch import nn

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.relu(self.norm(self.first(x))))


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for a in (2, 4)
        )
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.register_buffer("position", torch.linspace(-1, 1, 5 * 8).reshape(5, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(ids) + self.position))


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(10, 6, mode="mean", padding_idx=0)
        self.head = nn.Linear(6, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "mlp": (MLP, lambda: torch.randn(5, 6)),
    "conv": (Conv, lambda: torch.randn(3, 2, 6, 6)),
    "transformer": (Transformer, lambda: torch.randint(0, 11, (2, 5))),
    "embedding": (Bag, lambda: torch.randint(0, 10, (4, 3))),
}


def make(kind: str, seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    model, batch = MODELS[kind]
    return model(), batch()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, clip: float | None = None) -> float:
    optimizer.zero_grad()
    with amp.autocast():
        loss = model(batch).square().mean()
    amp.scaler.scale(loss).backward()
    if clip is not None:
        amp.scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    amp.scaler.step(optimizer)
    amp.scaler.update()
    return float(loss.detach())


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    ("level", "keep"),
    [
        ("O0", None),
        ("O0", True),
        ("O1", None),
        *((level, keep) for level in ("O2", "O3") for keep in (None, True, False)),
    ],
)
def test_weights_have_the_types_of_the_level(kind: str, level: Any, keep: Any) -> None:
    amp.init(level, dtype="bf16", keep_batchnorm_fp32=keep)
    model, batch = make(kind)
    prepared = amp.prepare_model(model)
    kept = (level == "O2") if keep is None else keep
    for module in model.modules():
        norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        half = level in ("O2", "O3") and not (norm and kept)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.is_floating_point():
                assert tensor.dtype is (torch.bfloat16 if half else torch.float32)
    out = prepared(batch)
    assert out.dtype is torch.float32
    optimizer = torch.optim.Adam(prepared.parameters(), lr=1e-3)
    assert step(prepared, optimizer, batch) < 100
    master = next(amp.master_params(optimizer))
    assert master.dtype is (torch.bfloat16 if level == "O3" else torch.float32)
    state = next(iter(optimizer.state.values()))
    assert state["exp_avg"].dtype is master.dtype


def test_masters_are_a_property_of_their_own() -> None:
    for level, wanted in (("O2", "False"), ("O3", True)):
        amp.init(level, dtype="bf16", master_weights=wanted)  # type: ignore[arg-type]
        model = amp.prepare_model(nn.Linear(2, 2))
        master = next(amp.master_params(torch.optim.SGD(model.parameters())))
        assert (master is model.weight) is (level == "O2")


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("dtype", [torch.float16, "bf16", "fp32", torch.float64])
def test_outputs_get_the_type_that_was_asked_for(level: Any, dtype: Any) -> None:
    amp.init(level, dtype="bf16", cast_model_outputs=dtype)

    class Two(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return {"out": super().forward(x), "count": torch.tensor(3)}

    out = amp.prepare_model(Two(2, 2))(torch.ones(1, 2))
    assert out["out"].dtype is {"bf16": torch.bfloat16, "fp32": torch.float32}.get(dtype, dtype)
    assert out["count"].dtype is torch.int64


def test_the_environment_turns_output_casts_off_with_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_OPT_LEVEL", "O0")
    amp.init("O1", cast_model_outputs="fp16")
    model = nn.Linear(2, 2)
    assert amp.prepare_model(model) is model and not model._forward_hooks


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("saved_at", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("loaded_at", ["O0", "O1", "O2"])
def test_checkpoints_are_interchangeable(kind: str, saved_at: Any, loaded_at: Any) -> None:
    amp.init(saved_at, dtype="bf16")
    model, batch = make(kind)
    model = amp.prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        step(model, optimizer, batch)
    saved = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
    saved.seek(0)
    states = torch.load(saved)
    assert all(value.dtype is torch.float32 for value in states["model"].values() if value.is_floating_point())
    amp.shutdown()
    amp.init(loaded_at, dtype="bf16")
    other = amp.prepare_model(make(kind, seed=1)[0])
    again = torch.optim.AdamW(other.parameters(), lr=1e-3)
    other.load_state_dict(states["model"])
    again.load_state_dict(states["optimizer"])
    for key, value in other.state_dict().items():
        assert torch.equal(value, states["model"][key]), key
    for index, state in again.state_dict()["state"].items():
        for name, value in state.items():
            wanted = states["optimizer"]["state"][index][name]
            assert torch.equal(value, wanted.to(value.dtype)) and value.dtype is torch.float32
    assert step(other, again, batch) < 100


@pytest.mark.parametrize(("level", "dtype"), [("O1", "bf16"), ("O2", "bf16"), ("O2", "fp16"), ("O3", "bf16")])
@pytest.mark.parametrize("kind", ["mlp", "transformer"])
@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_resuming_is_exact_at_every_step(level: Any, dtype: Any, kind: str, name: str) -> None:
    def start() -> tuple[Any, Any, torch.Tensor]:
        amp.init(level, dtype=dtype, init_scale=64, growth_interval=2)
        model, batch = make(kind)
        model = amp.prepare_model(model)
        options = {"momentum": 0.9} if name == "SGD" else {}
        return model, getattr(torch.optim, name)(model.parameters(), lr=0.01, **options), batch

    model, optimizer, batch = start()
    losses, states = [], []
    for _ in range(4):
        parts = (model.state_dict(), optimizer.state_dict(), amp.scaler.state_dict())
        states.append(copy.deepcopy(parts))
        losses.append(step(model, optimizer, batch, clip=0.5))
    assert len(set(losses)) == 4
    for start_at, (weights, moments, scale) in enumerate(states):
        amp.shutdown()
        model, optimizer, _ = start()
        model.load_state_dict(weights)
        optimizer.load_state_dict(moments)
        amp.scaler.load_state_dict(scale)
        assert [step(model, optimizer, batch, clip=0.5) for _ in losses[start_at:]] == losses[start_at:]


def test_a_float32_checkpoint_is_loaded_without_rounding_also_by_assignment() -> None:
    amp.init("O2", dtype="bf16")
    plain = MLP()
    model = amp.prepare_model(MLP())
    for options in ({}, {"assign": True}):
        nn.init.normal_(plain.first.weight)
        state = {key: value.clone() for key, value in plain.state_dict().items()}
        model.load_state_dict(state, **options)
        assert model.first.weight.dtype is torch.bfloat16
        assert torch.equal(model.first.weight, plain.first.weight.bfloat16())
        assert torch.equal(model.state_dict()["first.weight"], plain.first.weight)
        assert torch.equal(next(amp.master_params(torch.optim.SGD(model.parameters()))), plain.first.weight)
        assert torch.equal(model.first.state_dict()["weight"], plain.first.weight), "of a part"


def test_a_state_dict_shows_the_weights_as_they_are_and_is_alive() -> None:
    amp.init("O2", dtype="bf16")
    model = amp.prepare_model(nn.Linear(3, 1, bias=False))
    model.weight.data.fill_(0.25)
    state = model.state_dict()
    assert state["weight"].tolist() == [[0.25] * 3]
    state["weight"].mul_(0.999).add_(torch.ones(1, 3), alpha=0.001)  # an average written into the state dict
    expected = state["weight"].clone()
    model(torch.ones(1, 3))
    assert torch.equal(model.weight, expected.bfloat16()) and torch.equal(model.state_dict()["weight"], expected)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    state["weight"].add_(1.0)
    model.weight.grad = torch.zeros_like(model.weight)
    amp.scaler.step(optimizer)
    assert torch.equal(model.state_dict()["weight"], expected + 1)
    assert model.state_dict(keep_vars=True)["weight"] is model.weight


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_weights_copied_into_a_state_dict_reach_the_model(level: Any) -> None:
    amp.init(level, dtype="bf16")
    model = amp.prepare_model(nn.Linear(3, 1, bias=False))
    own = model.state_dict()
    own["weight"].copy_(torch.full((1, 3), 0.5))
    assert torch.equal(model.state_dict()["weight"], torch.full((1, 3), 0.5))
    model.state_dict()["weight"].mul_(2.0)
    del own
    assert model(torch.ones(1, 3)).item() == 3.0
    model.weight.data.fill_(0.25)
    assert model.state_dict()["weight"].tolist() == [[0.25] * 3]


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_lazy_parameters_are_refused(level: Any) -> None:
    amp.init(level)
    with pytest.raises(RuntimeError, match="lazy parameters; run one batch"):
        amp.prepare_model(nn.LazyLinear(2))


def test_buffers_are_saved_in_full_and_followed_when_replaced() -> None:
    amp.init("O2", dtype="bf16")
    model = Transformer()
    position = model.position.clone()
    amp.prepare_model(model)
    assert model.position.dtype is torch.bfloat16
    assert torch.equal(model.state_dict()["position"], position)
    model.position[0] = 0.5
    assert torch.equal(model.state_dict()["position"][0], torch.full((8,), 0.5))
    assert torch.equal(model.state_dict()["position"][1:], position[1:])
    model.position = torch.full((5, 8), 2.0, dtype=torch.bfloat16)
    assert torch.equal(model.state_dict()["position"], torch.full((5, 8), 2.0))


@pytest.mark.parametrize("copying", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_weights_and_masters_of_its_own(copying: Callable[[nn.Module], nn.Module]) -> None:
    amp.init("O2", dtype="bf16")
    model = amp.prepare_model(Transformer())
    clone = amp.prepare_model(copying(model))
    assert clone.head.weight is clone.embed.weight is not model.embed.weight, "tied weights stay tied"
    assert clone.embed.weight.dtype is torch.bfloat16
    before = copy.deepcopy(model.state_dict())
    assert all(torch.equal(value, before[key]) for key, value in clone.state_dict().items())
    batch = torch.randint(0, 11, (2, 5))
    assert torch.equal(clone(batch), model(batch))
    optimizer = torch.optim.SGD(clone.parameters(), lr=1e-6)
    assert next(amp.master_params(optimizer)).dtype is torch.float32
    step(clone, optimizer, batch)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    changed = clone.state_dict()["embed.weight"] != before["embed.weight"]
    assert changed.any(), "a step too small for half"
    clone.load_state_dict(before)
    assert all(torch.equal(value, before[key]) for key, value in clone.state_dict().items())


def test_a_pickled_o2_model_is_a_float32_model() -> None:
    amp.init("O2", dtype="fp16")
    model = amp.prepare_model(Conv())
    plain = pickle.loads(pickle.dumps(model))
    assert all(tensor.dtype is torch.float32 for tensor in plain.parameters())
    amp.shutdown()
    x = torch.randn(2, 2, 6, 6)
    reference = Conv()
    reference.load_state_dict(model.state_dict())
    assert torch.equal(plain.eval()(x), reference.eval()(x))


def test_a_part_prepared_before_works_inside_the_whole_without_autocast() -> None:
    amp.init("O2", dtype="bf16")
    part = amp.prepare_model(nn.Linear(4, 4))
    whole = amp.prepare_model(nn.Sequential(part, nn.Linear(4, 2)))
    assert whole(torch.ones(1, 4)).dtype is torch.float32
    assert len(part._state_dict_hooks) == 1


def test_moving_a_half_model_moves_its_masters() -> None:
    amp.init("O2", dtype="bf16")
    model = amp.prepare_model(nn.Linear(2, 2))
    model.to("meta")
    assert model.state_dict()["weight"].device.type == "meta"
    model = amp.prepare_model(nn.Linear(2, 2))
    model.float()
    assert model.state_dict()["weight"].data_ptr() == model.weight.data_ptr(), "float32 again, so itself"
    assert torch.equal(pickle.loads(pickle.dumps(model)).weight, model.weight)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("how", ["model", "masters", "data", "value", "assigned", "master assigned"])
def test_gradients_are_edited_in_float32(dtype: Any, how: str) -> None:
    amp.init("O2", dtype=dtype, loss_scale=2.0**14)
    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    amp.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    # As true gradients they are far below what float16 holds, and 1/3 is rounded by both.
    batch = torch.tensor([[1e-3, 2e-3, 3e-3, 1.0]])
    amp.scaler.scale(model(batch).sum() * 2.0**-13).backward()
    exact = batch.to(HALF[dtype]).float() * 2.0**-13
    amp.scaler.unscale_(optimizer)
    (master,) = amp.master_params(optimizer)
    assert master.grad is not None and torch.equal(master.grad, exact)
    assert model.weight.grad is not None and torch.equal(model.weight.grad, exact)
    limit = exact.norm().item() / 3
    if how == "model":
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
        assert norm == exact.norm()
    elif how == "masters":
        nn.utils.clip_grad_norm_(amp.master_params(optimizer), limit)
    elif how == "data":
        model.weight.grad.data = model.weight.grad.data / 3
    elif how == "value":
        nn.utils.clip_grad_value_(model.parameters(), 1e-6)
    elif how == "assigned":
        if not hasattr(model.weight, "grad_dtype"):
            pytest.skip("torch takes half gradients only")
        model.weight.grad = model.weight.grad / 3
    else:
        master.grad = master.grad / 3
    amp.scaler.step(optimizer)
    factor = limit / (exact.norm() + 1e-6) if how in ("model", "masters") else 1 / 3  # torch's clipping adds 1e-6
    wanted = exact.clamp(-1e-6, 1e-6) if how == "value" else exact * factor
    assert torch.allclose(model.state_dict()["weight"], -wanted, rtol=1e-5, atol=0)


def test_a_gradient_that_was_taken_away_is_not_stepped() -> None:
    amp.init("O2", dtype="fp16", loss_scale=8)
    model = amp.prepare_model(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = copy.deepcopy(model.state_dict())
    amp.scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    amp.scaler.unscale_(optimizer)
    model.weight.grad = None
    amp.scaler.step(optimizer)
    assert torch.equal(model.state_dict()["weight"], before["weight"])
    assert not torch.equal(model.state_dict()["bias"], before["bias"])


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("to_none", [True, False])
def test_clipping_step_after_step_agrees_with_float32(dtype: Any, to_none: bool) -> None:
    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = amp.prepare_model(nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        weights = []
        for _ in range(6):
            optimizer.zero_grad(set_to_none=to_none)
            amp.scaler.scale(model(torch.ones(2, 4)).square().mean()).backward()
            amp.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            amp.scaler.step(optimizer)
            amp.scaler.update()
            weights.append(model.state_dict()["weight"].clone())
        return weights

    plain = train()
    amp.init("O2", dtype=dtype)
    for wanted, got in zip(plain, train(), strict=True):
        assert torch.allclose(wanted, got, atol=0.02)


def test_gradients_kept_after_clipping_are_accumulated_further() -> None:
    for dtype in ("fp16", "bf16"):
        amp.init("O2", dtype=dtype, loss_scale=8.0)  # type: ignore[arg-type]
        model = amp.prepare_model(nn.Linear(2, 1, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        before = model.state_dict()["weight"].clone()
        for _ in range(2):
            amp.scaler.scale(model(torch.ones(1, 2)).sum()).backward()
            amp.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        amp.scaler.step(optimizer)
        assert (before - model.state_dict()["weight"]).norm().item() == pytest.approx(0.5, rel=1e-3)


def test_sparse_gradients_are_stepped_at_o2() -> None:
    amp.init("O2", dtype="bf16")
    model = amp.prepare_model(nn.Embedding(5, 2, sparse=True))
    before = model.state_dict()["weight"].clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.scaler.scale(model(torch.tensor([1, 1, 3])).sum()).backward()
    amp.scaler.unscale_(optimizer)
    amp.scaler.step(optimizer)
    moved = (before - model.state_dict()["weight"])[:, 0]
    assert torch.allclose(moved, torch.tensor([0.0, 0.2, 0.0, 0.1, 0.0]), atol=1e-6)


def test_optimizers_are_watched_only_while_there_are_masters() -> None:
    torchs = torch.optim.Optimizer.load_state_dict
    amp.init("O1")
    amp.prepare_model(nn.Linear(1, 1))
    assert torch.optim.Optimizer.load_state_dict is torchs
    amp.init("O2")
    amp.prepare_model(nn.Linear(1, 1))
    assert torch.optim.Optimizer.load_state_dict is not torchs
    amp.shutdown()
    assert torch.optim.Optimizer.load_state_dict is torchs


def test_master_params_are_the_parameters_where_there_are_no_masters() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    assert list(map(id, amp.master_params(optimizer))) == list(map(id, model.parameters()))
    with pytest.raises(TypeError, match=r"Linear.*param_groups"):
        amp.master_params(model)


class Autoencoder(nn.Module):
    """Trained by its forward pass; a script samples from it with ``decode``, or uses ``encoder`` by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6, 2))
        self.grow = nn.Linear(2, 8)
        self.memory = nn.GRU(1, 3, batch_first=True)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return self.memory(self.grow(z).unsqueeze(2))[0].sum(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encoder(x.unsqueeze(1)))


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_parts_and_methods_of_a_half_model_take_float32_outside_of_regions(level: Any) -> None:
    torch.manual_seed(0)
    plain = Autoencoder()
    amp.init(level, dtype="bf16")
    model = amp.prepare_model(copy.deepcopy(plain))
    z, x = torch.randn(5, 2), torch.randn(5, 8)
    with torch.no_grad():
        assert torch.allclose(model.decode(z).float(), plain.decode(z), atol=0.05)
        assert torch.allclose(model.encoder(x.unsqueeze(1)).float(), plain.encoder(x.unsqueeze(1)), atol=0.05)


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize("region", [True, False])
def test_half_norms_take_float32_inputs(level: Any, region: bool) -> None:
    norms = [
        nn.BatchNorm2d(4),
        nn.BatchNorm2d(4, affine=False),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4, affine=True),
        nn.LayerNorm(3),
        nn.RMSNorm(3),
    ]
    amp.init(level, dtype="bf16", keep_batchnorm_fp32=False)

    class Wide(nn.Module):
        def __init__(self, norm: nn.Module) -> None:
            super().__init__()
            self.norm = norm

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x.float())

    x = torch.randn(2, 4, 3, 3)
    for norm in norms:
        expected = copy.deepcopy(norm)(x)
        model = amp.prepare_model(Wide(norm))
        with amp.autocast(enabled=region):
            assert torch.allclose(model(x), expected, atol=0.05)


def test_masters_may_be_asked_for_before_gradients_are_unscaled() -> None:
    amp.init("O2", dtype="fp16", loss_scale=8)
    model = amp.prepare_model(nn.Linear(2, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.state_dict()["weight"].clone()
    amp.scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    (master,) = amp.master_params(optimizer)
    assert master.grad.tolist() == [[8.0, 8.0]], "scaled still"
    master.grad[0, 1] = 0.0
    amp.scaler.unscale_(optimizer)
    assert model.weight.grad.tolist() == [[1.0, 0.0]]
    amp.scaler.step(optimizer)
    assert torch.allclose(before - model.state_dict()["weight"], torch.tensor([[1.0, 0.0]]))


def test_a_compiled_half_model_trains_and_saves() -> None:
    torch.manual_seed(0)
    amp.init("O2", dtype="bf16")
    model = amp.prepare_model(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = torch.optim.Adam(compiled.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        losses.append(step(compiled, optimizer, torch.ones(3, 4), clip=1.0))
        assert compiled.state_dict()["_orig_mod.0.weight"].dtype is torch.float32
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_a_model_that_is_gone_leaves_nothing_behind(level: Any) -> None:
    amp.init(level, dtype="bf16")
    model = amp.prepare_model(MLP())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer, torch.randn(4, 6), clip=1.0)
    state = model.state_dict()
    kept = [weakref.ref(tensor) for tensor in (*amp.master_params(optimizer), *state.values(), *model.parameters())]
    del model, optimizer, state
    gc.collect()
    assert not any(reference() is not None for reference in kept)


@pytest.mark.parametrize("way", ["alias", "assigned", "in place", "detached", "after shutdown"])
def test_whatever_writes_into_half_weights_reaches_the_masters(way: str) -> None:
    amp.init("O2", dtype="bf16")
    model = amp.prepare_model(nn.Linear(4, 4))
    optimizer = amp.optim.SGD(model.parameters(), lr=0.0)
    batch = torch.randn(2, 4)
    alias = model.weight.data
    for number in range(4):
        if number == 3:
            if way == "alias":
                alias.fill_(3.0)  # it was read three steps ago
            elif way == "assigned":
                model.weight.data = torch.full((4, 4), 3.0, dtype=torch.bfloat16)
            elif way == "in place":
                with torch.no_grad():
                    model.weight.fill_(3.0)
            elif way == "detached":
                model.weight.detach().fill_(3.0)
            else:
                amp.shutdown()
                assert "data" not in vars(nn.Parameter)
                amp.init("O2", dtype="bf16")
                model.weight.data.fill_(3.0)
        step(model, optimizer, batch)
    assert model.state_dict()["weight"].eq(3.0).all() and model.weight.eq(3.0).all()


def test_a_user_s_own_optimizer_steps_masters_with_float32_state() -> None:
    amp.init("O2", dtype="fp16", loss_scale=128.0)
    model = amp.prepare_model(nn.Linear(4, 4))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)  # which makes its state as it is built, half here
    step(model, optimizer, torch.randn(2, 4))
    assert {state["sum"].dtype for state in optimizer.state.values()} == {torch.float32}


class Slow(torch.optim.Optimizer):
    """Steps another optimizer, whose groups it shares, and pulls the weights halfway back every other step."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.count = inner, 0
        self.param_groups = inner.param_groups
        self.defaults: dict[str, Any] = {}
        self.state = {p: {"slow": p.detach().clone()} for group in self.param_groups for p in group["params"]}

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)

    def step(self, closure: Any = None) -> Any:
        result = self.inner.step(closure)
        self.count += 1
        for group in self.param_groups:
            for parameter in group["params"] if self.count % 2 == 0 else ():
                slow = self.state[parameter]["slow"]
                slow.lerp_(parameter.detach(), 0.5)
                parameter.data.copy_(slow)
        return result


def test_an_optimizer_around_another_saves_and_loads_its_state() -> None:
    amp.init("O2", dtype="bf16")
    model = amp.prepare_model(nn.Linear(4, 4))
    optimizer = Slow(amp.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9))
    batch = torch.randn(2, 4)
    for _ in range(3):
        step(model, optimizer, batch)
        assert set(optimizer.inner.state) == set(optimizer.state) == set(model.parameters())
    saved = copy.deepcopy(optimizer.state_dict())
    assert {state["momentum_buffer"].dtype for state in saved["state"].values()} == {torch.float32}
    optimizer.load_state_dict(saved)
    assert set(optimizer.param_groups[0]["params"]) == set(model.parameters()), "the groups from before"
    before = [master.clone() for master in amp.master_params(optimizer)]
    step(model, optimizer, batch)
    for master, parameter, old in zip(amp.master_params(optimizer), model.parameters(), before, strict=True):
        assert not torch.equal(master, old) and torch.equal(master.to(torch.bfloat16), parameter)
    assert list(optimizer.inner.state) and set(optimizer.inner.state) == set(model.parameters())
