"""What sharded models are refused: on every rank, so that none waits for another; and what works beside."""

from __future__ import annotations

import copy
from typing import Any

import amp_runtime as amp
import torch
from amp_runtime._core.dtensors import is_sharded, whole
from amp_runtime._distributed.sharding import blocks_of
from amp_runtime.apex import amp as apex_amp
from amp_runtime.apex.parallel import DistributedDataParallel as ApexDDP
from amp_runtime.apex.parallel import Reducer as ApexReducer
from sharding import Net, adamw, batch, begin, made, raised, train
from support import run_checks
from torch import nn


def check_levels_and_options_that_shards_do_not_have() -> None:
    assert "O3" in raised(ValueError, lambda: amp.init("O3", parallel="fsdp"))
    assert "combine_grad" in raised(ValueError, lambda: amp.init("O1", parallel="fsdp", combine_grad=True))
    assert "master_weights" in raised(ValueError, lambda: amp.init("O2", parallel="fsdp", master_weights=False))
    assert "allowed: None, 'ddp', 'fsdp'" in raised(ValueError, lambda: amp.init("O1", parallel="zero"))  # type: ignore[arg-type]
    amp.init("O3", ddp=True, dtype="bf16", parallel="ddp")
    assert "O3" in raised(ValueError, lambda: amp.prepare_model(Net(), shard=True))
    amp.init("O1", parallel="ddp", combine_grad=True)
    assert "combine_grad" in raised(ValueError, lambda: amp.prepare_model(Net(), shard=True))
    amp.init("O1", combine_grad=False)


def check_keywords_of_whole_gradients() -> None:
    begin("O1", True)
    for options in ({"delay_allreduce": True}, {"message_size": 100}, {"gradient_predivide_factor": 2.0}):
        assert next(iter(options)) in raised(ValueError, lambda: amp.prepare_model(Net(), **options))  # noqa: B023
    model = amp.prepare_model(Net(), static_graph=True, allreduce_always_fp32=True)
    train(model, adamw(model.parameters()), steps=1)
    assert not is_sharded(next(amp.prepare_model(Net(), shard=False).parameters()))
    begin("O1", False)
    assert is_sharded(next(amp.prepare_model(Net(), shard=True).parameters()))


def check_models_that_cannot_be_shared_out() -> None:
    begin("O1", True)
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    assert "float32, float64" in raised(ValueError, lambda: amp.prepare_model(mixed))
    sparse = nn.EmbeddingBag(5, 2, sparse=True)
    assert "sparse=True" in raised(ValueError, lambda: amp.prepare_model(sparse))
    scalar = nn.Linear(2, 2)
    scalar.register_parameter("gain", nn.Parameter(torch.ones(())))
    assert "no dimension" in raised(ValueError, lambda: amp.prepare_model(scalar))
    assert "meta device" in raised(RuntimeError, lambda: amp.prepare_model(nn.Linear(2, 2, device="meta")))
    wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    assert "the model itself" in raised(RuntimeError, lambda: amp.prepare_model(wrapped))
    whole_of_parts = nn.Sequential(amp.prepare_model(nn.Linear(2, 2)), nn.Linear(2, 2))
    for shard in (True, False):
        text = raised(RuntimeError, lambda: amp.prepare_model(whole_of_parts, shard=shard))  # noqa: B023
        assert "sharded already" in text


def check_what_would_need_whole_parameters() -> None:
    model, optimizer = made("O1", True)
    assert "sharded already" in raised(RuntimeError, lambda: amp.Reducer(model))
    assert "sharded already" in raised(RuntimeError, lambda: ApexDDP(model))
    assert "sharded already" in raised(RuntimeError, lambda: ApexReducer(model))
    assert "sharded already" in raised(RuntimeError, lambda: apex_amp.initialize(model, optimizer, opt_level="O1"))
    assert "full_state_dict" in raised(RuntimeError, lambda: amp.inference(model))
    assert "full_state_dict" in raised(RuntimeError, lambda: amp.check_inference(model, model, torch.ones(1, 5)))
    assert "deepcopy" in raised(Exception, lambda: copy.deepcopy(model))
    assert "device=" in raised(ValueError, lambda: amp.EMA(model, device="meta"))
    loss = torch.zeros(1)
    assert "closure" in raised(RuntimeError, lambda: amp.scaler.step(optimizer, lambda: loss))
    # Weights outside of the forward pass are shards there.
    x = torch.ones(1, 5)
    assert "DTensor" in raised(RuntimeError, lambda: x @ model.stem.weight.t())
    assert "DTensor" in raised(RuntimeError, lambda: model.stem(x))


def check_several_passes_before_a_step() -> None:
    found = []
    for shard in (False, True):
        model, _ = made("O0", shard)
        x, _ = batch(0)
        (model(x).square().mean() + model(2 * x).square().mean()).backward()
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        found.append([whole(p.grad).clone() for p in model.parameters()])
    torch.testing.assert_close(*found)


def check_a_gradient_penalty_is_refused_by_torch() -> None:
    model, _ = made("O0", True)
    x = batch(0)[0].requires_grad_()

    def penalised() -> None:
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.square().mean().backward()

    assert "storage of size 0" in raised(RuntimeError, penalised)


def check_an_overflow_is_located() -> None:
    model, _ = made("O1", True)

    def step() -> None:
        with amp.autocast():
            loss = model(batch(0)[0] * 1e38).square().mean()
        amp.scaler.scale(loss).backward()

    before = [whole(p).clone() for p in model.parameters()]
    location = amp.scaler.locate_overflow(step)
    assert location is not None and location.what in ("output", "loss")
    assert all(torch.equal(whole(p), value) for p, value in zip(model.parameters(), before, strict=True))


def check_passes_that_not_all_ranks_make() -> None:
    model, _ = made("O0", True)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(3, 5)))
    assert "sharded" in raised(RuntimeError, lambda: amp.share_evaluation(loader))

    def alone() -> None:
        with amp.main_process_first():
            model(torch.ones(1, 5))

    assert "main_process_first" in raised(RuntimeError, alone)


def check_an_average_from_before_is_refused() -> None:
    begin("O0", True)
    model = Net()
    ema = amp.EMA(model)
    amp.prepare_model(model)
    assert "made before" in raised(RuntimeError, lambda: ema.reset())


def check_ranks_without_data_shadow_the_others() -> None:
    """With ``uneven="join"`` every rank makes every pass, so shards need nothing else."""
    results = []
    for shard in (False, True):
        model, optimizer = made("O0", shard)
        rows = [torch.full((5,), float(i)) for i in range(5)]
        mine = rows[:3] if amp.rank() == 0 else rows[3:4]
        loader = amp.prepare_loader(
            torch.utils.data.DataLoader(mine, batch_size=1),
            sharded=True,
            uneven="join",  # type: ignore[arg-type]
        )
        seen = 0
        for x in loader:
            optimizer.zero_grad()
            amp.scaler.scale(model(x).square().mean()).backward()
            amp.scaler.step(optimizer)
            amp.scaler.update()
            seen += 1
        results.append((seen, [whole(p).detach().clone() for p in model.parameters()]))
    assert results[0][0] == results[1][0] == 3
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-5)


def check_the_prefix_of_wrapped_models_stays_in_their_checkpoints() -> None:
    begin("O1", True)
    kept = amp.prepare_model(amp.keep_module_prefix(Net()))
    assert all(map(is_sharded, kept.parameters()))
    state = Net().state_dict()
    kept.load_state_dict({f"module.{name}": value for name, value in state.items()})
    assert all(
        torch.equal(whole(value), state[name.removeprefix("module.")]) for name, value in kept.state_dict().items()
    )
    model = amp.prepare_model(Net())
    model.load_state_dict({f"module.{name}": value for name, value in state.items()})
    assert torch.equal(whole(model.head.weight), state["head.weight"])


def check_blocks_are_what_is_repeated_and_made_of_modules() -> None:
    net = Net()
    assert blocks_of(net) == list(net.blocks)[::-1]
    layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU())
    assert blocks_of(layers) == [layers[2], layers[0]]
    assert blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == []
    assert blocks_of(nn.Linear(2, 2)) == []
    stages = nn.ModuleList([nn.Sequential(*(Net() for _ in range(2))) for _ in range(2)])
    found = blocks_of(stages)
    assert len(found) == 2 + 4 + 12 and found[-1] is stages[0]
    assert all(found.index(inner) < found.index(outer) for outer in stages for inner in outer)
    tied = Net()
    tied.head.weight = tied.blocks[0].second.weight
    assert blocks_of(tied) == [tied.blocks[2], tied.blocks[1]]
    shared = Net()
    shared.blocks[2] = shared.blocks[1]
    assert blocks_of(shared) == [shared.blocks[1], shared.blocks[0]]
    lists = nn.ModuleList([nn.ModuleList([nn.Linear(2, 2)]) for _ in range(3)])
    assert blocks_of(lists) == []


def check_recurrent_and_attending_models_train_at_every_level() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(5, 6, 2, batch_first=True)
            layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.encoder(self.rnn(x.unsqueeze(1).expand(-1, 4, -1))[0])[:, -1])

    for level, tolerance in (("O0", 1e-5), ("O1", 0.03), ("O2", 0.03)):
        losses: list[Any] = []
        for shard in (False, True):
            model, optimizer = made(level, shard, Recurrent)
            losses.append(train(model, optimizer, steps=4))
            model.eval()
            with torch.no_grad(), amp.autocast():
                assert model(batch(0)[0]).dtype is torch.float32
        torch.testing.assert_close(losses[0], losses[1], rtol=tolerance, atol=tolerance)


if __name__ == "__main__":
    run_checks(globals())
