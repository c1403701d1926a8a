"""What holds for every script: generated ones are migrated whole, damaged ones never crash the tool."""

from __future__ import annotations

import ast
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options
from amp_rules.source.text import SourceError
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from migrating import ENTRY, FIXTURES, cases, declined_scripts, migrated, migrated_text, write
from properties import examples

pytestmark = pytest.mark.heavy

PROFILE = settings(
    deadline=None,
    derandomize=True,
    database=None,
    # Shrinking is limited by patience, and what explaining adds to it is not worth the wait.
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
few = settings(PROFILE, max_examples=examples(30))
many = settings(PROFILE, max_examples=examples(120))


@dataclass
class Script:
    """A training script, put together from pieces."""

    style: str
    imports: str
    models: int
    clip: str
    accumulate: int
    loss: str
    one_line: bool
    zero_grad: str
    data_parallel: bool
    scheduler: bool
    bar: bool
    save: bool
    evaluate: bool
    indent: str
    newline: str
    last_newline: bool
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        rows: list[str] = []
        self._head(rows)
        build, train, end = self._build(), self._train(), self._end()
        if self.style == "flat":
            rows += [*build, "", *train, *end]
        elif self.style == "guard":
            rows += ["", "if __name__ == '__main__':", *self._inside([*build, *train, *end])]
        elif self.style == "function":
            rows += ["", "def main(epochs=2):", *self._inside([*build, *train, *end]), "", "", "main()"]
        else:
            rows += self._class(build, train, end)
        text = "\n".join(self._with_notes(rows)) + ("\n" if self.last_newline else "")
        return text.replace("    ", self.indent).replace("\n", self.newline)

    def _head(self, rows: list[str]) -> None:
        rows += ["#!/usr/bin/env python", '"""Обучение, 训练."""', "import sys", "import torch"]
        rows += {
            "plain": ["import torch.nn as nn", "import torch.nn.functional as F"],
            "from": ["from torch import nn", "from torch.nn import functional as F"],
        }[self.imports]
        rows.append("from torch.utils.data import DataLoader, TensorDataset")
        if self.clip == "function":
            rows.append("from torch.nn.utils import clip_grad_norm_")
        if self.bar:
            rows.append("from tqdm import tqdm")
        rows += ["", "", "class Net(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        rows += ["        self.fc = nn.Linear(4, 4)", "", "    def forward(self, x):", "        return self.fc(x)", ""]

    @property
    def _names(self) -> list[str]:
        return [f"net{i}" for i in range(self.models)]

    def _build(self) -> list[str]:
        rows = ["dataset = TensorDataset(torch.randn(64, 4), torch.randn(64, 4))"]
        rows.append("loader = DataLoader(dataset, batch_size=8, shuffle=True)")
        rows += [f"{name} = Net()" for name in self._names]
        if self.data_parallel:
            rows += ["if torch.cuda.device_count() > 1:", f"    {self._names[0]} = nn.DataParallel({self._names[0]})"]
        rows += [f"opt{i} = torch.optim.Adam({name}.parameters(), lr=1e-3)" for i, name in enumerate(self._names)]
        if self.scheduler:
            rows.append("scheduler = torch.optim.lr_scheduler.StepLR(opt0, 1)")
        return rows

    def _round(self) -> list[str]:
        call = "x"
        for name in self._names:
            call = f"{name}({call})"
        clear = [f"opt{i}.zero_grad()" for i in range(self.models)]
        rows = clear if self.zero_grad == "first" and self.accumulate == 1 else []
        scale = f" / {self.accumulate}" if self.accumulate > 1 else ""
        if self.loss == "inline":
            rows = [*rows, f"(F.mse_loss({call}, y){scale}).backward()"]
        else:
            rows = [*rows, f"out = {call}", f"loss = F.mse_loss(out, y){scale}"]
            if self.zero_grad == "middle" and self.accumulate == 1:
                rows += clear
            rows.append("loss.mean().backward()" if self.loss == "mean" else "loss.backward()")
        after = []
        if self.clip == "attribute":
            comment = "" if self.one_line else "  # обрезка"
            after += [f"nn.utils.clip_grad_value_({name}.parameters(), 1.0){comment}" for name in self._names]
        elif self.clip == "function":
            after += [f"clip_grad_norm_({name}.parameters(), 1.0)" for name in self._names]
        after += [f"opt{i}.step()" for i in range(self.models)]
        if self.accumulate > 1:
            after += clear
            if self.one_line:
                return [*rows, f"if step % {self.accumulate} == 0: {'; '.join(after)}"]
            return [*rows, f"if step % {self.accumulate} == 0:", *self._inside(after)]
        return [*rows, "; ".join(after)] if self.one_line else [*rows, *after]

    def _train(self) -> list[str]:
        loader = "tqdm(loader)" if self.bar else "loader"
        rows = ["for epoch in range(2):", f"    for step, (x, y) in enumerate({loader}, 1):"]
        rows += self._inside(self._inside(self._round()))
        if self.scheduler:
            rows.append("    scheduler.step()")
        if self.save:
            rows.append(f"    torch.save({self._names[0]}.state_dict(), 'last.pt')")
        return rows

    def _end(self) -> list[str]:
        if not self.evaluate:
            return []
        call = "torch.zeros(1, 4)"
        for name in self._names:
            call = f"{name}({call})"
        return ["with torch.no_grad():", f"    print({call}.sum())"]

    def _class(self, build: list[str], train: list[str], end: list[str]) -> list[str]:
        owned = ["loader", "dataset", "scheduler", *self._names, *(f"opt{i}" for i in range(self.models))]

        def own(row: str) -> str:
            tree = ast.parse(row.strip() + ("\n    pass" if row.strip().endswith(":") else ""))
            spots = sorted(
                (node.col_offset for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in owned),
                reverse=True,
            )
            raw = row.strip().encode()
            for spot in spots:
                raw = raw[:spot] + b"self." + raw[spot:]
            return row[: len(row) - len(row.lstrip())] + raw.decode()

        rows = ["", "class Trainer:", "    def __init__(self):", *self._inside(self._inside(map(own, build)))]
        rows += ["", "    def fit(self):", *self._inside(self._inside(map(own, [*train, *end])))]
        return [*rows, "", "", "if __name__ == '__main__':", "    Trainer().fit()"]

    @staticmethod
    def _inside(rows) -> list[str]:
        return [f"    {row}" if row else row for row in rows]

    def _with_notes(self, rows: list[str]) -> list[str]:
        """Put each note above a line of its own, as deep as that line."""
        found = []
        start = rows.index("class Net(nn.Module):")
        for number, row in enumerate(rows):
            # A comment above what is taken out goes with it.
            is_place = number > start and number % 3 == 0 and row.strip()
            if self.notes and is_place and not any(word in row for word in ("def ", "DataParallel", "device_count")):
                note = self.notes[number % len(self.notes)].format(number)
                found.append(row[: len(row) - len(row.lstrip())] + note)
            found.append(row)
        return found


NOTES = ["# note {}", "# заметка {}: 注意", "note = {}", "print('note', {}, file=sys.stderr)", "note = '''{}\nnote'''"]

scripts = st.builds(
    Script,
    style=st.sampled_from(["flat", "guard", "function", "class"]),
    imports=st.sampled_from(["plain", "from"]),
    models=st.integers(1, 3),
    clip=st.sampled_from(["", "attribute", "function"]),
    accumulate=st.sampled_from([1, 1, 4]),
    loss=st.sampled_from(["plain", "mean", "inline"]),
    one_line=st.booleans(),
    zero_grad=st.sampled_from(["first", "middle"]),
    data_parallel=st.booleans(),
    scheduler=st.booleans(),
    bar=st.booleans(),
    save=st.booleans(),
    evaluate=st.booleans(),
    indent=st.sampled_from(["    ", "  ", "\t"]),
    newline=st.sampled_from(["\n", "\r\n"]),
    last_newline=st.booleans(),
    notes=st.lists(st.sampled_from(NOTES), max_size=3, unique=True),
)
options = st.builds(
    Options,
    opt_level=st.sampled_from(["O0", "O1", "O2", "O3"]),
    ddp=st.booleans(),
    fused=st.booleans(),
    sync_bn=st.booleans(),
    dtype=st.sampled_from(["auto", "fp16", "bf16"]),
    loss_scale=st.sampled_from(["dynamic", 128.0]),
)


def run(script: Script, chosen: Options):
    with tempfile.TemporaryDirectory() as folder:
        return migrated_text(Path(folder) / "project", script.text(), chosen)


@few
@given(script=scripts, chosen=options)
def test_a_plain_script_is_migrated_whole(script, chosen):
    report, after = run(script, chosen)
    assert report.precision == "migrated"
    assert report.distribution == ("migrated" if chosen.ddp else "not requested")
    assert report.refusals == ()
    assert unscaled_backwards(after) == [] and plain_steps(after) == []
    calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(after)) if isinstance(node, ast.Call)]
    assert calls.count("amp.scaler.step") == script.models
    assert calls.count("amp.scaler.update") == 1
    assert calls.count("amp.init") == 1
    assert calls.count("amp.prepare_model") == script.models
    assert calls.count("amp.prepare_loader") == (1 if chosen.ddp else 0)
    assert calls.count("amp.scaler.unscale_") == (script.models if script.clip else 0)
    assert after.count("import amp_runtime") == 1


@few
@given(script=scripts, chosen=options)
def test_every_loss_is_computed_under_autocast_and_no_backward_pass_is(script, chosen):
    _, after = run(script, chosen)
    tree = ast.parse(after)
    inside = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.With) and is_autocast(node)
        for child in ast.walk(node)
    }
    losses = [node for node in calls_of(tree) if ast.unparse(node.func) == "F.mse_loss"]
    assert losses and all(id(node) in inside for node in losses)
    for node in calls_of(tree):
        if ast.unparse(node.func).endswith((".backward", "scaler.step", "scaler.update", "scaler.unscale_")):
            assert id(node) not in inside


@few
@given(script=scripts, chosen=options)
def test_a_second_run_changes_nothing(script, chosen):
    _, after = run(script, chosen)
    with tempfile.TemporaryDirectory() as folder:
        again, same = migrated_text(Path(folder) / "project", after, chosen)
    assert (again.precision, again.changes, again.edits, same) == ("already", (), (), after)


@few
@given(script=scripts, chosen=options)
def test_other_lines_stay_in_their_order(script, chosen):
    before = script.text()
    _, after = run(script, chosen)
    # Statements on one line may be taken apart, so they are compared by themselves.
    remaining = iter(pieces(after, script.newline))
    touched = ("Net()", "DataLoader(", "DataParallel", "opt", "net", "loss", "out =", "tqdm(", "device_count", "step %")
    for piece in pieces(before, script.newline):
        if not any(word in piece for word in touched):
            assert piece in remaining, f"{piece!r} is gone, or is elsewhere"


@few
@given(script=scripts, chosen=options)
def test_newlines_and_indentation_are_those_of_the_file(script, chosen):
    before = script.text()
    _, after = run(script, chosen)
    if script.newline == "\r\n":
        assert after.count("\n") == after.count("\r\n")
    else:
        assert "\r" not in after
    assert after.endswith(script.newline) is before.endswith(script.newline)
    if script.indent == "\t":
        assert not any(line.startswith(" ") or line.startswith("\t ") for line in after.splitlines())
    else:
        assert "\t" not in after
    assert [line for line in after.split(script.newline) if line != line.rstrip()] == []


@few
@given(script=scripts)
def test_the_level_changes_nothing_but_the_call_of_init(script):
    results = set()
    for level in ("O0", "O3"):
        _, after = run(script, Options(opt_level=level, ddp=True))
        results.add(after.replace(f'opt_level="{level}"', "opt_level=..."))
    assert len(results) == 1


@given(
    noise=st.lists(
        st.sampled_from(
            ["import os", "x = 1", "def f(a, b=2):\n    return a", "class C:\n    y = 3", "# text", "", "f(1); g(2)"]
        )
    ),
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
)
@few
def test_a_script_without_a_training_step_keeps_its_bytes(noise, newline):
    with tempfile.TemporaryDirectory() as folder:
        entry = write(Path(folder) / "p", {ENTRY: newline.join(noise).encode()})
        report = migrate(entry, Options(ddp=True))
        assert (report.precision, report.changes, report.edits) == ("absent", (), ())
        assert entry.read_bytes() == newline.join(noise).encode()


# ---- damaged scripts -------------------------------------------------------------------------------------------


def texts() -> list[bytes]:
    found = [case.before[ENTRY] for case in cases()]
    found += [path.read_bytes() for path in declined_scripts() if path.is_file()]
    found += [path.read_bytes() for path in sorted((FIXTURES / "runnable").glob("*/*.py"))]
    return found


TEXTS = texts()
APEX_IMPORT = re.compile(r"^\s*(from apex|import apex|import amp_C)\b", re.MULTILINE)


@st.composite
def damaged(draw):
    rows = draw(st.sampled_from(TEXTS)).split(b"\n")
    for _ in range(draw(st.integers(1, 4))):
        if len(rows) < 2:
            break
        # Where whole statements are, damage leaves Python behind more often.
        at = draw(st.integers(0, len(rows) - 1))
        kind = draw(st.sampled_from(["delete", "double", "swap", "cut", "move"]))
        if kind == "delete":
            del rows[at]
        elif kind == "double":
            rows.insert(at, rows[at])
        elif kind == "swap":
            other = draw(st.integers(0, len(rows) - 1))
            rows[at], rows[other] = rows[other], rows[at]
        elif kind == "cut":
            del rows[at:]
        else:
            rows.insert(draw(st.integers(0, len(rows) - 1)), rows.pop(at))
    return b"\n".join(rows)


NATIVE = b"""import torch
from torch import nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler()
for x, y in DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,))), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    with autocast("cuda"):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@many
@given(data=damaged(), chosen=options)
@example(data=b"", chosen=Options(ddp=True))
@example(data=b"\n# nothing\n", chosen=Options(ddp=True))
@example(data=b"loss.backward()", chosen=Options(ddp=True))
@example(data=b"optimizer.step()", chosen=Options(ddp=True))
@example(data=b"\xff", chosen=Options(ddp=True))
@example(data=NATIVE, chosen=Options(ddp=True))
@example(data=NATIVE.replace(b"import torch\n", b"import torch\nimport torch\n", 1), chosen=Options(ddp=True))
def test_a_damaged_script_is_migrated_whole_or_left_alone(data, chosen):
    with tempfile.TemporaryDirectory() as folder:
        try:
            report, result = migrated(Path(folder) / "p", {ENTRY: data}, chosen)
        except SourceError as error:
            assert error.message
            return
        after = result[ENTRY].decode()
        codes = {edit.code for edit in report.edits}
        older = {code for code in codes if code.startswith("AMP4")}
        if "AMP410" in codes:
            assert not APEX_IMPORT.search(after)
        elif report.precision == "migrated":
            assert unscaled_backwards(after) == []
        elif not older and report.distribution not in ("migrated", "extended"):
            assert result[ENTRY] == data
            assert report.edits == ()
        if older - {"AMP409", "AMP411"}:
            assert not APEX_IMPORT.search(after)
        # A script with precision of its own may get several processes, and nothing is refused then.
        left_alone = report.precision == "declined" or (report.precision == "already" and not report.changes)
        if left_alone and b"amp_runtime" not in data:
            assert report.refusals
        if report.changes:
            # The compiler refuses more than the parser: ``return`` outside of a function, late future imports.
            assert compiles(after) or not compiles(data)
            again = migrate(write(Path(folder) / "q", result), chosen)
            assert again.changes == ()
            assert again.precision == ("already" if report.precision == "migrated" else report.precision)


@pytest.mark.parametrize("name", ["AMP104/two_optimizers", "AMP107/gradient_penalty", "AMP101/main_guard_with_body"])
def test_leaving_out_any_one_line_crashes_nothing(name, tmp_path):
    rows = (FIXTURES / name / "before.py").read_bytes().split(b"\n")
    for at in range(len(rows)):
        entry = write(tmp_path, {ENTRY: b"\n".join(rows[:at] + rows[at + 1 :])})
        try:
            migrate(entry, Options(ddp=True))
        except SourceError as error:
            assert error.line is not None


# ---- looking at results ----------------------------------------------------------------------------------------


def compiles(source: str | bytes) -> bool:
    try:
        compile(source, ENTRY, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def calls_of(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def is_autocast(node: ast.With) -> bool:
    return any(ast.unparse(item.context_expr) in ("amp.autocast()", "amp_runtime.autocast()") for item in node.items)


def own_names(tree: ast.AST) -> set[str]:
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def overridden(tree: ast.AST) -> list[ast.FunctionDef]:
    """The methods of classes from which another of the script derives that has them too."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    replaced = {(ast.unparse(base), name) for node in classes for base in node.bases for name in own_names(node)}
    return [
        method
        for node in classes
        for method in node.body
        if isinstance(method, ast.FunctionDef) and (node.name, method.name) in replaced
    ]


def unscaled_backwards(text: str) -> list[str]:
    """Backward passes that do not start from a scaled loss; methods of that name are the script's own.

    Not those in a method that a class of the script overrides: nothing may run it.
    """
    tree = ast.parse(text)
    replaced = {call for method in overridden(tree) for call in calls_of(method)}
    found = []
    for node in calls_of(tree):
        if node in replaced:
            continue
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "backward" or "backward" in own_names(tree):
            continue
        is_function = ast.unparse(node.func).endswith(("autograd.backward", "Tensor.backward"))
        start = node.args[0] if is_function and node.args else node.func.value
        if not (isinstance(start, ast.Call) and ast.unparse(start.func).endswith("scaler.scale")):
            found.append(ast.unparse(node))
    return found


def plain_steps(text: str) -> list[str]:
    return [
        ast.unparse(node)
        for node in calls_of(ast.parse(text))
        if isinstance(node.func, ast.Attribute)
        and node.func.attr == "step"
        and ast.unparse(node.func.value).split(".")[-1].startswith("opt")
    ]


def pieces(text: str, newline: str) -> list[str]:
    return [piece.strip() for row in text.split(newline) for piece in row.split("; ") if piece.strip()]
