"""The recorder writes down what a script computes, and the script computes what it would without it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest
from amp_migrate.verify.reading import complaints, got_through, read_ranks, was_stopped
from amp_migrate.verify.runs import RECORDER
from amp_migrate.verify.watching import Watch
from recording import HEAD, LOOP, Record

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
]


def test_losses_updates_and_batches_are_those_of_the_script(record: Record) -> None:
    run = record(LOOP)
    rank, printed = run.rank, [line.split() for line in run.stdout.splitlines()[:-1]]
    assert [step.loss for step in rank.backwards] == [float.fromhex(loss) for loss, _ in printed]
    assert [update.norm for update in rank.updates] == pytest.approx([float(norm) for _, norm in printed], rel=1e-12)
    assert [update.after for update in rank.updates] == list(range(1, 9))
    assert {update.lr for update in rank.updates} == {0.5}
    line = (HEAD + LOOP).splitlines().index("    loss.backward()") + 1
    assert {step.site for step in rank.backwards} == {f"train.py:{line}"}
    assert sorted(index for batch in rank.batches for index in batch.indices) == list(range(32))
    assert [(batch.loader, batch.epoch, batch.before) for batch in rank.batches] == [(0, 0, step) for step in range(8)]
    assert len(rank.parameters) == 1 and len(rank.parameters[0]) == 64
    assert dict(rank.versions).keys() == {"python", "torch"} and rank.device == "cpu" and rank.peak_memory > 10_000_000
    assert rank.half_type == "bf16"
    assert got_through(run.record) and not was_stopped(run.record)


def test_the_parameters_are_those_at_the_end(record: Record) -> None:
    digest = """
    import hashlib
    data = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(hashlib.sha256(data).hexdigest())
    """
    run = record(LOOP + dedent(digest))
    assert run.rank.parameters == (run.stdout.splitlines()[-1],)


def test_it_ends_before_the_backward_call_that_is_too_many(record: Record) -> None:
    run = record(LOOP, steps=3)
    assert [len(run.rank.backwards), len(run.rank.updates)] == [3, 3]
    assert len(run.stdout.splitlines()) == 3
    assert was_stopped(run.record)


def test_a_script_that_fails_keeps_what_it_had(record: Record) -> None:
    run = record(LOOP.replace("optimizer.step()", "optimizer.step()\n    assert loss < 0"))
    assert run.outcome.statuses == (1,)
    assert len(run.ranks[0].backwards) == 1


def test_a_script_may_leave_without_any_farewell(record: Record) -> None:
    leave = "import os\nif not os.fork():\n    os._exit(1)\nos.wait()\nos._exit(0)\n"
    run = record(LOOP + leave)
    assert [len(run.rank.backwards), len(run.rank.updates)] == [8, 8]
    assert got_through(run.record)


def test_losses_that_are_scaled_come_without_their_scale(record: Record) -> None:
    run = record(
        """
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
        for step in range(6):
            x, y = data[4 * step : 4 * step + 4]
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            print(loss.item().hex())
            scaled = scaler.scale(loss)
            # Divided afterwards, as for accumulation: another tensor.
            (scaled / 2 if step == 1 else scaled).backward()
            if step == 3:
                model[0].weight.grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
        """
    )
    losses = [float.fromhex(line) for line in run.stdout.splitlines()]
    losses[1] /= 2
    assert [step.loss for step in run.rank.backwards] == losses
    assert [step.scale for step in run.rank.backwards] == [256.0, 256.0, 512.0, 512.0, 256.0, 256.0]
    assert run.rank.skipped == 1
    assert [update.after for update in run.rank.updates] == [1, 2, 3, 5, 6]


def test_an_optimizer_that_unscales_in_its_kernel_is_understood(record: Record) -> None:
    run = record(
        """
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(3):
            x, y = data[4 * step : 4 * step + 4]
            optimizer.zero_grad()
            scaler.scale(F.mse_loss(model(x), y)).backward()
            print(sum((p.grad.double() / scaler.get_scale()).square().sum() for p in model.parameters()).sqrt().item())
            if step == 1:
                model[0].weight.grad[0, 0] = float("nan")
            scaler.step(optimizer)
            scaler.update()
        """
    )
    norms = [float(line) for line in run.stdout.splitlines()]
    assert [update.norm for update in run.rank.updates] == pytest.approx([norms[0], norms[2]])
    assert run.rank.skipped == 1


def test_the_scaler_of_the_runtime_is_followed(record: Record) -> None:
    run = record(
        """
        import amp_runtime as amp

        amp.init("O1", dtype="fp16", init_scale=512.0)
        model = amp.prepare_model(model)
        for step in range(4):
            x, y = data[4 * step : 4 * step + 4]
            optimizer.zero_grad()
            with amp.autocast():
                loss = F.mse_loss(model(x).float(), y)
            print(loss.item().hex())
            amp.scaler.scale(loss).backward()
            if step == 2:
                model[0].weight.grad[0, 0] = float("inf")
            amp.scaler.step(optimizer)
            amp.scaler.update()
        """
    )
    assert [step.loss for step in run.rank.backwards] == [float.fromhex(line) for line in run.stdout.splitlines()]
    assert [step.scale for step in run.rank.backwards] == [512.0, 512.0, 512.0, 256.0]
    assert run.rank.skipped == 1 and len(run.rank.updates) == 3


def test_the_interface_of_apex_is_followed(record: Record) -> None:
    run = record(
        """
        from amp_runtime.apex import amp

        model, optimizer = amp.initialize(model, optimizer, opt_level="O1", loss_scale=128.0, verbosity=0)
        for step in range(3):
            x, y = data[4 * step : 4 * step + 4]
            optimizer.zero_grad()
            loss = F.mse_loss(model(x).float(), y)
            print(loss.item().hex())
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
                if step == 1:
                    model[0].weight.grad[0, 0] = float("inf")
            optimizer.step()
        """
    )
    assert [step.loss for step in run.rank.backwards] == [float.fromhex(line) for line in run.stdout.splitlines()]
    assert {step.scale for step in run.rank.backwards} == {128.0}
    assert run.rank.skipped == 1


def test_products_in_half_are_counted_whoever_makes_them(record: Record) -> None:
    run = record(
        """
        weight = torch.randn(8, 6, requires_grad=True)
        x, y = data[:8]
        F.mse_loss(model(x), y).backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x).float(), y)
        loss.backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            # No module at all, and a part that is left out.
            loss = F.linear(x, weight).float().sum()
            with torch.autocast("cpu", enabled=False):
                loss = loss + (x @ weight.t()).sum()
        loss.backward()
        """
    )
    assert [(step.half, step.full) for step in run.rank.backwards] == [(0, 2), (2, 0), (1, 1)]


def test_it_tells_who_draws_random_numbers(record: Record) -> None:
    run = record(
        """
        class Noisy(TensorDataset):
            def __getitem__(self, index):
                x, y = super().__getitem__(index)
                return x + random.random(), y

        for kind, dropout in ((TensorDataset, 0.0), (TensorDataset, 0.5), (Noisy, 0.0)):
            for x, y in DataLoader(kind(*data.tensors), batch_size=16, shuffle=True):
                F.mse_loss(F.dropout(model(x), dropout, training=dropout > 0), y).backward()
                torch.randn(1)  # after the step: not in it
        """
    )
    assert [step.random for step in run.rank.backwards] == [False, False, True, True, False, False]
    assert [batch.random for batch in run.rank.batches] == [False, False, False, False, True, True]


def test_workers_record_nothing_and_batches_keep_their_order(record: Record) -> None:
    run = record(
        """
        loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
        for epoch in range(2):
            for x, y in loader:
                print([next(i for i, row in enumerate(data.tensors[0]) if row.equal(item)) for item in x])
                F.mse_loss(model(x), y).backward()
        """
    )
    printed = [tuple(map(int, line.strip("[]").split(","))) for line in run.stdout.splitlines()]
    assert [batch.indices for batch in run.rank.batches] == printed
    assert [batch.epoch for batch in run.rank.batches] == [0] * 4 + [1] * 4
    assert {batch.random for batch in run.rank.batches} == {None}
    assert len(list(run.record.glob("rank*"))) == 1


def test_batches_that_are_given_take_the_place_of_the_samplers(record: Record, tmp_path: Path) -> None:
    given = [[3, 1, 2], [0, 5], [31]]
    (tmp_path / "batches.json").write_text(json.dumps({"batches": {"1/0": given}, "lengths": {"1": 7}}))
    run = record(
        """
        other = DataLoader(data, batch_size=16)
        loader = DataLoader(data, batch_size=4, shuffle=True)
        print(len(other), len(loader))
        for x, y in other:
            F.mse_loss(model(x), y).backward()
        for x, y in loader:
            print(x.equal(data.tensors[0][[3, 1, 2]]))
            F.mse_loss(model(x), y).backward()
        """,
        batches=tmp_path / "batches.json",
    )
    assert run.stdout.split()[:3] == ["2", "7", "True"]
    assert [list(batch.indices) for batch in run.rank.batches if batch.loader == 1] == given


def test_an_optimizer_above_another_steps_once(record: Record) -> None:
    run = record(
        """
        class Louder(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)

        optimizer = Louder(model.parameters(), lr=0.1)
        F.mse_loss(model(data[:4][0]), data[:4][1]).backward()
        optimizer.step()
        """
    )
    assert [(update.optimizer, update.after) for update in run.rank.updates] == [(1, 1)]


def test_wrappers_and_their_order_are_noted(record: Record) -> None:
    run = record(
        """
        import os
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        wrapped = nn.parallel.DistributedDataParallel(model)
        F.mse_loss(wrapped(data[:4][0]), data[:4][1]).backward()
        nn.SyncBatchNorm.convert_sync_batchnorm(wrapped)
        """
    )
    assert set(run.rank.events) == {"process_group", "ddp", "batch_norm", "sync_bn", "sync_bn_after_ddp"}


def test_evaluated_batch_norm_and_instance_norm_are_none_to_synchronise(record: Record) -> None:
    run = record(
        """
        norm = nn.BatchNorm1d(8).eval()
        instance = nn.InstanceNorm1d(4)
        x = torch.randn(4, 8)
        instance(norm(model[0](torch.randn(4, 6)))[None]).square().sum().backward()
        """
    )
    assert run.rank.events == ()


def test_ranks_wait_for_each_other_before_they_stop(record: Record) -> None:
    run = record(
        """
        import os, time
        for step in range(10):
            time.sleep(0.1 * int(os.environ["RANK"]))
            F.mse_loss(model(data[:4][0]), data[:4][1]).backward()
        """,
        processes=2,
        steps=4,
    )
    assert run.outcome.statuses == (0, 0)
    assert [(rank.rank, len(rank.backwards)) for rank in run.ranks] == [(0, 4), (1, 4)]


def test_how_far_the_first_steps_move_the_parameters_is_known(record: Record) -> None:
    run = record(
        """
        values = nn.Parameter(torch.zeros(1000))
        optimizer = torch.optim.SGD([values], lr=0.5)
        for step in range(4):
            optimizer.zero_grad()
            values.sum().backward()
            optimizer.step()
        """
    )
    # Of its first 256 values each moves by 0.5.
    assert [update.moved for update in run.rank.updates] == [8.0, 8.0, 8.0, None]


def test_what_a_torch_does_not_have_costs_a_fact_and_not_the_script(record: Record) -> None:
    hook = """
    import json, os
    from pathlib import Path
    import amp_verify_recorder
    from amp_verify_recorder import imports

    class Broken:
        __name__ = "torch.optim.optimizer"
        __spec__ = None

    sys.modules["broken_module"] = Broken()
    imports.after("broken_module", lambda module: module.nothing_of_that_name)
    """
    run = record(dedent(hook) + LOOP)
    assert len(run.ranks[0].backwards) == 8
    assert "nothing_of_that_name" in "\n".join(complaints(run.record))


SAME = """
import numpy, random, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=8)
for x, y in DataLoader(TensorDataset(torch.randn(64, 6), torch.randn(64, 1)), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    scheduler.step()
    print(loss.item().hex())
print(torch.rand(1).item(), [p.double().sum().item() for p in model.parameters()], loader_seed := torch.initial_seed())
random.seed(1), numpy.random.seed(1)
print(random.random(), numpy.random.rand())
"""


def test_a_recorded_run_is_the_run_that_it_would_be(tmp_path: Path) -> None:
    """In interpreters of their own, so that torch is imported under the recorder."""
    (tmp_path / "train.py").write_text(SAME)
    (tmp_path / "record").mkdir()
    recording = {"PYTHONPATH": str(RECORDER), "AMP_VERIFY_RECORD": str(tmp_path / "record"), "AMP_VERIFY_SEED": "7"}
    plain, recorded = (
        subprocess.run(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | more,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        for more in ({}, recording)
    )
    assert (recorded.stdout, recorded.stderr) == (plain.stdout, plain.stderr)
    (rank,) = read_ranks(tmp_path / "record")
    assert [step.loss.hex() for step in rank.backwards] == plain.stdout.splitlines()[:8]
    assert all(step.random for step in rank.backwards)
    assert complaints(tmp_path / "record") == []


def test_the_sitecustomize_that_was_there_still_runs(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(f"import builtins\nbuiltins.seen = {name!r}\n")
    for recording in ({"AMP_VERIFY_RECORD": str(tmp_path)}, {}):
        path = os.pathsep.join([str(RECORDER), str(tmp_path / "first"), str(tmp_path / "second")])
        code = "import builtins, random; print(getattr(builtins, 'seen', None), random.random())"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": path, "AMP_VERIFY_SEED": "11"} | recording,
            capture_output=True,
            text=True,
            check=True,
        )
        seen, number = done.stdout.split()
        assert seen == "first"
        assert (number == str(random.Random(11).random())) is bool(recording)
    assert not list(tmp_path.glob("rank*"))


def test_it_ends_at_a_round_number_when_its_time_is_up(record: Record) -> None:
    loop = LOOP.replace("    loss.backward()\n", "    time.sleep(0.02)\n    loss.backward()\n")
    run = record("import time\nfor again in range(20):\n" + indent(dedent(loop), "    "), seconds=0.5, least=20)
    made = len(run.rank.backwards)
    assert was_stopped(run.record)
    assert made >= 20 and set(str(made)[1:]) == {"0"}
    assert run.rank.backwards[-1].time < run.rank.backwards[0].time + 0.02 * 160, "it went no farther than it had to"


def test_who_watches_sees_how_far_it_has_come(record: Record) -> None:
    run = record(LOOP, steps=3)
    (counter,) = run.record.glob("steps0-*")
    assert counter.read_text() == "3"
    watch = Watch(run.record, patience=5.0)
    assert watch.look(1.0) and watch.made == 3
    assert watch.look(5.5) and not watch.is_stuck(5.5)
    assert watch.look(6.5) and watch.is_stuck(6.5)
