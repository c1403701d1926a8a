"""Apex's parallel package in one process; ranks/apex.py has several."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from amp_runtime.apex import parallel
from amp_runtime.apex.parallel import DistributedDataParallel as DDP
from launching import Launcher
from torch import nn


def test_alone_the_wrapper_only_calls_the_model() -> None:
    model = nn.Linear(3, 1)
    wrapped = DDP(model, delay_allreduce=True)
    assert wrapped.module is model and list(wrapped.state_dict()) == ["module.weight", "module.bias"]
    wrapped(torch.ones(1, 3)).sum().backward()
    assert model.weight.grad is not None and model.weight.grad.tolist() == [[1.0] * 3]
    wrapped.disable_allreduce()
    wrapped.enable_allreduce()
    parallel.Reducer(model).reduce()
    assert model.weight.grad.tolist() == [[1.0] * 3]


def test_the_wrapper_can_be_copied_and_saved() -> None:
    wrapped = DDP(nn.Linear(3, 1))
    clone = copy.deepcopy(wrapped)
    clone.module.weight.data.zero_()
    assert not torch.equal(clone.module.weight, wrapped.module.weight)
    file = io.BytesIO()
    torch.save(wrapped, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(torch.ones(1, 3)), wrapped(torch.ones(1, 3)))


def test_what_apex_refuses_is_refused() -> None:
    model = nn.Linear(3, 1)
    with pytest.raises(ValueError, match="shared_param"):
        DDP(model, shared_param=True)
    with pytest.raises(ValueError, match="delay_allreduce=False"):
        DDP(model, delay_allreduce=True, allreduce_trigger_params=[model.weight])
    with pytest.raises(TypeError, match="deay_allreduce"):
        DDP(model, deay_allreduce=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Reducer got int"):
        parallel.Reducer(3)
    with pytest.warns(UserWarning, match="num_allreduce_streams"):
        DDP(model, num_allreduce_streams=2)


def test_tensors_are_sorted_by_type_and_flattened() -> None:
    tensors = [torch.ones(2), torch.ones(1, dtype=torch.float16), torch.zeros(1, 2), torch.ones(1).double()]
    assert [[t.dtype for t in b] for b in parallel.split_half_float_double(tensors)] == [
        [torch.float16],
        [torch.float32] * 2,
        [torch.float64],
    ]
    assert list(parallel.split_by_type(tensors)) == ["torch.FloatTensor", "torch.HalfTensor", "torch.DoubleTensor"]
    flat = parallel.flatten([tensors[0], tensors[2]])
    assert flat.tolist() == [1, 1, 0, 0]
    assert [t.shape for t in parallel.unflatten(flat, [tensors[0], tensors[2]])] == [(2,), (1, 2)]
    parallel.flat_dist_call(tensors, lambda flat, factor: flat.mul_(factor), (3,))
    assert tensors[0].tolist() == [3, 3] and tensors[3].item() == 3


def test_batch_norms_become_synchronised_ones_in_place() -> None:
    class Own(nn.BatchNorm2d):
        pass

    model = nn.Sequential(nn.BatchNorm1d(3), nn.ModuleList([Own(2, affine=False)]), nn.InstanceNorm2d(2)).eval()
    weight = model[0].weight
    model[0].running_mean.fill_(2.0)
    assert parallel.convert_syncbn_model(model, channel_last=True) is model
    first, second = model[0], model[1][0]
    assert type(first) is type(second) is parallel.SyncBatchNorm and type(model[2]) is nn.InstanceNorm2d
    assert first.weight is weight and first.running_mean[0] == 2.0 and not first.training and first.channel_last
    single = parallel.convert_syncbn_model(nn.BatchNorm1d(3))
    assert isinstance(single, parallel.SyncBatchNorm)
    assert parallel.create_syncbn_process_group(0) is None


@pytest.mark.parametrize("channel_last", [True, False])
def test_synchronised_batch_norm_alone_is_batch_norm_with_sum_and_relu(channel_last: bool) -> None:
    torch.manual_seed(0)
    x, z = torch.randn(4, 3, 5, 5), torch.randn(4, 3, 5, 5)
    plain = nn.BatchNorm2d(3)
    norm = parallel.SyncBatchNorm(3, channel_last=channel_last, fuse_relu=True)
    given = [t.permute(0, 2, 3, 1).contiguous() if channel_last else t for t in (x, z)]
    for training in (True, False):
        plain.train(training), norm.train(training)
        found = norm(given[0], given[1])
        torch.testing.assert_close(found.permute(0, 3, 1, 2) if channel_last else found, torch.relu(plain(x) + z))
    torch.testing.assert_close(norm.running_var, plain.running_var)


@pytest.mark.heavy
def test_multiproc_starts_one_process_a_rank(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse, os, torch, torch.distributed as dist\n"
        "parser = argparse.ArgumentParser()\n"
        "for name in ('--world-size', '--rank', '--epochs'): parser.add_argument(name, type=int)\n"
        "args = parser.parse_args()\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.tensor(args.rank + args.epochs)\n"
        "dist.all_reduce(total)\n"
        "print('total', total.item(), os.environ['LOCAL_RANK'])\n"
        "dist.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "amp_runtime.apex.parallel.multiproc", str(script), "--world-size", "2"]
    finished = subprocess.run(
        [*command, "--epochs", "5"], cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert finished.stdout == "total 11 0\n"
    assert (tmp_path / "GPU_1.log").read_text() == "total 11 1\n"
    script.write_text("import sys\nsys.exit(3 if '1' == sys.argv[-1] else 0)\n")
    assert subprocess.run(command, cwd=tmp_path, timeout=90, check=False).returncode == 3


SCRIPT = """
import argparse, os
import torch, torch.distributed as dist, torch.nn.functional as F
from torch import nn
try:
    import amp_runtime.apex as apex
    from amp_runtime.apex import amp
    from amp_runtime.apex.parallel import DistributedDataParallel as DDP, convert_syncbn_model
    from amp_runtime.apex.optimizers import FusedAdam
except ImportError:
    raise ImportError("Please install apex from https://www.github.com/nvidia/apex to run this example.")

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", type=str)
parser.add_argument("--keep-batchnorm-fp32", type=str, default=None)
parser.add_argument("--loss-scale", type=str, default=None)
args = parser.parse_args(["--opt-level", os.environ["LEVEL"], "--loss-scale", "128.0"])
args.distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
if args.distributed:
    dist.init_process_group("gloo", init_method="env://")
rank = dist.get_rank() if args.distributed else 0

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
model = convert_syncbn_model(model)
optimizer = FusedAdam(model.parameters(), lr=0.01)
model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level, verbosity=0,
                                  keep_batchnorm_fp32=args.keep_batchnorm_fp32, loss_scale=args.loss_scale)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
if args.distributed:
    model = DDP(model, delay_allreduce=True)
x, y = torch.randn(16, 1, 8, 8), torch.randint(0, 3, (16,))
if args.distributed:
    x, y = x[rank::2], y[rank::2]
losses = []
for step in range(8):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    nn.utils.clip_grad_norm_(amp.master_params(optimizer), 5.0)
    optimizer.step()
    scheduler.step()
    mean = loss.detach().clone()
    if args.distributed:
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
    losses.append(round(mean.item(), 4))
if rank == 0:
    state = (model.module if args.distributed else model).state_dict()
    torch.save({"model": state, "amp": amp.state_dict(), "losses": losses}, os.environ["CHECK_DIR"] + "/out.pt")
if args.distributed:
    dist.destroy_process_group()
"""


@pytest.mark.heavy
def test_one_script_trains_alone_and_in_two_processes(launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "main_amp.py"
    script.write_text(SCRIPT)
    alone = launcher.alone(script, tmp_path, LEVEL="O2")
    assert alone.returncode == 0, alone.stderr[-2000:]
    first = torch.load(tmp_path / "out.pt")
    together = launcher.together(script, tmp_path, LEVEL="O2")
    assert together.returncode == 0, together.stderr[-2000:]
    second = torch.load(tmp_path / "out.pt")
    assert first["losses"][-1] < first["losses"][0] / 2
    assert second["losses"] == pytest.approx(first["losses"], abs=0.05)
    assert list(first["model"]) == list(second["model"])
    assert all(t.dtype is not torch.bfloat16 for t in second["model"].values())


def test_nothing_here_makes_a_process_group() -> None:
    assert not dist.is_initialized()
