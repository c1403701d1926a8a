"""Random numbers in torch's own words: what decides over training is the same on all processes."""

from __future__ import annotations

from pathlib import Path

from test_torch_ranks import epochs, in_torch, migrated

SHUFFLED = """\
samples = [(torch.randn(4), torch.randn(1)) for _ in range(80)]
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    random.shuffle(samples)
    for x, y in DataLoader(samples, batch_size=8):
        %s
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
"""

HEAD = (
    "import random\n\nimport torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader\n\nrandom.seed(0)\n"
)


def test_what_nothing_leads_apart_is_drawn_as_it_was(tmp_path: Path) -> None:
    text = migrated(tmp_path, HEAD + SHUFFLED % "pass")
    assert "random.getstate" not in text


def test_an_order_is_drawn_alike_again_where_batches_draw_too(tmp_path: Path) -> None:
    text = migrated(tmp_path, HEAD + SHUFFLED % "x = x * random.random()")
    assert "    random.setstate(states[0])\n    random.shuffle(samples)\n" in text
    assert text.index("random.seed(0)") < text.index("random.setstate")


def test_a_choice_of_a_batch_is_plain_where_nothing_else_draws(tmp_path: Path) -> None:
    choice = "        if random.random() < 0.5:\n            continue\n"
    text = migrated(tmp_path, epochs(before="random.seed(0)\n", in_batch=choice))
    assert "if random.random() < 0.5:" in text


def test_a_choice_of_a_batch_is_the_first_ones_where_noise_is_drawn_too(tmp_path: Path) -> None:
    choice = "        x = x + random.random()\n        if random.choice([True, False]):\n            continue\n"
    text = migrated(tmp_path, epochs(before="random.seed(0)\n", in_batch=choice))
    assert "if from_main_process(random.choice([True, False])):" in text
    assert "x = x + random.random()\n" in text


def test_an_order_of_a_set_is_sorted_for_several_processes_only(tmp_path: Path) -> None:
    before = "names = list(set(['a', 'b', 'c'] * 4))\nclasses = {name: i for i, name in enumerate(names)}\n"
    in_batch = "        y = y + classes['a']\n"
    text = migrated(tmp_path, epochs(before=before, in_batch=in_batch))
    elements = "set(['a', 'b', 'c'] * 4)"
    assert f"list(sorted({elements}, key=str) if WORLD_SIZE > 1 else {elements})" in text


def test_a_hash_of_a_text_declines(tmp_path: Path) -> None:
    report, _ = in_torch(tmp_path, epochs(in_batch="        y = y + hash('a') % 7\n"))
    assert report.distribution == "declined"
    assert any("hashes texts anew" in item.message for item in report.refusals)


def test_noise_of_a_process_is_seeded_by_its_rank(tmp_path: Path) -> None:
    before = "rng = np.random.default_rng(3)\n"
    in_batch = "        x = x + torch.from_numpy(rng.normal(0, 0.1, x.shape)).float()\n"
    text = migrated(tmp_path, epochs(before=before, in_batch=in_batch))
    assert "rng = np.random.default_rng(3 + RANK)\n" in text


def test_equal_noise_is_said_once(tmp_path: Path) -> None:
    report, _ = in_torch(tmp_path, epochs(in_batch="        x = nn.functional.dropout(x)\n"))
    notes = [note for note in report.notes if "noise" in note.text]
    assert len(notes) == 1
    quiet, _ = in_torch(tmp_path, epochs())
    assert not any("noise" in note.text for note in quiet.notes)


def test_batches_that_each_process_draws_are_not_drawn_alike(tmp_path: Path) -> None:
    text = migrated(tmp_path, RECURRENT)
    assert "torch.manual_seed(torch.initial_seed() + RANK)" in text
    assert text.count("broadcast_object_list") == 1


RECURRENT = """\
import random

import torch
from torch import nn

lines = [torch.randn(length, 1, 4) for length in range(3, 9)]
model = nn.RNNCell(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def pick():
    return lines[random.randint(0, len(lines) - 1)]


for step in range(20):
    line = pick()
    hidden = torch.zeros(1, 4)
    optimizer.zero_grad()
    for i in range(line.size()[0]):
        hidden = model(line[i], hidden)
    loss = hidden.pow(2).mean()
    loss.backward()
    optimizer.step()
"""
