"""Values that hold themselves, functions that call each other, classes that are each other's bases."""

from __future__ import annotations

import ast
import tempfile
import textwrap
from pathlib import Path
from random import Random

import pytest
from amp_rules import migrate
from amp_rules.flow.store import Store
from amp_rules.flow.values import Value
from amp_rules.plan.options import Options
from amp_rules.plan.report import Report
from amp_rules.roles.program import Program
from amp_rules.source.project import Project
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from migrating import migrated_text
from properties import examples

HEAD = """\
import functools
import torch
from torch import nn
from torch.utils.data import DataLoader


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Other(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


net = nn.Linear(4, 2)
"""
LOOP = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in DataLoader([(torch.zeros(4), 1)] * 8, batch_size=4):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
"""


def script(middle: str) -> str:
    return HEAD + textwrap.dedent(middle) + LOOP


# ---- what people write -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "middle",
    [
        "net = Outer(net)\nnet = Other(net)\n",
        "for _ in range(3):\n    net = Outer(net)\n    net = Other(net)\n",
        "net = Other(Outer(net))\nnet = Outer(net)\nnet = nn.Sequential(net, nn.ReLU())\n",
        "wrappers = [Outer, Other]\nfor wrap in wrappers:\n    net = wrap(net)\n",
    ],
    ids=["two", "loop", "sequential", "table"],
)
def test_a_model_in_wrappers_of_several_classes_is_prepared_once_it_is_whole(middle, tmp_path):
    rows = migrated_text(tmp_path, script(middle), Options())[1].splitlines()
    (prepared,) = [number for number, row in enumerate(rows) if row.strip() == "net = amp.prepare_model(net)"]
    last = max(number for number, row in enumerate(rows) if "net = " in row and number != prepared)
    made = next(number for number, row in enumerate(rows) if "amp.optim.SGD(" in row)
    assert last < prepared < made


@pytest.mark.parametrize(
    "middle",
    [
        pytest.param("f = torch.relu\nfor k in range(3):\n    f = functools.partial(f, k)\nf()\n", id="partial"),
        pytest.param(
            "def pick(self, name):\n    name = 'net' + name\n    return getattr(self, name)\n"
            "class Kept: netx = 1\npick(Kept(), 'x')\n",
            id="name",
        ),
        pytest.param(
            "table = {}\ntable['table'] = table\nfor part in table['table'].values():\n    part()\n", id="dict"
        ),
        pytest.param("class A: pass\nclass B(A): pass\nclass A(B): pass\nA().run()\n", id="bases"),
        pytest.param(
            "class A:\n    def add(self, name, given):\n        self.table[name] = given\n"
            "class B(A): pass\nclass A(B): pass\none = A()\ntwo = A()\nthree = A()\ntwo.add('x', Outer)\n",
            id="registry",
        ),
        pytest.param("text = 'net'\nwhile text:\n    text = eval('text')\n    eval('[text]')\n", id="eval"),
    ],
)
def test_what_is_made_from_itself_hinders_nothing(middle, tmp_path):
    report, text = migrated_text(tmp_path, script(middle), Options())
    assert "amp.scaler.step(optimizer)" in text, report.refusals


def test_functions_that_call_each_other_run_what_one_of_them_runs(tmp_path):
    (tmp_path / "train.py").write_text(
        script(
            """
            def even(loss, n):
                if n:
                    odd(loss, n - 1)

            def odd(loss, n):
                if n > 1:
                    even(loss, n - 1)
                loss.backward()

            def neither(n):
                return neither(n - 1) if n else other(n)

            def other(n):
                return neither(n)
            """
        )
    )
    program = Program(Project(tmp_path / "train.py"))
    runs = {
        info.name: all(program.runs_backward(part) for part in [*info.node.body][-1:])
        for info in program.flow.functions.values()
        if info.cls is None
    }
    assert runs == {"even": True, "odd": True, "neither": False, "other": False}


def test_a_chain_of_calls_is_followed_however_long(tmp_path):
    count = 300
    links = "".join(f"def f{n}(x):\n    return f{n + 1}(x)\n\n\n" for n in range(count))
    text = script(links + f"def f{count}(x):\n    return net(x)\n").replace(
        "cross_entropy(net(x), y)", "cross_entropy(f0(x), y)"
    )
    report = report_of(text, tmp_path)
    assert report.precision == "migrated"


# ---- programs at random ----------------------------------------------------------------------------------------

NAMES = ("net", "a", "b", "c")


def cyclic(random: Random) -> str:
    """Statements that make names, attributes, containers, functions and classes refer to each other."""
    rows = ["a = Outer(net)", "b = [a]", "c = {}"]
    for number in range(random.randint(4, 10)):
        one, other = random.choice(NAMES), random.choice(NAMES)
        rows += random.choice(
            [
                [f"{one} = Outer({other})"],
                [f"{one} = Other({other})"],
                ["for _ in range(2):", f"    {one} = random_wrap({other})"],
                [f"{one}.inner = {other}"],
                [f"{one}.{other} = {one}"],
                [f"{one} = [{other}, {one}]"],
                [f"{one} = nn.Sequential({other}, {one})"],
                [f"{one} = dict({other}={other}, x={one})"],
                [f"{one} = ({other}, {one})[0]"],
                [f"{one} = {other}.inner"],
                [f"{one} = functools.partial({other}, {one})"],
                [f"setattr({one}, '{other}', {one})"],
                [f"{one} = getattr({other}, '{one}' + str({one}))"],
                [f"def {one}(x, f={other}):", f"    return {other}(x)"],
                [f"def f{number}(x):", f"    x = {one}(x)", "    return x", f"{other} = f{number}(f{number})"],
                [f"def g{number}():", f"    yield {one}", f"    yield from g{number}()", f"{other} = g{number}()"],
                [f"class {one}({other}):", "    pass"],
                [f"class C{number}(Outer):", f"    inner = {one}", f"{other} = C{number}({one})", f"Outer = C{number}"],
                [f"{one} = lambda x: {other}(x)"],
                [f"{one} = next(iter({other}))"],
                [f"{one} = {other}({one})"],
            ]
        )
    rows += ["def random_wrap(x):", "    return Outer(random_wrap(x)) if x else Other(x)"]
    return script("\n".join(rows) + "\n")


def report_of(text: str, folder: Path) -> Report:
    path = folder / "train.py"
    path.write_text(text)
    return migrate(path, Options(ddp=True))


@settings(
    max_examples=examples(25),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.integers(min_value=0, max_value=10**6))
def test_programs_full_of_cycles_end_with_a_report(seed):
    text = cyclic(Random(seed))
    ast.parse(text)
    with tempfile.TemporaryDirectory() as folder:
        report = report_of(text, Path(folder))
    assert report.precision in ("migrated", "declined"), text


# ---- parts alone -----------------------------------------------------------------------------------------------


@pytest.fixture
def store():
    return Store()


def body(store: Store) -> ast.AST:
    node = ast.parse("pass")
    store.add_body(node, None)
    return node


def test_a_body_is_looked_at_again_when_what_it_read_grows(store):
    reader, writer = body(store), body(store)
    assert store.take()[0] is reader
    store.begin(reader.body[0], reader)
    assert store.read(("table", "x")) == set()
    assert store.take()[0] is writer
    store.begin(writer.body[0], writer)
    store.write(("table", "x"), {Value("constant", 1)})
    assert store.take()[0] is reader
    store.begin(reader.body[0], reader)
    assert store.read(("table", "x")) == {Value("constant", 1)}
    store.write(("table", "x"), {Value("constant", 1)})
    assert store.take() is None


def test_of_a_body_only_the_statements_are_due_that_read_what_has_grown(store):
    node = ast.parse("first\nsecond")
    store.add_body(node, None)
    store.take()
    for statement in node.body:
        store.begin(statement, node)
        store.read(("table", statement.value.id))
    store.write(("table", "first"), {Value("constant", 1)})
    assert store.take()[0] is node
    assert [store.is_due(statement) for statement in node.body] == [True, False]


def test_every_statement_is_due_when_something_changes_that_is_no_cell(store):
    node = ast.parse("first")
    store.add_body(node, None)
    store.take()
    store.begin(node.body[0], node)
    assert not store.is_due(node.body[0])
    store.all_due()
    assert store.is_due(node.body[0])


def test_nothing_is_written_once_everything_is_known(store):
    store.freeze()
    store.write(("table", "x"), {Value("constant", 1)})
    assert store.read(("table", "x")) == set()
    assert not store.cells


def test_a_cell_ends_growing(store):
    for number in range(1000):
        store.write(("table", "x"), {Value("constant", number)})
    assert len(store.read(("table", "x"))) < 100


def test_what_a_library_made_is_not_what_its_methods_made():
    made, result = Value("object", "lib.Net"), Value("object", "lib.Net", is_result=True)
    assert made != result
    assert made.at(ast.Pass()).site is not None
    assert len({made, result, made.at(None)}) == 2
