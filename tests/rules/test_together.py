"""Several scripts that share modules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.folder.apex_users import with_other_starts
from amp_rules.folder.shared_modules import Hunk, applied, disturbs, hunks, join
from amp_rules.plan.options import Options
from amp_rules.plan.report import Edit, FileChange, Report
from amp_rules.source.files import Files
from amp_rules.source.reach import Reach
from amp_rules.source.spans import Position, Span
from hypothesis import given, settings
from hypothesis import strategies as st
from properties import examples

HEAD = "import torch\nfrom torch import nn, optim\nfrom torch.nn import functional as F\n"
ENGINE = """
def train_one_epoch(model, loader, optimizer):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def evaluate(model, loader):
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += F.cross_entropy(model(x), y).item()
    return total
"""
SCRIPT = """
from engine import train_one_epoch

model = nn.Linear(4, 2)
optimizer = optim.{optimizer}(model.parameters(), lr=0.1)
batches = [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(4)]
train_one_epoch(model, batches, optimizer)
"""


def report(entry: Path, change: FileChange | None, functions: tuple[tuple[int, int], ...], **kwargs) -> Report:
    changes = (change,) if change else ()
    files = tuple({entry, *(item.path for item in changes), Path("/shared.py")})
    reach = Reach(files, (), {Path("/shared.py"): functions})
    edits = tuple(
        Edit(item.path, Span(Position(hunk.first + 1, 1), Position(max(hunk.last, hunk.first + 1), 1)), code, "", "")
        for item in changes
        for hunk in hunks(item.before, item.after)
        for code in kwargs.pop("codes", ["AMP102"])
    )
    return Report(entry, "migrated", kwargs.get("distribution", "migrated"), changes, edits, reach=reach)


BEFORE = "import torch\n\n\ndef one():\n    a()\n\n\ndef two():\n    b()\n"


def changed(old: str, new: str) -> FileChange:
    return FileChange(Path("/shared.py"), BEFORE, BEFORE.replace(old, new))


@pytest.fixture
def project(tmp_path):
    def call(**texts: str) -> list[Path]:
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
        return [tmp_path / f"{name}.py" for name in texts if name != "engine"]

    return call


def test_a_module_that_two_scripts_share_is_rewritten_once(project):
    files = Files()
    first, second = project(
        engine=HEAD + ENGINE, adam=HEAD + SCRIPT.format(optimizer="Adam"), sgd=HEAD + SCRIPT.format(optimizer="SGD")
    )
    reports = [migrate(path, Options(), files=files) for path in (first, second)]
    joined = join(reports)
    assert joined.reports == reports
    assert [path.name for path in joined.changes] == ["adam.py", "engine.py", "sgd.py"]
    alone = {change.path.name: change.after for change in reports[0].changes}
    assert joined.changes[first.parent / "engine.py"].after == alone["engine.py"]


def test_a_script_that_is_declined_takes_nothing_from_one_that_shares_its_modules(project):
    files = Files()
    good, bad = project(
        engine=HEAD + ENGINE,
        good=HEAD + SCRIPT.format(optimizer="Adam"),
        odd=HEAD + SCRIPT.format(optimizer="Adam") + "for p in model.parameters():\n    p.grad.data.zero_()\n"
        "loss = model(torch.randn(2, 4)).sum()\nloss.backward()\nfor p in model.parameters():\n    p.data -= p.grad\n",
    )
    reports = [migrate(path, Options(), files=files) for path in (good, bad)]
    assert [item.precision for item in reports] == ["migrated", "declined"]
    joined = join(reports)
    assert [item.precision for item in joined.reports] == ["migrated", "declined"]
    assert [path.name for path in joined.changes] == ["engine.py", "good.py"]


def test_changes_in_functions_that_the_other_script_never_runs_are_joined():
    one = report(Path("/1.py"), changed("a()", "A()"), ((4, 5),))
    two = report(Path("/2.py"), changed("b()", "B()"), ((8, 9),))
    joined = join([one, two])
    assert joined.reports == [one, two]
    assert joined.changes[Path("/shared.py")].after == BEFORE.replace("a()", "A()").replace("b()", "B()")


def test_a_change_that_only_one_of_two_scripts_wants_where_both_run_is_a_conflict():
    one = report(Path("/1.py"), changed("a()", "A()"), ((4, 5),))
    two = report(Path("/2.py"), changed("b()", "B()"), ((4, 5), (8, 9)))
    joined = join([one, two])
    assert joined.reports[0] == one
    assert (joined.reports[1].precision, joined.reports[1].distribution) == ("declined", "declined")
    assert [item.code for item in joined.reports[1].refusals] == ["AMP390"]
    assert "1.py" in joined.reports[1].refusals[0].message
    assert joined.changes[Path("/shared.py")].after == BEFORE.replace("a()", "A()")


def test_two_changes_of_one_line_are_a_conflict_and_the_one_that_goes_further_is_kept():
    one = report(Path("/1.py"), changed("a()", "A()"), ((4, 5),), distribution="declined")
    two = report(Path("/2.py"), changed("a()", "B()"), ((4, 5),))
    joined = join([one, two])
    assert [item.precision for item in joined.reports] == ["declined", "migrated"]
    assert joined.changes[Path("/shared.py")].after == BEFORE.replace("a()", "B()")


def test_of_scripts_that_migrate_as_far_the_one_in_conflict_with_most_gives_way():
    odd = report(Path("/1.py"), changed("a()", "A()"), ((4, 5),))
    others = [report(Path(f"/{name}.py"), changed("a()", "B()"), ((4, 5),)) for name in (2, 3)]
    assert [item.precision for item in join([odd, *others]).reports] == ["declined", "migrated", "migrated"]


def test_a_script_decided_on_later_must_not_change_what_others_run():
    other = report(Path("/1.py"), None, ((4, 5),))
    later = report(Path("/2.py"), changed("a()", "A()"), ((4, 5),))
    assert disturbs(later, [other])
    assert not disturbs(later, [replace(other, precision="declined", distribution="declined")])
    assert not disturbs(report(Path("/2.py"), changed("import torch", "import torch\nimport amp_runtime"), ()), [other])
    before = BEFORE + "\nif __name__ == '__main__':\n    one()\n"
    guarded = FileChange(Path("/shared.py"), before, before.replace("    one()", "    ONE()"))
    assert not disturbs(report(Path("/shared.py"), guarded, ()), [other])
    assert disturbs(report(Path("/2.py"), guarded, ()), [other])


def test_a_script_whose_step_is_rewritten_goes_before_those_that_only_get_new_names():
    step = report(Path("/1.py"), changed("a()", "A()"), ((4, 5),))
    names = [report(Path(f"/{n}.py"), changed("a()", "B()"), ((4, 5),), codes=["AMP410"]) for n in (2, 3)]
    assert [item.precision for item in join([*names, step]).reports] == ["declined", "declined", "migrated"]


def test_what_shares_out_data_does_not_concern_a_script_of_one_process():
    one = report(Path("/1.py"), changed("a()", "A()"), ((4, 5),), codes=["AMP202"])
    two = report(Path("/2.py"), None, ((4, 5),), distribution="declined")
    assert join([one, two]).reports == [one, two]
    both = report(Path("/2.py"), None, ((4, 5),))
    assert [item.precision for item in join([one, both]).reports] == ["migrated", "declined"]


def test_an_import_of_the_runtime_concerns_nobody():
    one = report(Path("/1.py"), changed("import torch\n", "import torch\nimport amp_runtime as amp\n"), ((4, 5),))
    two = report(Path("/2.py"), changed("b()", "B()"), ((4, 5), (8, 9)))
    assert join([one, two]).reports == [one, two]


LINES = st.lists(st.sampled_from(["a", "b", "c", "", "  d"]), max_size=12).map(
    lambda rows: "".join(row + "\n" for row in rows)
)


@settings(max_examples=examples(200), deadline=None, derandomize=True, database=None)
@given(LINES, LINES, st.booleans())
def test_hunks_give_the_new_text_again(before, after, last):
    after = after if last else after.removesuffix("\n")
    assert applied(before, hunks(before, after)) == after


@settings(max_examples=examples(200), deadline=None, derandomize=True, database=None)
@given(LINES, LINES, LINES)
def test_hunks_that_do_not_overlap_can_be_made_in_any_order(before, one, two):
    first, second = hunks(before, one), hunks(before, two)
    if any(a.overlaps(b) for a in first for b in second if a != b):
        return
    both = applied(before, {*first, *second})
    assert both == applied(before, [*second, *(hunk for hunk in first if hunk not in second)])
    for hunk in {*first, *second}:
        assert all(line in both for line in hunk.lines)


def test_a_hunk_overlaps_what_it_replaces_and_what_goes_to_its_place():
    insert, replace = Hunk(2, 2, ("x\n",)), Hunk(1, 3, ("y\n",))
    assert insert.overlaps(replace) and replace.overlaps(insert)
    assert insert.overlaps(Hunk(2, 2, ("z\n",)))
    assert insert.overlaps(Hunk(2, 4, ()))
    assert not insert.overlaps(Hunk(3, 4, ()))
    assert not replace.overlaps(Hunk(3, 5, ()))


def test_line_ends_are_kept_as_they_are():
    before, after = "a\r\nb\rc\n", "a\r\nB\rc\nd"
    assert applied(before, hunks(before, after)) == after


APEX_TRAINER = """
from apex import amp


def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
"""
APEX_SCRIPT = """
from apex import amp
from trainer import train

model = nn.Linear(4, 2)
optimizer = optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
train(model, [(torch.randn(8, 4), torch.randint(2, (8,)))], optimizer)
"""


def test_a_script_that_starts_apex_and_shares_a_migrated_trainer_is_named(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "trainer.py").write_text(HEAD + APEX_TRAINER)
    for name in ("first.py", "second.py", "tools/third.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(HEAD + APEX_SCRIPT)
    # Neither starts Apex: the trainer did nothing for them before.
    (tmp_path / "plain.py").write_text(HEAD + APEX_SCRIPT.replace("amp.initialize(model, optimizer", "id((model"))
    (tmp_path / "other.py").write_text(HEAD + APEX_SCRIPT.replace("from trainer", "from engine"))
    scripts = [tmp_path / "first.py", tmp_path / "second.py", tmp_path / "tools" / "third.py"]
    for count, named in ((1, "second.py and tools/third.py start"), (2, "tools/third.py starts"), (3, "")):
        reports = with_other_starts(join([migrate(path, Options()) for path in scripts[:count]]).reports)
        told = [note.text for item in reports for note in item.notes if note.code == "AMP483"]
        assert len(told) == (count < 3), told
        for text in told:
            assert text.startswith(named) and "`amp-migrate first.py second.py tools/third.py`" in text


APEX_CHECKPOINTS = """
try:
    from apex import amp
except ImportError:
    amp = None


def save(model, path):
    torch.save({"model": model.state_dict(), "amp": amp.state_dict()}, path)


def load(model, path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    amp.load_state_dict(saved["amp"])
"""
APEX_LOOP = APEX_TRAINER + APEX_SCRIPT.replace("from trainer import train", "from checkpoints import load, save")


@pytest.mark.parametrize(("keeps", "told"), [(True, 1), (False, 0)])
def test_a_script_that_starts_apex_and_shares_a_migrated_helper_for_checkpoints_is_named(tmp_path, keeps, told):
    (tmp_path / "pyproject.toml").touch()
    helper = APEX_CHECKPOINTS if keeps else APEX_CHECKPOINTS.replace(', "amp": amp.state_dict()', "")
    helper = helper if keeps else helper.replace('amp.load_state_dict(saved["amp"])', "print(amp.master_params(model))")
    (tmp_path / "checkpoints.py").write_text(HEAD + helper)
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text(HEAD + APEX_LOOP + 'save(model, "last.pt")\nload(model, "last.pt")\n')
    reports = with_other_starts(join([migrate(tmp_path / "first.py", Options())]).reports)
    notes = [note.text for item in reports for note in item.notes if note.code == "AMP483"]
    assert len(notes) == told
    for text in notes:
        assert text.startswith("second.py starts Apex") and "neither save nor restore Apex's loss scale" in text


APEX_LAYERS = """
from apex import amp


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad


@amp.float_function
def product(x, weight):
    return Product.apply(x, weight)
"""


def test_a_script_that_starts_apex_and_shares_functions_that_apex_cast_is_named_once(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    for name in ("layers.py", "more_layers.py"):
        (tmp_path / name).write_text(HEAD + APEX_LAYERS)
    loop = APEX_TRAINER + APEX_SCRIPT.replace(
        "from trainer import train", "from layers import product\nimport more_layers"
    )
    loop += (
        "print(product(torch.rand(2, 2), torch.rand(2, 2)), more_layers.product(torch.rand(2, 2), torch.rand(2, 2)))\n"
    )
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text(HEAD + loop)
    (tmp_path / "plain.py").write_text(
        HEAD + "from layers import product\nproduct(torch.rand(2, 2), torch.rand(2, 2))\n"
    )
    for count, told in ((1, 1), (2, 0)):
        scripts = [tmp_path / "first.py", tmp_path / "second.py"][:count]
        reports = with_other_starts(join([migrate(path, Options()) for path in scripts]).reports)
        notes = [note.text for item in reports for note in item.notes if note.code == "AMP483"]
        assert len(notes) == told
        for text in notes:
            assert text.startswith("second.py starts Apex and runs this file too") and "`float_function`" in text


APEX_ACCELERATOR = """
from apex import amp


def start(model, optimizer):
    return amp.initialize(model, optimizer, opt_level="O1")


def backward(loss, optimizer):
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
"""
APEX_STEPS = """
from accelerator import backward, start

model = nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = start(model, optimizer)
for step in range(10):
    optimizer.zero_grad()
    loss = model(torch.rand(8, 4).cuda()).sum()
    backward(loss, optimizer)
    optimizer.step()
"""


def test_a_script_that_steps_by_itself_with_a_migrated_trainer_is_named(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "accelerator.py").write_text(HEAD + APEX_ACCELERATOR)
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text(HEAD + APEX_STEPS)
    (tmp_path / "test.py").write_text(HEAD + "from accelerator import start\nstart(nn.Linear(4, 2), [])\n")
    for count, told in ((1, 1), (2, 0)):
        scripts = [tmp_path / "first.py", tmp_path / "second.py"][:count]
        reports = with_other_starts(join([migrate(path, Options()) for path in scripts]).reports)
        notes = [note.text for item in reports for note in item.notes if note.code == "AMP483"]
        assert len(notes) == told
        for text in notes:
            assert text.startswith("second.py steps without the scaler") and "`amp-migrate first.py second.py`" in text


def test_a_script_that_had_a_migrated_function_start_apex_is_named(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "accelerator.py").write_text(HEAD + APEX_ACCELERATOR)
    (tmp_path / "first.py").write_text(HEAD + APEX_STEPS)
    calls = (
        'from accelerator import start\nif __name__ == "__main__":\n    start(nn.Linear(4, 2), [])(torch.rand(8, 4))\n'
    )
    (tmp_path / "test.py").write_text(HEAD + calls)
    (tmp_path / "other.py").write_text(HEAD + calls.replace("start(", "id(").replace("start", "backward"))
    reports = with_other_starts(join([migrate(tmp_path / "first.py", Options())]).reports)
    (text,) = [note.text for item in reports for note in item.notes if note.code == "AMP483"]
    assert text.startswith("test.py calls `start` too") and "amp.autocast" in text


@pytest.mark.parametrize(("beside", "told"), [("neighbour", 0), ("my-neighbour", 0), ("mine/tools", 1)])
def test_a_folder_that_only_lies_beside_a_project_is_not_named(tmp_path, beside, told):
    """Nothing marks the top of either: packages that lie side by side in one folder."""
    for name in ("mine", beside):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "train.py").write_text(HEAD + APEX_SCRIPT)
    (tmp_path / "mine" / "trainer.py").write_text(HEAD + APEX_TRAINER)
    reports = with_other_starts(join([migrate(tmp_path / "mine" / "train.py", Options())]).reports)
    assert [note.code for item in reports for note in item.notes].count("AMP483") == told
