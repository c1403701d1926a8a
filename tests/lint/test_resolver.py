"""What names mean: one resolver for both commands, and the facts of functions and classes that stand on it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from amp_rules.checks import all_checks
from amp_rules.lint import Linter, Mode
from amp_rules.source import project_facts
from amp_rules.source.facts import ClassFacts, FunctionFacts, ModuleFacts
from amp_rules.source.modules import Module, parse
from amp_rules.source.project_facts import ProjectFacts
from amp_rules.source.resolver import Names, names_of
from amp_rules.source.text import source_from_bytes
from amp_rules.torch.canonical_names import canonical


def module_of(text: str, path: Path = Path("/nowhere/module.py")) -> Module:
    return parse(source_from_bytes(text.encode(), path))


def facts_of(path: Path) -> ModuleFacts:
    return ProjectFacts().start(source_from_bytes(path.read_bytes(), path))


def function(name: str, text: str) -> FunctionFacts:
    module = ProjectFacts().start(source_from_bytes(text.encode(), Path("/nowhere/module.py")))
    cls, _, method = name.rpartition(".")
    return module.classes[cls].methods[method] if cls else module.functions[method]


def used(names: Names, text: str) -> ast.expr:
    """The last expression of the file that is written like ``text``."""
    found = [node for node in ast.walk(names.module.tree) if isinstance(node, ast.expr) and ast.unparse(node) == text]
    return max(found, key=lambda node: node.lineno)


@pytest.mark.parametrize(
    ("head", "used_as", "meaning"),
    [
        ("import torch", "torch.nn.functional.relu", "torch.nn.functional.relu"),
        ("import torch.nn as N", "N.Linear", "torch.nn.Linear"),
        ("import torch.nn", "torch.optim.SGD", "torch.optim.SGD"),
        ("from torch.nn.modules.loss import MSELoss as L", "L", "torch.nn.MSELoss"),
        ("import torch.nn.modules.batchnorm as bn", "bn._BatchNorm", "torch.nn._BatchNorm"),
        ("from torch.autograd.variable import Variable", "Variable", "torch.autograd.Variable"),
        ("from apex.amp.frontend import initialize", "initialize", "apex.amp.initialize"),
        ("from . import model", "model.Net", ".model.Net"),
        ("from ..nets import model as m", "m.Net", "..nets.model.Net"),
        ("try:\n    import torch\nexcept ImportError:\n    import nothing as torch", "torch.ones", "torch.ones"),
        ("if x:\n    from torch import cuda", "cuda.amp", "torch.cuda.amp"),
        ("", "plain.name", "plain.name"),
    ],
)
def test_what_a_name_means_most_likely(head: str, used_as: str, meaning: str):
    names = names_of(module_of(f"{head}\n{used_as}(1)\n"))
    assert names.dotted(used(names, used_as)) == meaning


def test_an_import_within_a_function_holds_there_alone():
    text = (
        "import torch.nn.functional as F\n"
        "def f(x):\n    from mine import functional as F\n    return F.inner(x)\n"
        "class C:\n    import hidden as H\n    def g(self):\n        return H.method\n"
        "def g(x):\n    return F.outer(x)\n"
    )
    names = names_of(module_of(text))
    assert names.dotted(used(names, "F.inner")) == "mine.functional.inner"
    assert names.dotted(used(names, "F.outer")) == "torch.nn.functional.outer"
    assert names.dotted(used(names, "H.method")) == "H.method"


def test_the_inner_function_s_import_counts():
    text = (
        "def f():\n    import outer as o\n    def g():\n        import inner as o\n        return o.g\n    return o.f\n"
    )
    names = names_of(module_of(text))
    assert names.dotted(used(names, "o.g")) == "inner.g"
    assert names.dotted(used(names, "o.f")) == "outer.f"


def test_imports_that_disagree_are_all_told_and_none_is_certain():
    text = "try:\n    from apex import amp\nexcept ImportError:\n    from torch.cuda import amp\namp.initialize()\n"
    names = names_of(module_of(text))
    node = used(names, "amp.initialize")
    assert names.dotted(node) == "apex.amp.initialize"
    assert names.targets(node) == {"apex.amp.initialize", "torch.cuda.amp.initialize"}
    assert names.target(node) is None


def test_the_project_s_own_names_mean_nothing_of_other_packages():
    names = names_of(module_of("from .apex import amp\namp.initialize()\n"))
    assert names.targets(used(names, "amp.initialize")) == set()


def test_a_parameter_hides_an_import():
    names = names_of(module_of("import torch\ndef f(torch):\n    return torch.inner\ntorch.outer\n"))
    assert names.target(used(names, "torch.inner")) is None
    assert names.target(used(names, "torch.outer")) == "torch.outer"


def test_names_of_packages_and_names_that_are_taken():
    names = names_of(module_of("import torch as t\nimport torch.nn as nn\ndef amp(): pass\n"))
    assert (names.name_of("torch"), names.name_of("torch.nn"), names.name_of("numpy")) == ("t", "nn", None)
    assert names.is_taken("amp") and names.is_taken("t") and not names.is_taken("torch")


def test_names_with_several_meanings_are_rebound():
    text = "import torch\nimport torch.nn\nfrom a import x, y, z\ntry:\n    from b import x\nexcept E:\n    y = None\n"
    assert names_of(module_of(text + "def z(): pass\n")).rebound == {"x", "y", "z"}


def test_files_whose_trees_are_given_up_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(project_facts, "_MAX_TEXT", 20)
    dropped: list[ModuleFacts] = []
    project = ProjectFacts(dropped.append)
    for name in ("a", "b", "c"):
        project.start(source_from_bytes(b"x = 'twelve letters'\n", tmp_path / f"{name}.py"))
    assert [item.module.path.name for item in dropped] == ["a.py", "b.py"]


def test_stars_are_kept_with_their_modules():
    assert names_of(module_of("from torch.nn import *\nfrom . import *\nfrom .a import *\n")).stars == [
        "torch.nn",
        ".",
        ".a",
    ]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("torch.functional.norm", "torch.norm"),
        ("torch.nn.modules.Linear", "torch.nn.Linear"),
        ("torch.nn.modules.conv.Conv2d.forward", "torch.nn.Conv2d.forward"),
        ("torch.nn.modules.utils", "torch.nn.modules.utils"),
        ("torch.serialization.load", "torch.load"),
        ("torch._C._nn.gelu", "torch.nn.functional.gelu"),
        ("torchvision.datasets.mnist.FashionMNIST", "torchvision.datasets.FashionMNIST"),
        ("apex.optimizers.fused_adam.FusedAdam", "apex.optimizers.FusedAdam"),
        ("numpy.functional.x", "numpy.functional.x"),
    ],
)
def test_one_spelling_for_what_has_several(name: str, plain: str):
    assert canonical(name) == plain


def test_a_name_is_followed_through_any_number_of_packages(tmp_path: Path):
    for i in range(12):
        (tmp_path / f"m{i}.py").write_text(f"from m{i + 1} import {'*' if i % 2 else 'Net'}\n")
    (tmp_path / "m12.py").write_text("class Net:\n    pass\n")
    module = facts_of(tmp_path / "m0.py")
    found = module.project.resolve(module, "m1.Net")
    assert isinstance(found, ClassFacts) and found.module.module.path.name == "m12.py"


def test_modules_that_import_each_other_in_a_circle_end(tmp_path: Path):
    (tmp_path / "a.py").write_text("from b import *\nfrom b import X, LIMIT\n")
    (tmp_path / "b.py").write_text("from a import *\nfrom a import X, LIMIT\n")
    module = facts_of(tmp_path / "a.py")
    assert module.project.resolve(module, "b.X") is None
    assert module.project.module_of_constant(module, "b.LIMIT") is None


def test_a_long_line_of_bases_is_followed_to_its_end():
    text = "import torch.nn as nn\nclass C0(nn.Module): pass\n"
    text += "".join(f"class C{i + 1}(C{i}): pass\n" for i in range(30))
    cls = ProjectFacts().start(source_from_bytes(text.encode(), Path("/nowhere/m.py"))).classes["C30"]
    assert [item.name for item in cls.lineage] == [f"C{i}" for i in range(30, -1, -1)]
    assert cls.is_module


CLASS = """
from functools import cached_property
class C:
    def plain(self, a, b=1, *args, c, **kwargs): pass
    @staticmethod
    def static(a): pass
    @classmethod
    def made(cls, a): pass
    @cached_property
    def lazy(self): pass
"""


@pytest.mark.parametrize(
    ("name", "receiver", "positional", "is_static", "is_property"),
    [
        ("plain", "self", ("a", "b"), False, False),
        ("static", None, ("a",), True, False),
        ("made", "cls", ("a",), False, False),
        ("lazy", "self", (), False, True),
    ],
)
def test_what_calls_give_to_methods(name, receiver, positional, is_static, is_property):
    method = function(f"C.{name}", CLASS)
    assert (method.receiver, method.positional) == (receiver, positional)
    assert (method.is_static, method.is_property) == (is_static, is_property)
    assert method.qualname == f"C.{name}"


@pytest.mark.parametrize(
    ("call", "given", "or_default"),
    [
        ("o.plain(x, y)", "y", "y"),
        ("o.plain(x, b=y)", "y", "y"),
        ("o.plain(x)", None, "1"),
        ("o.plain(x, *more)", "*more", None),
        ("o.plain(x, **more)", None, None),
    ],
)
def test_what_a_call_gives_for_a_parameter(call, given, or_default):
    method, node = function("C.plain", CLASS), ast.parse(call).body[0].value
    assert (method.argument(node, "a").id, method.argument(node, "self")) == ("x", None)
    found = method.argument(node, "b"), method.argument_or_default(node, "b")
    assert tuple(item and ast.unparse(item) for item in found) == (given, or_default)


def test_what_a_function_returns_and_yields_itself():
    facts = function(
        "f",
        "def f(x):\n    def g():\n        yield 1\n    if x:\n        return g\n    yield x\n    return h(lambda: 2)\n",
    )
    assert [ast.unparse(item) for item in facts.returns] == ["h(lambda: 2)", "g"]
    assert [ast.unparse(item) for item in facts.yields] == ["x"]


def test_of_methods_in_several_branches_the_first_counts_and_of_those_in_a_row_the_last():
    text = """
class C:
    try:
        def f(self, first): pass
    except NameError:
        def f(self, second): pass
    if NEW:
        def g(self, first): pass
    else:
        def g(self, second): pass
    def h(self, first): pass
    def h(self, second): pass
"""
    assert [function(f"C.{name}", text).positional for name in "fgh"] == [("first",), ("first",), ("second",)]


def test_all_parameters_of_a_function_in_order():
    assert function("C.plain", CLASS).parameters == ("self", "a", "b", "c", "args", "kwargs")
    assert function("f", "def f(x, /, y, *, z): pass\n").positional == ("x", "y")


def test_rules_about_whole_files_know_what_a_function_imports_for_itself():
    text = (
        "import torch\ndef main(model, batches, optimizer):\n"
        "    from torch.cuda.amp import GradScaler, autocast as cast\n"
        "    scaler = GradScaler()\n    for x in batches:\n"
        "        with cast(dtype=torch.bfloat16):\n            loss = model(x).sum()\n"
        "        scaler.scale(loss).backward()\n        scaler.step(optimizer)\n        scaler.update()\n"
    )
    linter = Linter(Mode("O1", "fp16", "cuda"), all_checks(), {"AMP817"})
    found = linter.lint(source_from_bytes(text.encode(), Path("/nowhere/train.py"))).findings
    assert [(item.code, item.span.start.line) for item in found] == [("AMP817", 4)]
