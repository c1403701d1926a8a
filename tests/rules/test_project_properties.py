"""What holds for every project: generated ones of many files, and the fixtures with something done to them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from amp_rules.flow.statements import Statements
from amp_rules.folder.shared_modules import join
from amp_rules.plan.options import Options
from amp_rules.source.text import SourceError
from damage import damaged
from growth import SHAPES
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from invariants import check, migrate_files
from layouts import project
from migrating import ENTRY, FIXTURES, cases, declined_scripts, files_of
from properties import examples

PROFILE = settings(
    deadline=None,
    derandomize=True,
    database=None,
    # A seed names a program; there is nothing to shrink, and :mod:`layouts` prints what it stands for.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
seeds = st.integers(0, 2**32 - 1)


def options_of(random: Random) -> Options:
    return Options(
        opt_level=random.choice(("O0", "O1", "O2", "O3")),
        ddp=random.random() < 0.75,
        sync_bn=random.random() < 0.8,
        fused=random.random() < 0.7,
        dtype=random.choice(("auto", "auto", "fp16", "bf16")),
        apex=random.choice(("auto", "auto", "idiom", "compat")),
        modernize=random.random() < 0.3,
    )


# ---- generated projects ----------------------------------------------------------------------------------------


@pytest.mark.heavy
@settings(PROFILE, max_examples=examples(35))
@given(seed=seeds)
def test_a_project_is_changed_where_it_must_be_and_nowhere_else(seed):
    random = Random(seed)
    drawn = project(random)
    with tempfile.TemporaryDirectory() as folder:
        run = check(Path(folder), drawn.files, drawn.entry, options_of(random))
    assert run is not None, "a generated project can be read"
    assert run.report.precision in ("migrated", "declined"), drawn


@pytest.mark.heavy
@settings(PROFILE, max_examples=examples(15))
@given(seed=seeds)
def test_a_shared_file_serves_two_scripts_or_the_conflict_is_explained(seed):
    random = Random(seed)
    drawn = project(random)
    options = options_of(random)
    other = drawn.entry.replace("train.py", "finetune.py")
    files = {**drawn.files, other: damaged(random, drawn.files[drawn.entry])}
    with tempfile.TemporaryDirectory() as folder:
        try:
            runs = [migrate_files(Path(folder) / "one", files, entry, options) for entry in (drawn.entry, other)]
        except SourceError:
            return
        together = join([run.report for run in runs])
        after = dict(files)
        for path, change in together.changes.items():
            name = path.relative_to(runs[0].folder).as_posix()
            source = next(run.sources[name] for run in runs if name in run.sources)
            ast.parse(change.after)
            after[name] = source.encode(change.after)
        for run, report in zip(runs, together.reports, strict=True):
            if (report.precision, report.distribution) != (run.report.precision, run.report.distribution):
                assert set(report.refusals) - set(run.report.refusals), "another outcome than alone needs a reason"
            again = migrate_files(Path(folder) / "two", after, run.entry, options)
            if report.precision == "migrated":
                assert (again.changed, again.report.precision) == ([], "already")


# ---- damaged programs ------------------------------------------------------------------------------------------


def programs_of_fixtures() -> list[dict[str, bytes]]:
    found = [case.before for case in cases()] + [case.after for case in cases()]
    found += [files_of(path) if path.is_dir() else {ENTRY: path.read_bytes()} for path in declined_scripts()]
    for folder in ("runnable", "apex", "projects"):
        found += [files_of(path.parent) for path in sorted((FIXTURES / folder).rglob(ENTRY))]
        found += [
            {ENTRY: path.read_bytes()} for path in sorted((FIXTURES / folder).glob("*/*.py")) if path.name != ENTRY
        ]
    return [files for files in found if ENTRY in files]


PROGRAMS = programs_of_fixtures()


@pytest.mark.heavy
@settings(PROFILE, max_examples=examples(80))
@given(seed=seeds)
def test_a_damaged_program_is_migrated_whole_or_left_alone(seed):
    random = Random(seed)
    files = dict(random.choice(PROGRAMS))
    for name in {ENTRY, *random.sample(sorted(files), 1)}:
        files[name] = damaged(random, files[name])
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder), files, ENTRY, options_of(random))


LOOP = b"""import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 4), torch.randn(8, 1))):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "data",
    [
        # What a random search has found once.
        pytest.param(LOOP.replace(b"optimizer.step()", b"optimizer.step(  # why\n    )"), id="comment in a call"),
        pytest.param(LOOP.replace(b"\n", b"\r"), id="old newlines"),
        pytest.param(LOOP.replace(b"\n", b"\r") + b"\r\r", id="old newlines at the end"),
        pytest.param(b"# -*- coding: latin-1 -*- \xe9\n" + LOOP, id="letters beside the encoding"),
        pytest.param(LOOP + b"deep = " + b" + ".join([b"1"] * 900) + b"\n", id="deep"),
        pytest.param(
            LOOP.replace(b"for x", b"# what follows\n\n# speaks of this\nmodel = nn.DataParallel(model)\nfor x"),
            id="comment above what is removed",
        ),
        pytest.param(
            LOOP.replace(b"model = nn", b"\n  \n\t\nclass A:\n    pass\n\n\nmodel = nn", 1), id="blanks above a class"
        ),
        pytest.param(
            LOOP.replace(b"    ", b"\t") + b"class A:\n\tdef a(self):\n\t\tpass\n\n\tb = 1\n\t\n    \n",
            id="blanks at the end",
        ),
        pytest.param(
            LOOP.replace(b"    loss.b", b"    a, b = (x for x in (1, 2))\n    x.add(2, y)\n    loss.b"),
            id="name in a generator",
        ),
    ],
)
def test_what_was_found_stays_mended(data, tmp_path):
    for number, more in enumerate(({}, {"ddp": True}, {"ddp": True, "modernize": True})):
        check(tmp_path / str(number), {ENTRY: data}, ENTRY, Options(**more))


def test_a_loader_is_prepared_after_it_is_made(tmp_path):
    """One statement holds all: the loader that another file makes, its loop, and a second use of the name."""
    head, _, loop = LOOP.decode().partition("for x, y in ")
    made = loop.partition(":\n")[0]
    rows = [
        *head.splitlines()[3:],
        "loader = get()",
        *f"for x, y in loader:\n{loop.partition(':' + chr(10))[2]}".splitlines(),
    ]
    rows += ["print(len(loader))"]
    text = "import torch\nfrom torch import nn\nfrom data import get\n\nif __name__ == '__main__':\n"
    text += "\n".join("    " + row if row else row for row in rows) + "\n"
    data = f"import torch\n\n\ndef get():\n    return {made}\n"
    run = check(tmp_path, {ENTRY: text.encode(), "data.py": data.encode()}, ENTRY, Options(ddp=True))
    assert run is not None and run.report.distribution == "migrated"
    after = run.after[ENTRY].decode()
    assert "    loader = amp.prepare_loader(get())\n" in after


# ---- every time, at every size ---------------------------------------------------------------------------------

HASHES = """
import sys, tempfile
from pathlib import Path
from random import Random
sys.path.insert(0, {here!r})
from amp_rules.plan.options import Options
from invariants import migrate_files
from layouts import project
with tempfile.TemporaryDirectory() as folder:
    for seed in range(12):
        drawn = project(Random(seed))
        run = migrate_files(Path(folder) / str(seed), drawn.files, drawn.entry, Options(ddp=True))
        print(seed, sorted(run.after.items()))
        for item in (*run.report.edits, *run.report.refusals):
            print(seed, item.path.name, item.span, item.code, item.message.replace(folder, ""))
"""


@pytest.mark.heavy
def test_projects_come_out_the_same_whatever_order_sets_have():
    outputs = []
    for seed in (0, 1, 7):
        done = subprocess.run(
            [sys.executable, "-c", HASHES.format(here=str(Path(__file__).parent))],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.splitlines())
    assert outputs[0] and outputs[1] == outputs[0] and outputs[2] == outputs[0]


@pytest.mark.heavy
@pytest.mark.parametrize("name", SHAPES)
def test_the_work_grows_with_the_lines(name, tmp_path, monkeypatch):
    bodies = 0
    look_at = Statements.body

    def counted(statements, body, scope):
        nonlocal bodies
        bodies += 1
        look_at(statements, body, scope)

    monkeypatch.setattr(Statements, "body", counted)
    per_line = []
    for size in (4, 8, 16, 32):
        files = {path: text.encode() for path, text in SHAPES[name](size).items()}
        bodies = 0
        run = migrate_files(tmp_path / str(size), files, ENTRY, Options(ddp=True))
        assert run.report.precision == "migrated"
        per_line.append(bodies / sum(data.count(b"\n") for data in files.values()))
    assert max(per_line) < 2.5, per_line
    # From one size to the next, at most a little more for a line: twice as much would be quadratic.
    assert all(more < 1.25 * less for less, more in pairwise(per_line)), per_line
