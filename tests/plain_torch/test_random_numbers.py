"""Random numbers in torch's own words: what decides over training is the same on all processes."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest
from test_torch_ranks import HEAD as HEAD_OF_RANKS
from test_torch_ranks import STEP, TRAINING, epochs, in_torch, migrated

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


DROPOUT = "        x = nn.functional.dropout(x)\n"
OWN = "if RANK > 0:\n    torch.manual_seed(torch.initial_seed() + RANK)  # each process draws its own noise\nfor epoch"


def _says_equal_noise(folder: Path, text: str) -> bool:
    report, _ = in_torch(folder, text)
    found = [note for note in report.notes if "noise" in note.text]
    assert len(found) < 2
    return bool(found)


def test_noise_is_each_process_s_own_from_where_training_begins(tmp_path: Path) -> None:
    text = epochs(before="torch.manual_seed(0)\n", in_batch=DROPOUT)
    assert OWN in migrated(tmp_path, text)
    assert not _says_equal_noise(tmp_path, text)


def test_generators_that_began_with_one_state_part_where_training_begins(tmp_path: Path) -> None:
    text = migrated(tmp_path, epochs(in_batch=DROPOUT))  # the data are drawn
    assert text.index("dist.broadcast_object_list(states)") < text.index("dataset =") < text.index(OWN)


def test_each_library_that_noise_is_drawn_from_parts(tmp_path: Path) -> None:
    before = "torch.manual_seed(0)\nnp.random.seed(0)\nrandom.seed(0)\n"
    in_batch = "        x = x + random.random() + np.random.rand()\n"
    text = migrated(tmp_path, epochs(before=before, in_batch=in_batch))
    assert "    random.seed(random.randrange(2**31) + RANK)" in text
    assert "    np.random.seed(np.random.randint(2**31) + RANK)" in text
    assert "torch.manual_seed(torch.initial_seed()" not in text


def test_nothing_parts_where_no_noise_is_drawn(tmp_path: Path) -> None:
    text = epochs(before="torch.manual_seed(0)\n")
    assert "RANK > 0" not in migrated(tmp_path, text)
    assert not _says_equal_noise(tmp_path, text)


def test_noise_stays_equal_where_the_training_seeds_itself(tmp_path: Path) -> None:
    text = epochs(in_batch="        torch.manual_seed(epoch)\n" + DROPOUT)
    assert "RANK > 0" not in migrated(tmp_path, text)
    assert _says_equal_noise(tmp_path, text)


def test_noise_stays_equal_where_an_order_is_drawn_from_its_generator(tmp_path: Path) -> None:
    text = HEAD + SHUFFLED % "x = x * random.random()"
    assert "random.randrange" not in migrated(tmp_path, text)
    assert _says_equal_noise(tmp_path, text)


def test_noise_stays_equal_where_models_are_made_in_the_loop(tmp_path: Path) -> None:
    folds = "for fold in range(2):\n" + indent(TRAINING + f"for x, y in loader:\n{DEEP}", "    ")
    text = f"{HEAD_OF_RANKS}torch.manual_seed(0)\n{folds}"
    assert "RANK > 0" not in migrated(tmp_path, text)
    assert _says_equal_noise(tmp_path, text)


DEEP = (DROPOUT + STEP).replace("        ", "    ")

FROM_FILE = """\
images = TensorDataset(torch.load("images.pt"))
loader = DataLoader(images, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.MSELoss()
%s
for epoch in range(2):
    for (x,) in loader:
        noise = torch.from_numpy(np.random.normal(0, 1, x.shape)).float()
        optimizer.zero_grad()
        loss = criterion(model(nn.functional.dropout(x + noise)), x[:, :1])
        loss.backward()
        optimizer.step()
"""


def test_generators_that_only_weights_and_noise_are_drawn_from_stay_as_they_are(tmp_path: Path) -> None:
    text = HEAD_OF_RANKS + FROM_FILE % ""
    after = migrated(tmp_path, text)
    assert "broadcast_object_list" not in after
    assert "manual_seed" not in after
    assert not _says_equal_noise(tmp_path, text)


@pytest.mark.parametrize(
    "more",
    [
        "images = torch.utils.data.random_split(images, [6, 2])[0]",
        "average = copy.deepcopy(model)",
        "start = {name: value.clone() for name, value in model.named_parameters()}",
        "target = nn.Linear(4, 1)",
    ],
)
def test_what_is_drawn_before_the_training_is_the_first_process_s(tmp_path: Path, more: str) -> None:
    after = migrated(tmp_path, "import copy\n" + HEAD_OF_RANKS + FROM_FILE % more)
    assert "    torch.set_rng_state(states[0])\n" in after
    assert "np.random.set_state" not in after
    assert after.index("set_rng_state") < after.index("    torch.manual_seed(torch.initial_seed() + RANK)")


def test_an_order_that_is_drawn_in_training_begins_with_the_first_process_s_state(tmp_path: Path) -> None:
    text = migrated(tmp_path, (HEAD + SHUFFLED % "pass").replace("random.seed(0)\n", ""))
    assert "random.setstate(" in text


def test_python_s_random_is_called_so_where_its_name_is_taken(tmp_path: Path) -> None:
    (tmp_path / "draws.py").write_text("import random\n\n\ndef draw():\n    return random.random()\n")
    before = "import draws\nrandom = draws.draw()\nscale = random\n"
    text = migrated(tmp_path, epochs(before=before).replace("import random\n", ""))
    assert "import random as python_random\n" in text


def test_batches_that_each_process_draws_are_not_drawn_alike(tmp_path: Path) -> None:
    text = migrated(tmp_path, RECURRENT)
    assert "torch.manual_seed(torch.initial_seed() + RANK)" in text
    assert text.count("broadcast_object_list") == 1  # the lines are drawn


def test_batches_that_each_process_draws_need_no_seed_where_nothing_is_drawn_before(tmp_path: Path) -> None:
    text = migrated(tmp_path, RECURRENT.replace("torch.randn(length, 1, 4)", "torch.ones(length, 1, 4)"))
    assert "broadcast_object_list" not in text
    assert "seed" not in text


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


def test_the_states_are_no_variable_of_a_function_that_lists_its_own(tmp_path: Path) -> None:
    """``Config(locals().copy())`` is saved as JSON: what the migration put there would not be a setting."""
    body = "def main(lr):\n    settings = locals().copy()\n" + indent(SHUFFLED % "x = x * random.random()", "    ")
    text = migrated(tmp_path, HEAD.replace("random.seed(0)\n", "") + body + "    print(settings)\n\n\nmain(0.1)\n")
    start = text.index("states = [")
    assert "del states\n" in text[start : text.index("settings = locals()")]
    plain = migrated(tmp_path, HEAD.replace("random.seed(0)\n", "") + SHUFFLED % "x = x * random.random()")
    assert "del states" not in plain
