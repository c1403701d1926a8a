"""What the program model knows: names, roles, positions, files."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest
from amp_rules.plan.options import Options
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module, parse
from amp_rules.source.project import Project
from amp_rules.source.text import SourceError, source_from_bytes
from migrating import migrated, migrated_text


@pytest.fixture
def program(tmp_path):
    """Build the model of some files, given by name without ``.py``; the entry is ``train``."""

    def build(train, **others):
        files = {"train": train, **others}
        for name, text in files.items():
            path = tmp_path / (name.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            data = text if isinstance(text, bytes) else textwrap.dedent(text).encode()
            path.write_bytes(data)
        return Program(Project(tmp_path / "train.py"))

    return build


def package(tmp_path, *names):
    for name in names:
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "__init__.py").touch()


def expressions(program, text):
    """Each expression of the program with this source, and the scope that it stands in."""
    for node, _, scope in program.nodes():
        if isinstance(node, ast.expr) and scope.module.text(node) == text:
            yield node, scope


def names(program, text):
    found = list(expressions(program, text))
    assert found, f"{text} is not in the program"
    return set().union(*(program.names(node, scope) for node, scope in found))


def trained(program):
    """How the program calls the models that it trains."""
    return {text(value) for value in program.trained}


def text(value):
    if value.kind == "instance":
        return value.ref.facts.name
    return str(value.ref).rpartition(".")[2]


# ---- names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "name", "wanted"),
    [
        ("import torch.nn as N", "N.Linear", "torch.nn.Linear"),
        ("import torch", "torch.nn.functional.relu", "torch.nn.functional.relu"),
        ("import torch as t, torch.nn.functional as F", "F.relu", "torch.nn.functional.relu"),
        ("from torch import nn", "nn.Linear", "torch.nn.Linear"),
        ("from torch.nn import Linear as L", "L", "torch.nn.Linear"),
        ("from torch.nn import *", "Linear", "torch.nn.Linear"),
        ("import torch\nL = torch.nn.Linear", "L", "torch.nn.Linear"),
        ("try:\n    from torch import nn\nexcept ImportError:\n    nn = None", "nn.Linear", "torch.nn.Linear"),
        ("if True:\n    import torch.optim as o", "o.Adam", "torch.optim.Adam"),
        ("", "print", "builtins.print"),
    ],
)
def test_names_are_followed_through_imports(program, code, name, wanted):
    assert names(program(f"{code}\n{name}(1)\n"), name) == {wanted}


def test_a_name_of_ones_own_is_not_the_librarys(program):
    model = program(
        """
        from torch.nn import *

        def Linear(a, b):
            return a

        Linear(1, 2)
        """
    )
    assert names(model, "Linear") == set()


def test_an_argument_shadows_an_import(program):
    model = program(
        """
        from torch import nn

        def f(nn):
            nn.Linear(1, 2)

        f(3)
        """
    )
    assert names(model, "nn.Linear") == set()


def test_names_come_through_star_imports_of_ones_own_modules(program):
    model = program(
        """
        from common import *
        x = N.Linear(1, 2)
        helper()
        """,
        common="""
        import torch.nn as N
        from deeper import *
        """,
        deeper="""
        def helper():
            pass
        """,
    )
    assert names(model, "N.Linear") == {"torch.nn.Linear"}
    (call,) = [node for node, _, _ in model.calls() if ast.unparse(node) == "helper()"]
    assert [info.name for info in model.flow.callees(call)] == ["helper"]


def test_names_come_through_relative_imports(program, tmp_path):
    package(tmp_path, "lib", "lib/models")
    model = program(
        "from lib.models.net import build\nmodel = build()\n",
        lib__models__net="""
        from . import parts
        from ..common import nn
        from .parts import Head as H

        def build():
            return nn.Sequential(parts.Head(), H())
        """,
        lib__models__parts="""
        from torch import nn

        class Head(nn.Module):
            pass
        """,
        lib__common="import torch.nn as nn\n",
    )
    assert names(model, "nn.Sequential") == {"torch.nn.Sequential"}
    for name in ("parts.Head", "H"):
        (node, scope), *_ = expressions(model, name)
        assert {value.ref.facts.name for value in model.flow.values(node, scope)} == {"Head"}


def test_a_file_of_a_package_imports_its_subpackage_before_the_package_has(program, tmp_path):
    package(tmp_path, "networks/encoders")
    (tmp_path / "networks/__init__.py").write_text("from .generators import *\n")
    (tmp_path / "networks/encoders/__init__.py").write_text("from .wide import wide\n")
    model = program(
        "import networks\nnet = networks.build('wide')\n",
        networks__generators="""
        from networks import encoders

        def build(name):
            return encoders.__dict__[name]()
        """,
        networks__encoders__wide="""
        from torch import nn

        class Wide(nn.Module):
            pass

        def wide():
            return Wide()
        """,
    )
    (node, scope), *_ = expressions(model, "networks.build('wide')")
    assert {value.ref.facts.name for value in model.flow.values(node, scope)} == {"Wide"}


def test_an_evaluated_name_makes_no_class_that_takes_no_such_argument(program):
    model = program(
        """
        import sys

        class Log:
            def __init__(self, folder):
                self.folder = folder

        class Narrow:
            def __init__(self, width):
                self.width = width

        class Any:
            def __init__(self, **settings):
                self.settings = settings

        made = eval(sys.argv[1])(width=4)
        """
    )
    (node, scope), *_ = expressions(model, "eval(sys.argv[1])(width=4)")
    assert {value.ref.facts.name for value in model.flow.values(node, scope)} == {"Any", "Narrow"}


def test_a_folder_without_init_is_a_package(program):
    model = program(
        "from models.net import Net\nimport models.net\nx = models.net.Net()\n",
        models__net="from torch.nn import Module\nclass Net(Module):\n    pass\n",
    )
    (node, scope), *_ = expressions(model, "models.net.Net")
    assert {value.ref.facts.name for value in model.flow.values(node, scope)} == {"Net"}


def test_a_model_that_is_moved_before_it_is_known_is_not_its_trainer(program):
    model = program(
        """
        import torch

        class Trainer:
            def move(self):
                self.model = self.model.to("cpu")

        class Builder(Trainer):
            def build(self):
                self.model = torch.nn.Linear(4, 2)

        trainer = Builder()
        trainer.move()
        trainer.build()
        """,
    )
    (node, scope), *_ = expressions(model, "self.model")
    assert {value.kind for value in model.flow.values(node, scope)} & {"instance", "object"} == {"object"}


def test_modules_that_import_each_other_are_read_once(program):
    model = program(
        "import one\none.first(3)\n",
        one="import two\n\ndef first(n):\n    return two.second(n)\n",
        two="from one import first\nimport train\n\ndef second(n):\n    return first(n - 1) if n else 0\n",
    )
    assert sorted(module.path.stem for module in model.flow.modules) == ["one", "train", "two"]
    (call,) = [node for node, _, _ in model.calls() if ast.unparse(node) == "two.second(n)"]
    assert [info.name for info in model.flow.callees(call)] == ["second"]


def test_a_module_in_python_2_is_left_out_and_remembered(program):
    model = program("import old\nimport new\nnew.f()\n", old='print "hello"\n', new="def f():\n    pass\n")
    assert [module.path.stem for module in model.flow.modules] == ["train", "new"]
    (error,) = model.project.unreadable
    assert (error.path.name, error.line) == ("old.py", 1)
    assert "Python 2" in error.message


def test_an_entry_that_cannot_be_read_is_the_users_to_hear_of(program):
    with pytest.raises(SourceError, match="Python 2"):
        program('print "hello"\n')
    with pytest.raises(SourceError) as caught:
        program("x = (\n")
    assert caught.value.line == 1


def test_only_the_entrys_main_guard_runs(program):
    guarded = "import torch\nif __name__ == '__main__':\n    torch.{}(1)\n"
    model = program(guarded.format("one") + "import other\n", other=guarded.format("two"))
    assert names(model, "torch.one") == {"torch.one"}
    assert list(expressions(model, "torch.two")) == []


# ---- roles -----------------------------------------------------------------------------------------------------

STEP = """
loss = model(x).sum()
loss.backward()
optimizer.step()
"""


@pytest.mark.parametrize(
    "code",
    [
        "model = nn.Linear(2, 1)",
        "def make():\n    net = nn.Linear(2, 1)\n    return net\nmodel = make()",
        "make = lambda: nn.Linear(2, 1)\nmodel = make()",
        "model = nn.Linear(2, 1).to('cpu').train()",
        "model, other = nn.Linear(2, 1), nn.ReLU()",
        "models = [nn.Linear(2, 1)]\nmodel = models[0]",
        "models = {'a': nn.Linear(2, 1), 'b': nn.ReLU()}\nmodel = models['a']",
        "model = getattr(nn, 'Linear')(2, 1)",
        "model = nn.__dict__['Linear'](2, 1)",
        "if x:\n    model = nn.Linear(2, 1)\nelse:\n    model = None",
        "for model in [nn.Linear(2, 1)]:\n    pass",
        "for model, rate in zip([nn.Linear(2, 1)], [0.1]):\n    pass",
        "for i, model in enumerate((nn.Linear(2, 1),)):\n    pass",
        "if (model := nn.Linear(2, 1)):\n    pass",
        "def make(*, width=nn.Linear):\n    return width(2, 1)\nmodel = make()",
        "def f():\n    global model\n    model = nn.Linear(2, 1)\nf()",
        "class A:\n    pass\na = A()\na.net = nn.Linear(2, 1)\nmodel = a.net",
        "class A:\n    @property\n    def net(self):\n        return nn.Linear(2, 1)\nmodel = A().net",
        "class A:\n    @staticmethod\n    def make():\n        return nn.Linear(2, 1)\nmodel = A.make()",
        "class A:\n    @classmethod\n    def make(cls):\n        return nn.Linear(2, 1)\nmodel = A.make()",
        "def pair():\n    return nn.Linear(2, 1), 3\nmodel, _ = pair()",
        "model = nn.DataParallel(nn.Linear(2, 1))",
    ],
)
def test_a_trained_model_is_found_however_it_is_made(program, code):
    prelude = "import torch\nfrom torch import nn\nx = torch.ones(2)\n"
    model = program(f"{prelude}{code}\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n{STEP}")
    # ``?`` stands for a class that is chosen by a computed name.
    assert trained(model) in ({"Linear"}, {"?"})
    assert len(model.backwards) == len(model.steps) == 1
    assert model.unknown_steps == []
    assert model.runs_model(model.backwards[0].module.tree.body[-3])


@pytest.mark.parametrize(
    "code",
    [
        "optimizer = torch.optim.Adam(model.parameters())",
        "optimizer = getattr(torch.optim, name)(model.parameters())",
        "optimizer = torch.optim.__dict__[name](model.parameters())",
        "optimizer = {'adam': torch.optim.Adam, 'sgd': torch.optim.SGD}[name](model.parameters())",
        "def make(params):\n    return torch.optim.Adam(params)\noptimizer = make(model.parameters())",
        "params = [p for p in model.parameters() if p.requires_grad]\noptimizer = torch.optim.Adam(params)",
        "optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()))",
        "optimizer = torch.optim.Adam([{'params': model.parameters(), 'lr': 0.1}])",
        "params = list(model.parameters())\nparams += []\noptimizer = torch.optim.Adam(params)",
        "decay, rest = [], []\nfor n, p in model.named_parameters():\n    decay.append(p)\n"
        "optimizer = torch.optim.Adam([{'params': decay}, {'params': rest}])",
        "class Own(torch.optim.Optimizer):\n    pass\noptimizer = Own(model.parameters(), {})",
        "from functools import partial\noptimizer = partial(torch.optim.Adam, lr=1)(model.parameters())",
    ],
)
def test_an_optimizer_is_found_however_it_is_made(program, code):
    prelude = "import torch\nfrom torch import nn\nx, name = torch.ones(2), input()\nmodel = nn.Linear(2, 1)\n"
    model = program(f"{prelude}{code}\n{STEP}")
    assert [step.optimizer.id for step in model.steps] == ["optimizer"]
    assert trained(model) == {"Linear"}


def test_roles_go_through_parameters_attributes_and_files(program):
    model = program(
        """
        import torch
        from net import Net
        from trainer import Trainer

        if __name__ == "__main__":
            trainer = Trainer(Net(), lambda params: torch.optim.SGD(params, lr=0.1))
            trainer.fit([])
        """,
        net="""
        from torch import nn

        class Base(nn.Module):
            pass

        class Net(Base):
            pass
        """,
        trainer="""
        class Base:
            def __init__(self, model, make):
                self.model = model
                self.opt = make(self.model.parameters())

        class Trainer(Base):
            def fit(self, loader):
                for x in loader:
                    self.opt.zero_grad()
                    self.loss(x).backward()
                    self.opt.step()

            def loss(self, x):
                return self.model(x).mean()
        """,
    )
    assert trained(model) == {"Net"}
    (step,) = model.steps
    assert (step.module.path.stem, step.line) == ("trainer", 12)


@pytest.mark.parametrize(
    "code",
    [
        "s = torch.optim.lr_scheduler.StepLR(o, 1)\ns.step()",
        "from torch.optim.lr_scheduler import CosineAnnealingLR as C\ns = C(o, 10)\ns.step()",
        "import gym\ns = gym.make('x')\ns.step(1)",
        "class S:\n    def step(self):\n        pass\ns = S()\ns.step()",
        "class S(torch.optim.lr_scheduler.LambdaLR):\n    pass\ns = S(o, abs)\ns.step()",
    ],
)
def test_other_things_that_step_are_no_optimizers(program, code):
    prelude = "import torch\nm = torch.nn.Linear(1, 1)\no = torch.optim.SGD(m.parameters(), lr=1)\n"
    model = program(f"{prelude}{code}\n")
    assert model.steps == model.unknown_steps == []


def test_ones_own_backward_is_no_backward_pass(program):
    model = program(
        """
        class Layer:
            def backward(self, grad):
                return grad

        layer = Layer()
        layer.backward(1)
        """
    )
    assert model.backwards == []


# ---- positions -------------------------------------------------------------------------------------------------


def module_of(text, newline="\n") -> Module:
    return parse(source_from_bytes(text.replace("\n", newline).encode(), Path("/nowhere/train.py")))


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_columns_are_code_points(newline):
    module = module_of('损失 = "🔥é"; 模型(损失)  # 注释\nx = f(1)\n', newline)
    first, call, second = module.tree.body
    assert module.start(first) == (1, 0) and module.end(first) == (1, 9)
    assert module.text(call) == "模型(损失)"
    assert module.start(call) == (1, 11)
    span = module.span(call)
    assert (span.start.line, span.start.column, span.end.column) == (1, 12, 18)
    assert module.text(second) == "x = f(1)"


@pytest.mark.parametrize("separator", ["\f", "\x0b", "\x1c", "\u2028", "\x85"])
def test_characters_that_end_no_line_in_python_do_not_count_as_line_ends(separator):
    module = module_of(f'x = "{separator}"\ny = 1\n' if separator != "\f" else "x = 1\n\fy = 1\n")
    assert len(module.lines) == 3
    assert module.text(module.tree.body[1]).endswith("y = 1")


def test_a_text_of_several_lines_is_told_on_one_and_shortened():
    module = module_of("f(\n    one,\n    two,\n)\n" + "g(" + "x, " * 60 + ")\n")
    assert module.text(module.tree.body[0]) == "f( one, two, )"
    assert len(module.text(module.tree.body[1])) == 80


def test_a_byte_order_mark_moves_nothing(tmp_path):
    module = parse(source_from_bytes(b"\xef\xbb\xbfx = f(1)\n", tmp_path / "train.py"))
    assert module.start(module.tree.body[0]) == (1, 0)


# ---- blocks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "read", "written"),
    [
        ("a = b + c.d", {"b", "c.d"}, {"a"}),
        ("a, (b, *c) = d", {"d"}, {"a", "b", "c"}),
        ("a += b", {"b"}, {"a"}),
        ("a[i] = b", {"a", "i", "b"}, {"a"}),
        ("self.a.b = f(c)", {"self", "self.a", "c"}, {"self.a.b"}),
        ("losses.append(x)", {"losses", "x"}, {"losses"}),
        ("for a in b: c = a", {"a", "b"}, {"a", "c"}),
        ("with f(x) as y: pass", {"x"}, {"y"}),
        ("if (n := len(a)) > 1: pass", {"a"}, {"n"}),
    ],
)
def test_paths_that_a_statement_reads_and_writes(code, read, written):
    (statement,) = ast.parse(code).body
    assert blocks.writes(statement) == written
    assert blocks.reads(statement) <= read | written
    assert read - {"self", "self.a", "a"} <= blocks.reads(statement)


def test_a_path_touches_its_owner_and_its_parts_only():
    assert blocks.touches({"a.b"}, {"a"}) and blocks.touches({"a"}, {"a.b"})
    assert not blocks.touches({"ab"}, {"a"}) and not blocks.touches({"a.b"}, {"a.c"})


def test_the_place_of_a_statement():
    module = module_of("try:\n    a\nexcept E:\n    b; c\nelse:\n    d\nfinally:\n    e\n")
    for name, index, length in [("a", 0, 1), ("b", 0, 2), ("c", 1, 2), ("d", 0, 1), ("e", 0, 1)]:
        statement = next(
            node for node in ast.walk(module.tree) if isinstance(node, ast.Expr) and module.text(node) == name
        )
        place = blocks.place(module, statement)
        assert (place.index, len(place.suite)) == (index, length)


def test_a_module_that_was_migrated_with_another_script_is_not_migrated_twice(tmp_path: Path):
    trainer = (
        "def fit(model, optimizer, loader):\n    for x in loader:\n        loss = model(x).sum()\n"
        "        loss.backward()\n        optimizer.step()\n"
    )
    entry = (
        "import torch\nfrom torch.utils.data import DataLoader\nfrom trainer import fit\n\n"
        "model = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "fit(model, optimizer, DataLoader([torch.ones(2)]))\n"
    )
    files = {"train.py": entry.encode(), "trainer.py": trainer.encode()}
    first, result = migrated(tmp_path / "first", files, Options(ddp=True))
    assert first.precision == "migrated" and result["trainer.py"] != files["trainer.py"]
    second, _ = migrated(tmp_path / "second", {**result, "train.py": entry.encode()}, Options(ddp=True))
    assert second.precision == "declined" and second.changes == ()
    assert "together with another script" in second.refusals[0].message


@pytest.mark.parametrize(
    "copied",
    ["{name: made[name] for name in made}", "{name: made[name] for name in made.keys()}",
     "{name: item for name, item in made.items()}", "{k: v for k, v in made.items() if v is not None}"],
)  # fmt: skip
def test_a_mapping_that_is_copied_item_by_item_keeps_its_keys(program, copied):
    made = program(
        f"""
        from torch import nn

        def render(far=1.0, **others):
            return far, others["net"]

        made = {{"net": nn.Linear(4, 4)}}
        copied = {copied}
        copied.update({{"far": 6.0}})
        render(**copied)
        """
    )

    def held(name):
        return set().union(*(made.flow.values(node, scope) for node, scope in expressions(made, name)))

    assert held('others["net"]')
    assert not held("far")


def test_arithmetic_makes_no_variable_that_a_model_is_prepared_in(tmp_path):
    text = """
import torch
from torch import nn

def step(far, **others):
    far = far * torch.ones(4, 1)
    optimizer.zero_grad()
    others["net"](far).mean().backward()
    optimizer.step()

arguments = {"net": nn.Linear(1, 1)}
optimizer = torch.optim.SGD(arguments["net"].parameters(), lr=0.1)
mixed = {str(name): arguments[name] for name in arguments}
mixed["far"] = 6.0
step(**mixed)
"""
    _, result = migrated_text(tmp_path, text, Options())
    assert "prepare_model(nn.Linear(1, 1))" in result
    assert "prepare_model(far)" not in result
