"""How much is looked at in search of something, as programs grow."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from amp_rules.checks.common.rank_paths import RankPaths
from amp_rules.flow.expressions import ExpressionEvaluator
from amp_rules.flow.flow import Flow
from amp_rules.plan.changing import Changing
from amp_rules.plan.moved_inputs import _Places, inputs_are_moved
from amp_rules.plan.options import Options
from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.functions import Functions
from amp_rules.ranks.world import Setting
from amp_rules.roles.batches import DataFlow
from amp_rules.roles.loaders import Loaders
from amp_rules.roles.program import Program
from amp_rules.source.project import Project
from amp_rules.source.project_facts import ProjectFacts
from amp_rules.source.text import source_from_bytes
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


def test_a_search_that_found_nothing_spares_the_next(tmp_path, monkeypatch):
    # Each loop asks for each assignment of its variable; what lies behind that was looked into for the loop before.
    few, many = (looks(size, tmp_path, monkeypatch) for size in (8, 16))
    assert many < 5 * few, (few, many)


HELPERS = """
class Kept:
    def __init__(self):
        self.a = self.b = self.c = self.d = 0.0

kept = Kept()

{helpers}

for epoch in range(3):
    for x, y in {loader}:
        kept.d = kept.c
        kept.c = kept.b
        kept.b = kept.a
        kept.a = x
{calls}
"""


def test_functions_are_run_again_only_where_something_has_changed(tmp_path, monkeypatch):
    numbers = range(12)
    helpers = "\n".join(f"def helper{n}(value):\n    return value + {n}\n" for n in numbers)
    calls = "\n".join(f"        helper{n}({n})" for n in numbers)
    path = tmp_path / "train.py"
    path.write_text(f"{HEAD}\n{HELPERS.format(helpers=helpers, calls=calls, loader=DATA)}")
    program = Program(Project(path))
    rounds = []
    runs: Counter[str] = Counter()
    evaluated, settled = Functions._evaluate, Ranks._round

    def counted(self, info, way):
        runs[info.name] += 1
        return evaluated(self, info, way)

    monkeypatch.setattr(Functions, "_evaluate", counted)
    monkeypatch.setattr(Ranks, "_round", lambda self: (rounds.append(self), settled(self)))
    loop = next(node for node, _, _ in program.nodes() if isinstance(node, ast.For) and node.iter is not None)
    inner = next(node for node in loop.body if isinstance(node, ast.For))
    ranks = Ranks(program, Setting(prepared=frozenset((inner.iter,))))
    last = next(node.targets[0] for node in inner.body if ast.unparse(node).startswith("kept.d"))
    assert ranks.origins(last)
    assert len(rounds) > 2
    assert {runs[f"helper{n}"] for n in numbers} == {1}


def asked(size: int, monkeypatch) -> int:
    """How often a place is asked who gets there, in classes whose methods share their names and call each other."""
    count = 0
    reach = RankPaths._reach

    def counted(*arguments):
        nonlocal count
        count += 1
        return reach(*arguments)

    classes = "\n".join(
        f"class Part{n}:\n    def run(self, x):\n        return self.one.turn(self.two.move(x))\n\n"
        "    def turn(self, x):\n        return self.run(self.move(x))\n\n"
        "    def move(self, x):\n        self.turn(x)\n        return self.run(x)\n"
        for n in range(size)
    )
    facts = ProjectFacts().start(source_from_bytes(classes.encode(), Path("parts.py")))
    last = facts.index.calls[-1]
    with monkeypatch.context() as patch:
        patch.setattr(RankPaths, "_reach", counted)
        RankPaths(facts).reach(last)
    return count


def test_the_search_for_callers_follows_no_product_of_methods_that_share_a_name(monkeypatch):
    few, many = (asked(size, monkeypatch) for size in (4, 16))
    assert few > 4
    assert many < 8 * few


def changing(size: int) -> str:
    """A model whose forward pass makes a variable anew from itself twice over in each line, and takes a part by it."""
    lines = "\n".join(f"        index = index * {n} + index % {n + 2}" for n in range(size))
    net = f"""class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)])

    def forward(self, x, index=0):
{lines}
        return self.layers[index](x)"""
    loop = LOOP.format(n=0)
    call = f"train0(Net(), {DATA}, torch.optim.SGD(Net().parameters(), lr=0.1))"
    return f"{HEAD}\n{net}\n\n{loop}\n\nmodel = Net()\n{call.replace('Net()', 'model')}\n"


def test_whether_a_variable_changes_follows_no_product_of_assignments(tmp_path, monkeypatch):
    counts = []
    for size in (4, 16):
        count = 0
        changes = Changing.changes

        def counted(*arguments, changes=changes):
            nonlocal count
            count += 1
            return changes(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Changing, "changes", counted)
            report, _ = migrated_text(tmp_path, changing(size), Options(ddp=True, target="torch"))
        assert report.precision == "migrated"
        counts.append(count)
    few, many = counts
    assert many < 30 * few, counts


def moving(size: int) -> str:
    """Batches that are put into each other, of which nothing is taken to the GPU."""
    names = [f"batch{n}" for n in range(size)]
    stores = "\n".join(f"        {one}[0] = {other}" for one in names for other in names)
    loop = LOOP.format(n=0).replace("        x, y = x.to(device), y.to(device)\n", f"{stores}\n        x = batch0\n")
    model = "model = nn.DataParallel(build0(None).cuda())"
    call = f"train0(model, {DATA}, torch.optim.SGD(model.parameters(), lr=0.1))"
    return f"{HEAD}\n{NET.format(n=0)}\n\n{loop}\n\n{model}\n{call}\n"


def test_whether_inputs_are_moved_follows_no_product_of_batches_that_are_put_into_each_other(tmp_path, monkeypatch):
    counts = []
    for size in (2, 6):
        count = 0
        decide = _Places._decide

        def counted(*arguments, decide=decide):
            nonlocal count
            count += 1
            return decide(*arguments)

        path = tmp_path / "train.py"
        path.write_text(moving(size))
        with monkeypatch.context() as patch:
            patch.setattr(_Places, "_decide", counted)
            assert inputs_are_moved(Program(Project(path)))
        counts.append(count)
    few, many = counts
    # There are as many places as pairs of batches.
    assert few > 4 and many < 10 * few, counts


def evaluations_of_chain(links: int, folder, monkeypatch) -> int:
    """How often an expression is evaluated, where methods are called on the weight of one of many layers in a row."""
    path = folder / "train.py"
    layers = "\n".join(f"head(nn.Linear({n}, 2))" for n in range(1, 9))
    chain = ".clone()" * links
    path.write_text(
        f"from torch import nn\n\ndef head(layer):\n    w = layer.weight{chain}\n    return w\n\n{layers}\n"
    )
    count = 0
    evaluate = ExpressionEvaluator.evaluate

    def counted(*arguments):
        nonlocal count
        count += 1
        return evaluate(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ExpressionEvaluator, "evaluate", counted)
        Flow(Project(path))
    return count


def test_links_of_a_chain_of_methods_are_followed_once(tmp_path, monkeypatch) -> None:
    one, four = (evaluations_of_chain(links, tmp_path, monkeypatch) for links in (1, 4))
    assert four < 2 * one
