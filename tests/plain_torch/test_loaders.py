"""Loaders in plain PyTorch: who gets a sampler, where it is told the epoch, and what is summed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options
from amp_rules.plan.report import Report

HEAD = """\
import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

inputs, labels = torch.randn(40, 4), torch.randint(0, 2, (40,))
dataset = TensorDataset(inputs, labels)
options = {"num_workers": 0}
shuffled = True
"""
MODEL = """
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
STEP = """\
optimizer.zero_grad()
loss = nn.functional.cross_entropy(model(x), y)
loss.backward()
optimizer.step()
"""
IN_EPOCHS = "for epoch in range(3):\n    for x, y in loader:\n        STEP\n"


def _source(loader: str, rest: str) -> str:
    rows = []
    for row in rest.splitlines():
        space = row[: len(row) - len(row.lstrip())]
        rows += [space + line for line in STEP.splitlines()] if row.strip() == "STEP" else [row]
    return HEAD + loader + "\n" + MODEL + "\n".join(rows) + "\n"


def _migrated(folder: Path, loader: str, rest: str = IN_EPOCHS) -> Report:
    path = folder / "train.py"
    path.write_text(_source(loader, rest))
    return migrate(path, Options(ddp=True, target="torch"))


def _text(folder: Path, loader: str, rest: str = IN_EPOCHS) -> str:
    report = _migrated(folder, loader, rest)
    assert report.distribution == "migrated", [item.message for item in report.refusals]
    (change,) = report.changes
    ast.parse(change.after)
    assert "amp_runtime" not in change.after
    return change.after


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        (
            "loader = DataLoader(dataset, batch_size=8, shuffle=True)",
            [
                "sampler = DistributedSampler(dataset) if WORLD_SIZE > 1 else None",
                "loader = DataLoader(dataset, batch_size=8, shuffle=sampler is None, sampler=sampler)",
            ],
        ),
        (
            "loader = DataLoader(dataset, 8)",
            [
                "sampler = DistributedSampler(dataset, shuffle=False) if WORLD_SIZE > 1 else None",
                "loader = DataLoader(dataset, 8, sampler=sampler)",
            ],
        ),
        (
            "loader = DataLoader(dataset, 8, True)",
            ["loader = DataLoader(dataset, 8, sampler is None, sampler=sampler)"],
        ),
        ("loader = DataLoader(dataset, 8, False, None)", ["loader = DataLoader(dataset, 8, False, sampler)"]),
        (
            "loader = DataLoader(dataset, 8, shuffle=shuffled)",
            ["DistributedSampler(dataset, shuffle=shuffled)", "shuffle=shuffled and sampler is None"],
        ),
        (
            "loader = DataLoader(TensorDataset(inputs, labels), batch_size=8)",
            [
                "dataset_2 = TensorDataset(inputs, labels)",
                "sampler = DistributedSampler(dataset_2, shuffle=False) if WORLD_SIZE > 1 else None",
                "loader = DataLoader(dataset_2, batch_size=8, sampler=sampler)",
            ],
        ),
        (
            "loader = DataLoader(dataset, shuffle=True, **options)",
            ["loader = DataLoader(dataset, shuffle=sampler is None, **options, sampler=sampler)"],
        ),
        (
            "loader = DataLoader(\n    dataset,\n    batch_size=8,\n    shuffle=True,  # anew\n)",
            ["    shuffle=sampler is None,  # anew", "    sampler=sampler,"],
        ),
        (
            "loader = DataLoader(\n    dataset,\n    batch_size=8,  # small\n    shuffle=True  # anew\n)",
            ["    batch_size=8,  # small\n    shuffle=sampler is None,  # anew\n    sampler=sampler\n)"],
        ),
        (
            "options['shuffle'] = True\nloader = DataLoader(dataset, **options)",
            [
                "loader = distributed_loader(",
                "DistributedSampler(loader.dataset, shuffle=isinstance(loader.sampler, RandomSampler))",
            ],
        ),
    ],
)
def test_a_training_loader_gets_a_sampler(tmp_path: Path, loader: str, expected: list[str]) -> None:
    text = _text(tmp_path, loader)
    for line in expected:
        assert line in text, text
    assert ("set_epoch(epoch)" in text) is (", shuffle=False) if WORLD_SIZE > 1" not in text)


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        (IN_EPOCHS, ["for epoch in range(3):", "    if WORLD_SIZE > 1:", "        sampler.set_epoch(epoch)"]),
        (
            "for _ in range(3):\n    for x, y in loader:\n        STEP",
            ["for epoch in range(3):", "    if WORLD_SIZE > 1:", "        sampler.set_epoch(epoch)"],
        ),
        (
            "for lr in (0.1, 0.2):\n    for x, y in loader:\n        STEP",
            ["    if WORLD_SIZE > 1:", "        sampler.set_epoch(sampler.epoch + 1)"],
        ),
        (
            "done = 0\nwhile done < 3:\n    for x, y in loader:\n        STEP\n    done += 1",
            ["while done < 3:", "    if WORLD_SIZE > 1:", "        sampler.set_epoch(done)"],
        ),
        (
            "for number in itertools.count(5):\n    for x, y in loader:\n        STEP\n"
            "    if number > 6:\n        break",
            ["    if WORLD_SIZE > 1:", "        sampler.set_epoch(number)"],
        ),
        (
            "def train(batches):\n    for x, y in batches:\n        STEP\n\n"
            "for epoch in range(2, 5):\n    train(loader)",
            [
                "for epoch in range(2, 5):",
                "    if WORLD_SIZE > 1:",
                "        sampler.set_epoch(epoch)",
                "    train(loader)",
            ],
        ),
        (
            "for epoch in range(3):\n    batches = enumerate(loader)\n    for _, (x, y) in batches:\n        STEP",
            ["for epoch in range(3):", "    if WORLD_SIZE > 1:", "        sampler.set_epoch(epoch)"],
        ),
        (
            "def endless(batches):\n    while True:\n        yield from iter(batches)\n\n"
            "for step, (x, y) in zip(range(20), endless(loader)):\n    STEP",
            [
                "        if WORLD_SIZE > 1:",
                "            batches.sampler.set_epoch(batches.sampler.epoch + 1)",
                "        yield from iter(batches)",
            ],
        ),
        (
            "batches = iter(loader)\nfor step in range(20):\n    try:\n        x, y = next(batches)\n"
            "    except StopIteration:\n        batches = iter(loader)\n        x, y = next(batches)\n    STEP",
            [
                "    except StopIteration:",
                "        if WORLD_SIZE > 1:",
                "            sampler.set_epoch(sampler.epoch + 1)",
                "        batches = iter(loader)",
            ],
        ),
    ],
)
def test_the_sampler_is_told_the_epoch(tmp_path: Path, rest: str, told: list[str]) -> None:
    text = _text(tmp_path, "loader = DataLoader(dataset, batch_size=8, shuffle=True)", rest)
    assert "\n".join(told) in text, text


@pytest.mark.parametrize("given", ["", ", shuffle=False"])
def test_without_shuffling_no_epoch_is_told(tmp_path: Path, given: str) -> None:
    """The order is the same in each."""
    text = _text(tmp_path, f"loader = DataLoader(dataset, batch_size=8{given})")
    assert "DistributedSampler(dataset, shuffle=False)" in text and "set_epoch" not in text
    assert "set_epoch" in _text(tmp_path, "loader = DataLoader(dataset, batch_size=8, shuffle=len(dataset) > 9)")


def test_one_pass_needs_no_epoch(tmp_path: Path) -> None:
    text = _text(tmp_path, "loader = DataLoader(dataset, batch_size=8)", "for x, y in loader:\n    STEP")
    assert "DistributedSampler(" in text and "set_epoch" not in text


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (
            "loader = DataLoader(dataset, sampler=WeightedRandomSampler([1.0] * 40, 40))",
            "has a sampler of its own",
        ),
        (
            "class Stream(IterableDataset):\n    def __iter__(self):\n        yield from dataset\n\n\n"
            "loader = DataLoader(Stream(), batch_size=8)",
            "no length",
        ),
        (
            "class Own(DataLoader):\n    def __init__(self, data):\n        super().__init__(data, 8)\n\n\n"
            "loader = Own(dataset)",
            "constructor of its own",
        ),
    ],
)
def test_what_distributed_sampler_cannot_share_out(tmp_path: Path, loader: str, reason: str) -> None:
    report = _migrated(tmp_path, loader)
    assert (report.precision, report.distribution) == ("migrated", "declined")
    assert any(reason in item.message and item.code == "AMP392" for item in report.refusals), report.refusals
    assert "Distributed" not in report.changes[0].after


def test_evaluation_goes_over_the_whole_loader(tmp_path: Path) -> None:
    rest = (
        IN_EPOCHS + "    with torch.no_grad():\n"
        "        print(sum((model(x).argmax(1) == y).sum().item() for x, y in loader) / len(dataset))\n"
    )
    text = _text(tmp_path, "loader = DataLoader(dataset, batch_size=8, shuffle=True)", rest)
    for line in (
        "loader = DataLoader(dataset, batch_size=8, shuffle=True)\nsharded_loader = distributed_loader(loader)",
        "        sharded_loader.sampler.set_epoch(epoch)\n    for x, y in sharded_loader:",
        "for x, y in loader) / len(dataset))",
    ):
        assert line in text, text


def test_sums_over_shares_are_reduced_and_others_are_not(tmp_path: Path) -> None:
    rest = (
        "for epoch in range(3):\n    hits = 0\n    for x, y in loader:\n        STEP\n"
        "        hits += (model(x).argmax(1) == y).sum().item()\n    print(hits / len(loader.dataset))\n"
        "    right = 0\n    with torch.no_grad():\n        for x, y in test_loader:\n"
        "            right += (model(x).argmax(1) == y).sum().item()\n    print(right / len(test_loader.dataset))\n"
    )
    loader = "loader = DataLoader(dataset, batch_size=8)\ntest_loader = DataLoader(dataset, batch_size=8)"
    text = _text(tmp_path, loader, rest)
    assert "    hits = all_reduce_sum(hits)\n    print(hits / len(loader.dataset))" in text
    assert "test_loader = DataLoader(dataset, batch_size=8)\n" in text
    assert text.count("all_reduce_sum(") == 2  # its definition, and that one


def test_padding_is_said_once(tmp_path: Path) -> None:
    report = _migrated(tmp_path, "loader = DataLoader(dataset, batch_size=8, shuffle=True)")
    said = [note.text for note in report.notes if "DistributedSampler repeats" in note.text]
    assert len(said) == 1


def test_the_length_of_the_sampler_is_that_of_the_share(tmp_path: Path) -> None:
    """A DistributedSampler is as long as a share, and so is the sum above it."""
    rest = (
        "for epoch in range(3):\n    hits = 0\n    for x, y in loader:\n        STEP\n"
        "        hits += (model(x).argmax(1) == y).sum().item()\n    print(hits / len(loader.sampler))\n"
    )
    text = _text(tmp_path, "loader = DataLoader(dataset, batch_size=8, shuffle=True)", rest)
    assert "    print(hits / len(loader.sampler))" in text and "all_reduce_sum(hits)" not in text


def test_progress_goes_to_the_end_of_the_share(tmp_path: Path) -> None:
    rest = (
        "def train(batches, epoch):\n    for index, (x, y) in enumerate(batches):\n        STEP\n"
        "        print(f'{index * len(x)} of {len(batches.dataset)}')\n\n\n"
        "for epoch in range(3):\n    train(loader, epoch)\n"
    )
    text = _text(tmp_path, "loader = DataLoader(dataset, batch_size=8, shuffle=True)", rest)
    assert "{index * len(x)} of {len(batches.sampler)}" in text


def test_steps_over_the_whole_data_become_those_of_a_process(tmp_path: Path) -> None:
    rest = (
        "schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3 * (len(dataset) // 8))\n"
        "for epoch in range(3):\n    for x, y in loader:\n        STEP\n        schedule.step()\n"
    )
    text = _text(tmp_path, "loader = DataLoader(dataset, batch_size=8, shuffle=True)", rest)
    assert "total_steps=3 * steps_of_process(len(dataset) // 8, loader)" in text


def test_a_bar_around_the_loader_has_no_sampler(tmp_path: Path) -> None:
    rest = (
        "def train(bar):\n    for x, y in bar:\n        STEP\n\n\nfor epoch in range(3):\n    train(tqdm(loader()))\n"
    )
    loader = "from tqdm import tqdm\n\n\ndef loader():\n    return DataLoader(dataset, batch_size=8, shuffle=True)\n"
    report = _migrated(tmp_path, loader, rest)
    assert report.distribution == "declined"
    assert any("sampler is out of reach" in item.message for item in report.refusals), report.refusals


@pytest.mark.parametrize(
    "made",
    [
        "functools.partial(DataLoader, batch_size=8, shuffle=True)(dataset)",
        "make(dataset)",
    ],
)
def test_a_loader_whose_call_does_not_say_all_is_not_shared_out(tmp_path, made):
    entry = tmp_path / "train.py"
    entry.write_text(
        "import functools\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
        "from torch.utils.data import DataLoader, TensorDataset\n\n"
        "make = functools.partial(DataLoader, batch_size=8, shuffle=True)\n"
        "dataset = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))\nnet = nn.Linear(4, 1)\n"
        f"optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\nloader = {made}\n"
        "for x, y in loader:\n    loss = F.mse_loss(net(x), y)\n    optimizer.zero_grad()\n"
        "    loss.backward()\n    optimizer.step()\n"
    )
    report = migrate(entry, Options(ddp=True, target="torch"))
    assert (report.precision, report.distribution) == ("migrated", "declined")
    assert any("does not say all that the loader is given" in item.message for item in report.refusals)
