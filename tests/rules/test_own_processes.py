"""Scripts that join their processes themselves get what they lack, each piece by its own code, and nothing else."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options
from migrating import ENTRY, FIXTURES, cases, migrated

OWN = ("AMP230", "AMP231", "AMP232", "AMP233", "AMP234", "AMP235", "AMP236", "AMP237", "AMP238", "AMP239")
CHANGING = [case for case in cases() if case.code in OWN and not case.is_noop]
# Of these the distribution has words in torch.
WRITTEN = ("AMP202", "AMP204", "AMP205", "AMP206", "AMP210", "AMP220")

READ_AGAIN = '        model.module.load_state_dict(torch.load("model.pt", map_location="cpu"))\n'

LACKING = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    writer = SummaryWriter("runs")
    dataset = TensorDataset(torch.randn(80, 4), torch.randn(80, 1))
    loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).cuda()
    model = DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        total = 0.0
        for x, y in tqdm(loader):
            loss = nn.functional.mse_loss(model(x.cuda()), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        writer.add_scalar("loss", total / len(loader), epoch)
        torch.save(model.module.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
"""
FOUND = {"AMP230", "AMP231", "AMP233", "AMP234", "AMP236", "AMP237"}


def completed(tmp_path, text, **options):
    report, files = migrated(tmp_path / "project", {ENTRY: text.encode()}, Options(**{"ddp": True, **options}))
    return report, files[ENTRY].decode()


def codes(report):
    return {edit.code for edit in report.edits if edit.code in OWN}


def test_all_that_lacks_is_written_at_once(tmp_path):
    report, _ = completed(tmp_path, LACKING)
    assert codes(report) == FOUND
    assert (report.precision, report.distribution) == ("migrated", "extended")
    assert report.refusals == ()


@pytest.mark.parametrize("code", sorted(FOUND))
def test_each_piece_is_left_out_alone(code, tmp_path):
    report, _ = completed(tmp_path, LACKING, ignore=(code,))
    assert codes(report) == FOUND - {code}
    assert report.distribution == "extended"


def test_without_all_pieces_the_processes_stay_as_they_are(tmp_path):
    report, text = completed(tmp_path, LACKING, ignore=("AMP1", "AMP3", "AMP23"))
    assert (report.distribution, text) == ("already", LACKING)


BESIDE = """\
import multiprocessing

import torch


class Reading:
    def __call__(self, queue):
        queue.put(torch.randn(8, 4))


queue = multiprocessing.Queue()
reading = multiprocessing.Process(target=Reading(), args=(queue,))
reading.start()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = model(queue.get()).square().mean()
    loss.backward()
    optimizer.step()
"""


def test_an_object_that_another_process_runs_is_followed(tmp_path):
    report, _ = completed(tmp_path, BESIDE)
    assert [refusal.code for refusal in report.refusals] == ["AMP290"]
    assert "runs `__call__` in another process" in report.refusals[0].message


def test_without_ddp_the_processes_stay_as_they_are(tmp_path):
    report, _ = completed(tmp_path, LACKING, ddp=False)
    assert codes(report) == set()
    assert report.distribution == "not requested"


def test_without_sync_bn_batch_norm_stays_that_of_a_process(tmp_path):
    report, text = completed(tmp_path, LACKING, sync_bn=False)
    assert codes(report) == FOUND - {"AMP230"}
    assert "SyncBatchNorm" not in text


def test_the_processes_are_completed_where_the_step_is_not_asked_for(tmp_path):
    report, text = completed(tmp_path, LACKING, ignore=("AMP1", "AMP3"))
    assert codes(report) == FOUND
    assert report.distribution == "extended"
    assert "amp_runtime" not in text


def test_plain_torch_is_completed_alike(tmp_path):
    report, text = completed(tmp_path, LACKING, target="torch")
    assert codes(report) == FOUND
    assert report.distribution == "extended"
    assert "amp_runtime" not in text


def test_a_comment_keeps_a_place_as_it_is(tmp_path):
    kept = LACKING.replace('"model.pt")', '"model.pt")  # amp: skip[AMP234]')
    report, text = completed(tmp_path, kept)
    assert codes(report) == FOUND - {"AMP234"}
    assert '        torch.save(model.module.state_dict(), "model.pt")  # amp: skip[AMP234]' in text


@pytest.mark.parametrize("case", CHANGING, ids=str)
def test_what_is_completed_is_complete(case, tmp_path):
    report, files = migrated(tmp_path / "project", case.after, replace(case.options, select=("AMP2", "AMP409")))
    assert (report.distribution, report.changes, files) == ("already", (), case.after)


@pytest.mark.heavy
@pytest.mark.parametrize("case", [case for case in cases() if case.code in WRITTEN], ids=str)
def test_what_plain_torch_is_given_is_complete(case, tmp_path):
    report, files = migrated(tmp_path / "project", case.before, replace(case.options, target="torch"))
    if report.distribution != "migrated":
        pytest.skip("torch has no words for something of it")
    again, result = migrated(tmp_path / "project", files, Options(ddp=True, target="torch"))
    assert (again.changes, result) == ((), files)
    assert codes(again) == set()


def test_a_framework_looks_after_its_processes(tmp_path):
    before = "import accelerate\n" + LACKING + "\naccelerator = accelerate.Accelerator()\n"
    report, text = completed(tmp_path, before, ignore=("AMP1", "AMP3"))
    assert codes(report) == set()
    assert text == before


def test_a_framework_that_is_imported_and_not_used_looks_after_nothing(tmp_path):
    report, _ = completed(tmp_path, "import accelerate\n" + LACKING, ignore=("AMP1", "AMP3"))
    assert codes(report) == FOUND


def test_a_file_of_each_process_is_written_by_each(tmp_path):
    own = LACKING.replace('"model.pt"', 'f"model_{rank}.pt"')
    report, _ = completed(tmp_path, own)
    assert codes(report) == FOUND - {"AMP234"}


def test_a_file_that_is_read_again_in_the_loop_is_left_with_a_note(tmp_path):
    read = LACKING.replace('"model.pt")\n', f'"model.pt")\n{READ_AGAIN}')
    report, _ = completed(tmp_path, read)
    assert codes(report) == FOUND - {"AMP234"}
    (note,) = [note for note in report.notes if note.text.startswith("AMP234")]
    assert note.code == "AMP288" and note.text.endswith("left to one process, the others would have to wait for it")


DRAWING = """\
import torch


def draw(values, path):
    torch.save(values, path)


def test(model, path):
    draw(model(torch.randn(2, 4)), path)


if __name__ == "__main__":
    test(torch.nn.Linear(4, 1), "alone.pt")
"""


def test_a_file_of_an_evaluation_that_one_process_runs_gets_no_test_of_its_own(tmp_path):
    called = "            if rank == 0:\n                test(model.module, 'values.pt')\n"
    text = LACKING.replace('        writer.add_scalar("loss"', f'{called}        writer.add_scalar("loss"')
    files = {ENTRY: ("from drawing import test\n" + text).encode(), "drawing.py": DRAWING.encode()}
    _, found = migrated(tmp_path / "project", files, Options(ddp=True))
    assert "get_rank" not in found["drawing.py"].decode()
    files[ENTRY] = files[ENTRY].replace(b"            if rank == 0:\n                test", b"            test")
    _, found = migrated(tmp_path / "other", files, Options(ddp=True))
    assert "get_rank" in found["drawing.py"].decode()


def test_all_wait_for_a_file_that_is_read_below_the_loop(tmp_path):
    read = LACKING.replace('"model.pt")\n', f'"model.pt")\n{READ_AGAIN[4:]}')
    report, text = completed(tmp_path, read)
    assert codes(report) == FOUND
    assert '        if rank == 0:\n            torch.save(model.module.state_dict(), "model.pt")\n' in text
    assert f"    dist.barrier()\n{READ_AGAIN[4:]}" in text


HELPER = """\
def keep_result(value):
    with open("results.json") as file:
        results = json.load(file)
    results.append(value)
    with open("results.json", "w") as file:
        json.dump(results, file)


def main():
"""


def test_a_helper_that_alone_reads_what_it_writes_is_called_on_one_process(tmp_path):
    """No other process has to wait for the file, whoever writes it."""
    helped = "import json\n" + LACKING.replace("def main():\n", HELPER)
    helped = helped.replace("\n\n\nif __name__", "\n    keep_result(total)\n\n\nif __name__")
    assert "    keep_result(total)" in helped
    report, _ = completed(tmp_path, helped)
    texts = [note.text for note in report.notes if note.text.startswith("AMP234")]
    assert any(text.endswith("may read it: call `keep_result` on the first process alone") for text in texts), texts


def test_numbers_are_not_exchanged_where_processes_may_part(tmp_path):
    parted = LACKING.replace(
        "        writer.add_scalar(",
        "        if loss.item() > 1:\n"
        "            squares = 0.0\n"
        "            for x, y in loader:\n"
        "                squares += (y**2).sum().item()\n"
        "            print(squares / len(loader))\n"
        "        writer.add_scalar(",
    )
    _, text = completed(tmp_path, parted)
    assert "squares = all_reduce" not in text
    assert "total = all_reduce_mean(total)" in text


def test_a_helper_that_other_scripts_may_run_asks_whether_there_are_processes(tmp_path):
    before = {
        ENTRY: LACKING.replace('torch.save(model.module.state_dict(), "model.pt")', "save(model.module)")
        .replace("from tqdm", "from saving import save\nfrom tqdm")
        .encode(),
        "saving.py": b'import torch\n\n\ndef save(model):\n    torch.save(model.state_dict(), "model.pt")\n',
    }
    _, files = migrated(tmp_path / "project", before, Options(ddp=True, ignore=("AMP1", "AMP3")))
    assert (
        files["saving.py"]
        .decode()
        .endswith(
            "    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:\n"
            '        torch.save(model.state_dict(), "model.pt")\n'
        )
    )


def test_a_rank_that_is_read_another_way_completes_nothing(tmp_path):
    parsed = (
        "    parser = argparse.ArgumentParser()\n"
        '    parser.add_argument("--local_rank", type=int, default=0)\n'
        "    args = parser.parse_args()\n"
    )
    text = LACKING.replace("import torch\n", "import argparse\n\nimport torch\n", 1)
    text = text.replace("    rank = dist.get_rank()\n", f"{parsed}    rank = args.local_rank\n")
    for folder, ignore, expected in (("alone", OWN, "already"), ("with_pieces", (), "extended")):
        report, _ = completed(tmp_path / folder, text, ignore=ignore)
        assert "AMP409" in {edit.code for edit in report.edits}
        assert report.distribution == expected


SPAWNED = """\
import argparse

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n):
        self.sum += value * n
        self.count += n

    def all_reduce(self):
        total = torch.tensor([self.sum, self.count])
        dist.all_reduce(total)
        self.sum, self.count = total.tolist()


def main_worker(gpu, count, args):
    if args.distributed:
        args.rank = args.rank * count + gpu
        dist.init_process_group("gloo", init_method=args.dist_url, world_size=args.world_size, rank=args.rank)
    train_set = TensorDataset(torch.randn(80, 4), torch.randn(80, 1))
    test_set = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
    if args.distributed:
        train_sampler = DistributedSampler(train_set)
        test_sampler = DistributedSampler(test_set, shuffle=False, drop_last=True)
    else:
        train_sampler = test_sampler = None
    train_loader = DataLoader(train_set, 8, shuffle=(train_sampler is None), sampler=train_sampler)
    test_loader = DataLoader(test_set, 8, shuffle=False, sampler=test_sampler)
    model = nn.Linear(4, 1)
    if args.distributed:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best = float("inf")
    for epoch in range(args.start_epoch, args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        for x, y in train_loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        error = validate(test_loader, model, args)
        best = min(best, error)
        if not args.distributed or (args.distributed and args.rank % count == 0):
            torch.save({"epoch": epoch + 1, "best": best, "model": model.state_dict()}, "checkpoint.pt")


@torch.no_grad()
def validate(loader, model, args):
    errors = Meter()
    for x, y in loader:
        errors.update(nn.functional.mse_loss(model(x), y).item(), len(x))
    if args.distributed:
        errors.all_reduce()
    return errors.sum / errors.count


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--start-epoch", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--dist-url", default="tcp://127.0.0.1:29500")
    parser.add_argument("--multiprocessing-distributed", action="store_true")
    args = parser.parse_args()
    args.distributed = args.world_size > 1 or args.multiprocessing_distributed
    if args.multiprocessing_distributed:
        args.world_size = 2 * args.world_size
        mp.spawn(main_worker, nprocs=2, args=(2, args))
    else:
        main_worker(0, 1, args)
"""


def test_processes_that_lack_nothing_stay_and_are_said_to(tmp_path):
    report, text = completed(tmp_path, SPAWNED, ignore=("AMP1", "AMP3"))
    assert (report.distribution, report.notes, text) == ("already", (), SPAWNED)
    assert report.refusals[0].recipe.startswith("AMP230 to AMP239 find nothing to add;")


@pytest.mark.parametrize(
    "lacks, code",
    [
        ("        if args.distributed:\n            train_sampler.set_epoch(epoch)\n", "AMP231"),
        (" if not args.distributed or (args.distributed and args.rank % count == 0):", "AMP234"),
    ],
)
def test_what_one_of_them_lacks_is_found(lacks, code, tmp_path):
    text = SPAWNED.replace(lacks, " if True:" if lacks.startswith(" if") else "")
    assert text != SPAWNED
    report, _ = completed(tmp_path, text, ignore=("AMP1", "AMP3"))
    assert codes(report) == {code}


def test_an_evaluation_of_a_share_is_told_where_its_numbers_are_not_exchanged(tmp_path):
    text = SPAWNED.replace("    if args.distributed:\n        errors.all_reduce()\n", "")
    report, again = completed(tmp_path, text, ignore=("AMP1", "AMP3"))
    assert again == text
    assert [note.text.partition(":")[0] for note in report.notes] == ["AMP233"]


def test_numbers_that_the_processes_put_together_by_files_are_those_of_all(tmp_path):
    text = SPAWNED.replace(
        "    if args.distributed:\n        errors.all_reduce()\n",
        "    torch.save(errors.sum, f'errors{args.rank}.pt')\n"
        "    if args.distributed:\n        dist.barrier()\n"
        "    return sum(torch.load(name) for name in names(args))\n",
    )
    text = text.replace(
        "@torch.no_grad()\ndef validate",
        "def names(args):\n    found = []\n    for rank in range(args.world_size):\n"
        "        found.append(open(f'errors{rank}.pt', 'rb'))\n    return found\n\n\n@torch.no_grad()\ndef validate",
    )
    report, _ = completed(tmp_path, text, ignore=("AMP1", "AMP3"))
    assert not any(note.text.startswith("AMP233") for note in report.notes)


def test_passes_that_are_only_timed_evaluate_nothing(tmp_path):
    text = SPAWNED.replace("    if args.distributed:\n        errors.all_reduce()\n", "")
    text = text.replace("        errors.update(nn.functional.mse_loss(model(x), y).item(), len(x))", "        model(x)")
    text = text.replace("    return errors.sum / errors.count", "    return 0.0")
    report, again = completed(tmp_path, text, ignore=("AMP1", "AMP3"))
    assert (again, report.notes) == (text, ())


def test_what_is_left_is_not_said_to_be_complete(tmp_path):
    read = LACKING.replace('"model.pt")\n', f'"model.pt")\n{READ_AGAIN}')
    report, _ = completed(tmp_path, read, ignore=("AMP1", "AMP3", *(FOUND - {"AMP234"})))
    assert (report.distribution, {note.code for note in report.notes}) == ("already", {"AMP288"})
    # The script's GPU is its rank among all, too.
    assert ["AMP234" in note.text for note in report.notes] == [False, True]
    assert report.refusals[0].recipe.startswith("notes AMP288 name what was found missing;")


EVALUATION = """\
import torch
from torch import nn


def evaluate(model, loader):
    model.eval()
    right, scores = [], []
    with torch.no_grad():
        for x, y in loader:
            scores.append(model(x.cuda()))
            right.append(scores[-1].argmax(1) == y.cuda())
    return right, scores


if __name__ == "__main__":
    print(evaluate(nn.Linear(4, 1), []))
"""


@pytest.mark.parametrize("of_first", [True, False])
def test_an_evaluation_of_the_first_process_in_a_script_of_its_own_is_not_that_of_each(tmp_path, of_first):
    test = "rank == 0" if of_first else "epoch > 0"
    look = (
        "def look(model, valid):\n    right, scores = evaluate(model.module, valid)\n    print(scores)\n\n\ndef main():"
    )
    call = f"        if {test}:\n            look(model, valid)\n"
    text = LACKING.replace("from tqdm", "from evaluation import evaluate\nfrom tqdm")
    valid = "    valid = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset, shuffle=False))\n"
    text = text.replace("    model = nn", valid + "    model = nn", 1).replace("def main():", look)
    text = text.replace('        writer.add_scalar("loss"', call + '        writer.add_scalar("loss"')
    texts = {ENTRY: text.encode(), "evaluation.py": EVALUATION.encode()}
    report, _ = migrated(tmp_path / "project", texts, Options(ddp=True))
    told = [note for note in report.notes if note.path.name == "evaluation.py" and "evaluates its share" in note.text]
    assert bool(told) is not of_first


REDUCED_BY_MAP = """\
    scores = []
    with torch.no_grad():
        for x, y in loader:
            scores.append(nn.functional.mse_loss(model(x.cuda()), y.cuda()))
    several = dist.get_world_size() > 1
    (mean,) = map(REDUCE if several else float, [torch.stack(scores).mean()])
    print(mean)
"""


@pytest.mark.parametrize("reduces", [True, False])
def test_a_number_that_a_given_function_reduces_is_that_of_all(tmp_path, reduces):
    helper = "def reduce(value):\n    dist.all_reduce(value)\n    return value / dist.get_world_size()\n\n\ndef main():"
    text = LACKING.replace("def main():", helper)
    call = REDUCED_BY_MAP.replace("REDUCE", "reduce" if reduces else "float")
    text = text.replace(
        '\n\nif __name__ == "__main__":', f"\n\ndef evaluate(model, loader):\n{call}\n\nif __name__ == '__main__':"
    )
    text = text.replace("        torch.save", "        evaluate(model, loader)\n        torch.save")
    report, _ = completed(tmp_path, text)
    told = [note for note in report.notes if "evaluates its share" in note.text]
    assert bool(told) is not reduces


@pytest.mark.parametrize("use", ["model = model.to(xm.xla_device())", "xm.optimizer_step(optimizer)"])
@pytest.mark.parametrize("has_flag", [True, False])
def test_a_model_that_may_live_on_a_tpu_has_no_processes_of_its_own_there(tmp_path, use, has_flag):
    on_tpu = f"import torch_xla.core.xla_model as xm\n\n{use}\n"
    on_tpu = (
        textwrap.indent(on_tpu, "    ") if not has_flag else "    if dist.tpu:\n" + textwrap.indent(on_tpu, " " * 8)
    )
    text = LACKING.replace("    for epoch in", on_tpu + "    for epoch in")
    report, _ = completed(tmp_path, text, ignore=("AMP1", "AMP3"))
    assert (report.distribution == "extended") is (has_flag or "step" not in use)


def test_processes_of_other_packages_are_not_said_to_be_complete(tmp_path):
    text = "import horovod.torch as hvd\n" + LACKING.replace("rank = dist.get_rank()", "rank = hvd.rank()")
    report, _ = completed(tmp_path, text, ignore=("AMP1", "AMP3"))
    assert report.distribution == "already"
    assert report.refusals[0].recipe.startswith("these processes were not checked for missing parts;")
    assert "`horovod.torch" in report.refusals[0].recipe


@pytest.mark.parametrize(
    "old, new",
    [
        ("    model = DistributedDataParallel(model, device_ids=[rank])\n", ""),
        ('    dist.init_process_group("nccl")\n', ""),
    ],
)
@pytest.mark.parametrize("is_understood", [True, False])
def test_several_processes_are_said_to_be_written_anew_only_where_the_step_is_understood(
    is_understood, old, new, tmp_path
):
    text = LACKING.replace(old, new).replace("import DistributedDataParallel\n", "import DataParallel\n")
    if not is_understood:
        text = text.replace("            optimizer.step()\n", "            update(optimizer)\n")
    report, _ = completed(tmp_path, text)
    (refusal,) = [item for item in report.refusals if item.code == "AMP290"]
    assert ("the migration writes a new set-up" in refusal.recipe) is (is_understood and report.precision == "migrated")


TRAINER = """\
import os

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, several):
        self.model = DistributedDataParallel(model) if several else model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def load(self, path):
        if not os.path.exists(path):
            return
        self.optimizer.load_state_dict(torch.load(path, map_location="cpu"))

    def train(self):
        for step in range(5):
            x = torch.randn(8, 2)
            loss = nn.functional.mse_loss(self.model(x), x.sum(1, keepdim=True))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
"""

WORKERS = """\
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from trainer import Trainer


def work(rank, gpus):
    if gpus > 1:
        dist.init_process_group("nccl", "tcp://127.0.0.1:29533", rank=rank, world_size=gpus)
    trainer = Trainer(nn.Linear(2, 1), gpus > 1)
    trainer.load(sys.argv[1])
    trainer.train()


if __name__ == "__main__":
    gpus = torch.cuda.device_count()
    distributed_here = gpus > 1
    if distributed_here:
        mp.spawn(work, nprocs=gpus, args=(gpus,))
    else:
        work(0, 1)
"""


def test_what_every_worker_loads_is_not_loaded_by_one(tmp_path):
    (tmp_path / "trainer.py").write_text(TRAINER)
    (tmp_path / "train.py").write_text(WORKERS)
    report = migrate(tmp_path / "train.py", Options(ddp=True))
    assert not any("only one process loads" in note.text for note in report.notes)
    one = WORKERS.replace("    trainer.load(", "    if rank == 0:\n        trainer.load(")
    (tmp_path / "train.py").write_text(one)
    report = migrate(tmp_path / "train.py", Options(ddp=True))
    assert any("only one process loads" in note.text for note in report.notes)


UNFOLLOWED = """\
import argparse
import importlib

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
parser.add_argument("--trainer", default="trainers.plain")
args = parser.parse_args()
dist.init_process_group("nccl")
torch.cuda.set_device(args.local_rank)
trainer = importlib.import_module(args.trainer).build(args)
trainer.train()
"""


def test_where_the_training_is_not_followed_nothing_is_said_to_be_missing_and_the_rank_is_that_of_torchrun(tmp_path):
    report, text = completed(tmp_path, UNFOLLOWED)
    assert (report.precision, report.distribution) == ("declined", "already")
    assert {edit.code for edit in report.edits} == {"AMP409"}
    assert 'default=int(os.environ.get("LOCAL_RANK", 0))' in text
    (own,) = [item for item in report.refusals if item.code == "AMP290"]
    assert "nothing averages" not in own.message and "were not checked" in own.recipe


def test_a_mode_that_the_script_sets_itself_is_no_other_way_to_join(tmp_path):
    text = SPAWNED.replace(
        "if not args.distributed or (args.distributed and args.rank % count == 0):",
        "if not args.multiprocessing_distributed or (args.multiprocessing_distributed and args.rank % count == 0):",
    )
    assert text != SPAWNED
    joined = "    args.distributed = args.world_size > 1"
    told = completed(tmp_path / "asked", text, ignore=("AMP1", "AMP3"))[0]
    assert any("lets them join without" in note.text for note in told.notes)
    always = text.replace(joined, f"    args.multiprocessing_distributed = True\n{joined}")
    assert completed(tmp_path / "set", always, ignore=("AMP1", "AMP3"))[0].notes == ()


CLIENTS = """\
import torch
from torch import nn


class Client:
    def __init__(self):
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self, batches):
        for x, y in batches:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()
"""

SERVED = """\
import torch
import torch.distributed as dist
from clients import Client

dist.init_process_group("gloo")
rank = dist.get_rank()
last = dist.get_world_size() - 1
batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(10)]
client = Client()
if rank == LONE:
    received = torch.zeros(1)
    dist.recv(received)
else:
    client.train(batches)
    dist.send(torch.ones(1), last)
"""


@pytest.mark.parametrize(("test", "is_told"), [("rank == last", False), ("rank != 0", True)])
def test_what_all_but_one_run_is_not_said_to_be_run_by_one(tmp_path, test, is_told):
    files = {ENTRY: SERVED.replace("rank == LONE", test).encode(), "clients.py": CLIENTS.encode()}
    report, _ = migrated(tmp_path / "project", files, Options(ddp=True, opt_level="O1"))
    assert any("only one process runs `self.optimizer.step()`" in note.text for note in report.notes) is is_told


UNEVEN = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = [torch.randn(8, 4) for _ in range(10 + dist.get_rank())]
with model.join(divide_by_initial_world_size=False):
    for x in inputs:
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_method_of_the_wrapper_alone_is_no_forward_pass(tmp_path):
    report, _ = migrated(tmp_path / "project", {ENTRY: UNEVEN.encode()}, Options(ddp=True, opt_level="O1"))
    assert report.precision == "migrated"
    assert not any("runs in full precision" in note.text for note in report.notes)


def test_a_helper_that_joins_nothing_yet_creates_no_group(tmp_path):
    path = FIXTURES / "declines/AMP290/group_that_a_helper_does_not_join_yet.py"
    report, _ = completed(tmp_path, path.read_text())
    (own,) = [item for item in report.refusals if item.code == "AMP290"]
    assert own.message.endswith("needs a process group, which nothing in the script creates")


@pytest.mark.parametrize(
    ("line", "told"),
    [('subprocess.Popen(["python", "train.py", "--rank={}".format(1)])', True), ('print("--rank-of")', False)],
)
def test_a_rank_by_an_option_names_what_starts_the_processes_with_it(line, told, tmp_path):
    text = (FIXTURES / "AMP234" / "rank_that_callers_give" / "before.py").read_text()
    text = text.replace("import argparse\n", "import argparse\nimport subprocess\n", 1)
    text = text.replace("\n\ndef join(", f"\n\ndef start():\n    {line}\n\n\ndef join(", 1)
    (tmp_path / "train.py").write_text(text)
    report = migrate(tmp_path / "train.py", Options(opt_level="O1", ddp=True))
    (note,) = [item.text for item in report.notes if "gives no such option" in item.text]
    place = next(number for number, row in enumerate(text.splitlines(), 1) if line in row)
    assert (f"start them with that option, as `train.py:{place}` does, or" in note) is told
