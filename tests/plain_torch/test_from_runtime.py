"""Scripts that use the runtime since an earlier migration, and become plain PyTorch later."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
PLAIN = sorted(path.parent for path in FIXTURES.glob("AMP[123]*/*/before.py"))
APEX = sorted(path.parent for path in FIXTURES.glob("AMP4*/*/before.py"))
PROJECTS = sorted(path for kind in ("runnable", "projects", "apex") for path in (FIXTURES / kind).iterdir())
FIRST = [next(path for path in PLAIN if path.parent == code) for code in sorted({path.parent for path in PLAIN})]
LATER_ALONE = {"pixels_projected_by_a_loss"}
"""Declined at once: the region would go on to the loss. That of the runtime ends before it, where half is known."""
SHORTER_REGIONS_LATER = {"loss_that_multiplies_at_a_kept_o2"}
"""Plain torch has no O2 to keep: at once the loss that multiplies is in the region. The script on the runtime keeps the
level, and that loss outside."""

_SCRIPTS = ("before.py", "train.py", "main.py")


def scripts(folder: Path) -> list[Path]:
    """The scripts of a fixture that are run."""
    found = [folder / name for name in _SCRIPTS if (folder / name).exists()]
    return found[:1] or sorted(path for path in folder.rglob("*.py") if "__main__" in path.read_text())[:2]


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def is_same(folder: Path, tmp_path: Path, options: Options) -> bool:
    """Whether a fixture's scripts become the same later as at once; False where nothing became plain PyTorch at all."""
    compared = False
    for number, script in enumerate(scripts(folder)):
        copy = tmp_path / str(number) / folder.name
        shutil.copytree(folder, copy)
        path = copy / script.relative_to(folder)
        on_runtime = migrate(path, Options(ddp=options.ddp, apex="idiom"))
        if "amp_runtime" not in "".join(change.after for change in on_runtime.changes):
            continue
        at_once = migrate(path, options)
        for change in on_runtime.changes:
            change.path.write_bytes(change.after.encode())
        later = migrate(path, options)
        expected = {change.path: change.after for change in at_once.changes}
        kept = any("amp_runtime.apex" in change.after for change in on_runtime.changes)
        without_words = (at_once.precision, on_runtime.precision) == ("declined", "migrated")
        alone = (at_once.distribution, on_runtime.distribution) == ("declined", "migrated")
        if without_words and folder.name in LATER_ALONE:
            assert later.precision == "migrated" and not at_once.changes, script
            continue
        if folder.name in SHORTER_REGIONS_LATER:
            assert at_once.precision == later.precision == "migrated" and later.edits, script
            continue
        if kept or without_words or alone:
            # The first run did what torch has no words for, or kept a part of Apex's interface: only the script as it
            # was says enough, and one process cannot be had from it any more.
            assert not later.changes and {later.precision, later.distribution} & {"declined"}, script
            reasons = {refusal.code for refusal in at_once.refusals} | {"AMP392"}
            assert reasons & {refusal.code for refusal in later.refusals}, script
            continue
        found = {change.path: change.path.read_bytes().decode() for change in (*at_once.changes, *on_runtime.changes)}
        found |= {change.path: change.after for change in later.changes}
        if expected:
            assert {path: found[path] for path in expected} == expected, script
            # Processes that the script joins itself were completed by the first run.
            again = "already" if at_once.distribution == "extended" else at_once.distribution
            assert (later.precision, later.distribution) == (at_once.precision, again), script
            assert later.edits and not any("amp_runtime" in text for text in found.values()), script
            compared = True
        else:
            assert not later.changes, script
    return compared


@pytest.mark.heavy
@pytest.mark.parametrize("folder", FIRST, ids=name)
def test_later_is_as_at_once(folder, tmp_path):
    is_same(folder, tmp_path, Options(target="torch", ddp=folder.parent.name.startswith("AMP2")))


@pytest.mark.slow
@pytest.mark.parametrize("ddp", [False, True], ids=["alone", "ddp"])
@pytest.mark.parametrize("folder", [*PLAIN, *APEX, *PROJECTS], ids=name)
def test_later_is_as_at_once_for_every_fixture(folder, tmp_path, ddp):
    is_same(folder, tmp_path, Options(target="torch", ddp=ddp))


@pytest.mark.heavy
def test_most_of_the_fixtures_do_become_plain_torch(tmp_path):
    found = [is_same(folder, tmp_path / str(i), Options(target="torch")) for i, folder in enumerate(FIRST[::5])]
    assert sum(found) > len(found) / 2


# ---- what somebody edited since ----------------------------------------------------------------------------------

SCRIPT = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import amp_runtime as amp

amp.init(opt_level="O1")

model = amp.prepare_model(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,))), batch_size=16)
for x, y in loader:
    with amp.autocast():
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    amp.scaler.scale(loss).backward()
    amp.scaler.step(optimizer)
    amp.scaler.update()
"""


def later(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text)
    return migrate(path, Options(target="torch"))


def test_what_a_migration_wrote_is_translated(tmp_path):
    report = later(tmp_path, SCRIPT)
    assert report.precision == "migrated" and "amp_runtime" not in report.changes[0].after
    codes = {edit.code for edit in report.edits}
    assert {"AMP101", "AMP102", "AMP103", "AMP104", "AMP108"} <= codes
    # With the default the script stays as it is.
    again = migrate(tmp_path / "train.py", Options())
    assert again.precision == "already" and not again.changes


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("with amp.autocast():", "with amp.autocast(cache_enabled=False):", 12),
        ("amp.scaler.step(optimizer)", "amp.scaler.step(optimizer, closure)", 16),
        ("amp.scaler.scale(loss)", "amp.scaler.scale(*losses)", 15),
        ('amp.init(opt_level="O1")', 'amp.init(opt_level="O1", verbose=True)', 6),
        ("amp.scaler.update()", "update = amp.scaler.update\n    update()", 17),
        ("amp.scaler.update()", "amp.scaler.update()\n    print(amp.state)", 18),
        ("amp.scaler.update()", "amp.scaler.update()\n    amp.init()", 18),
        ("import amp_runtime as amp", "import os, amp_runtime as amp", 4),
        ("amp.scaler.update()", "amp.scaler.update()\n    import amp_runtime", 18),
    ],
)
def test_what_was_edited_by_hand_declines_with_its_line(tmp_path, old, new, line):
    report = later(tmp_path, SCRIPT.replace(old, new))
    assert (report.precision, report.changes) == ("declined", ())
    assert line in [item.span.start.line for item in report.refusals if item.span], report.refusals
    assert {item.code for item in report.refusals} <= {"AMP392", "AMP391"} and all(r.recipe for r in report.refusals)


def test_the_interface_of_apex_is_not_had_from_torch(tmp_path):
    report = later(tmp_path, SCRIPT.replace("import amp_runtime as amp", "from amp_runtime.apex import amp"))
    assert report.precision == "declined" and "--undo" in report.refusals[0].recipe


def test_apex_is_never_taken_from_the_runtime(tmp_path):
    folder = FIXTURES / "AMP408/layers_and_kernels"
    report = migrate(folder / "before.py", Options(target="torch"))
    assert report.precision == "declined" and "`amp_C`" in report.refusals[0].message
