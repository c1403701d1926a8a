"""How much is looked at in search of something, as programs grow."""

from __future__ import annotations

from amp_rules.plan.options import Options
from amp_rules.roles.batches import DataFlow
from amp_rules.roles.loaders import Loaders
from amp_rules.roles.steps import Program
from amp_rules.source.project import Project
from growth import DATA, HEAD, LOOP, NET
from migrating import migrated_text

NAMES = """def renamed(keys):
{lines}
    return keys
"""
TRAINING = f"""{NET.format(n=0)}

{LOOP.format(n=0)}

model = build0(None)
print(renamed(list(model.state_dict())))
train0(model, {DATA}, torch.optim.SGD(model.parameters(), lr=0.1))
"""


def renaming(size: int) -> str:
    """A variable that is made anew from itself time and again, as in loaders of old checkpoints."""
    lines = "\n".join(f'    keys = [key.replace("layer{n}", "stage{n}") for key in keys]' for n in range(size))
    return f"{HEAD}\n{NAMES.format(lines=lines)}\n{TRAINING}"


def looks(size: int, folder, monkeypatch) -> int:
    """How often the search for all loaders of a program looks behind an expression."""
    count = 0
    behind = Loaders._behind

    def counted(*arguments):
        nonlocal count
        count += 1
        return behind(*arguments)

    path = folder / "train.py"
    path.write_text(renaming(size))
    data = DataFlow(Program(Project(path)))
    with monkeypatch.context() as patch:
        patch.setattr(Loaders, "_behind", counted)
        assert len(data.training_data().uses) == 1
    return count


def test_the_search_for_loaders_follows_no_product_of_assignments(tmp_path, monkeypatch):
    few, many = (looks(size, tmp_path, monkeypatch) for size in (4, 16))
    # Each of the loops looks behind each of the assignments; the ways through these are far more.
    assert many < 100 * few, (few, many)


def test_a_script_that_renames_much_is_migrated(tmp_path):
    report, text = migrated_text(tmp_path, renaming(24), Options(ddp=True))
    assert report.distribution == "migrated"
    assert "amp.prepare_loader" in text
