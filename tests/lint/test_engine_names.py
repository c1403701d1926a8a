"""What names mean: imports, classes in other files, constants, defaults, helpers; and the ways through a function."""

from __future__ import annotations

from pathlib import Path

import pytest
from abstractly import CUDA, IMPORTS, Mode, abstractly, frame_in, frame_of, returned
from amp_rules.lattice.abstract_values import F32, INT, LOW, NUM, OTHER, Value
from amp_rules.lattice.machine import Machine
from amp_rules.source.project_facts import ProjectFacts
from amp_rules.source.text import source_from_bytes

O3 = Mode("O3", "fp16", "cuda")


def project(folder: Path, **files: str) -> None:
    """Writes modules of a package, given by names in which ``__`` stands for a dot."""
    (folder / "pyproject.toml").write_text("", encoding="utf-8")
    for name, text in files.items():
        path = folder / "pkg" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        for place in (path.parent, folder / "pkg"):
            (place / "__init__.py").touch()
        path.write_text(text, encoding="utf-8")


def body(text: str, mode: Mode = CUDA) -> Value:
    """What ``f(x, y)`` gives, where ``x`` is half and ``y`` float32."""
    lines = "\n    ".join(text.strip().split("\n"))
    return abstractly(f"def f(x, y):\n    x = x.half()\n    y = y.float()\n    {lines}\n", mode)


# ---- imports -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "call"),
    [
        ("import torch", "torch.softmax(x, -1)"),
        ("import torch as t", "t.softmax(x, -1)"),
        ("import torch.nn.functional as F", "F.softmax(x, -1)"),
        ("import torch.nn.functional", "torch.nn.functional.softmax(x, -1)"),
        ("from torch.nn import functional as nnf", "nnf.softmax(x, -1)"),
        ("from torch import nn", "nn.functional.softmax(x, -1)"),
        ("from torch import softmax", "softmax(x, -1)"),
        ("from torch.nn.functional import softmax as sm", "sm(x, -1)"),
        ("import torch.special as sp", "sp.softmax(x, -1)"),
        ("import torch\nfrom torch import *", "softmax(x, -1)"),
        ("from torch.nn.functional import *", "softmax(x, dim=-1)"),
        (
            "try:\n    from torch.nn.functional import softmax\nexcept ImportError:\n    softmax = None",
            "softmax(x, -1)",
        ),
        ("from torch import nn", "nn.Softmax(-1)(x)"),
        ("import torch.nn as nn", "nn.modules.activation.Softmax(-1)(x)"),
        ("from torch.nn import Softmax as S", "S(dim=-1)(x)"),
        ("", "x.softmax(-1)"),
    ],
)
def test_softmax_under_all_its_names(head: str, call: str):
    made = returned(frame_of(f"{head}\ndef f(x):\n    return {call}\n", CUDA))
    assert (made.op, made.dtypes) == ("softmax", F32)


def test_an_import_inside_a_function():
    assert body("from torch.nn.functional import log_softmax as ls\nreturn ls(x, -1)").op == "log_softmax"


def test_a_name_of_the_function_hides_that_of_the_file():
    text = "from torch import exp\ndef f(x, exp):\n    return exp(x.half())\n"
    assert returned(frame_of(text, CUDA)).op == "call"


@pytest.mark.parametrize(
    "spelling", ["x.to(torch.float32)", "x.float()", "x.type(torch.FloatTensor)", "x.to(dtype=torch.float)"]
)
def test_a_conversion_under_all_its_names(spelling: str):
    assert body(f"return {spelling}").dtypes == F32


# ---- constants ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("EPS = 1e-8\ndef f(x):\n    return EPS\n", 1e-8),
        ("A = 4\nB = A * 2.5\ndef f(x):\n    return B\n", 10.0),
        ("def f(x, eps=1e-6):\n    return eps\n", 1e-6),
        ("def f(x, *, eps=-1e9):\n    return eps\n", -1e9),
        ("BIG = 10 ** 4\ndef f(x, big=-BIG):\n    return big\n", -1e4),
        ("class C:\n    EPS = 1e-5\n    def f(self):\n        return self.EPS\n", 1e-5),
        ("class B:\n    def __init__(self, eps=1e-3):\n        self.eps = eps\nclass C(B):\n    def f(self):\n        return self.eps\n", 1e-3),  # noqa: E501
        ("class C:\n    def __init__(self):\n        self.k = 2 * 3\n    def f(self):\n        return self.k\n", 6.0),
        ("class C:\n    K = 7\ndef f():\n    return C.K\n", 7.0),
        ("def f(x):\n    a = b = 3.0\n    a, c = b, a\n    return c\n", 3.0),
        ("import math\ndef f(x):\n    return math.sqrt(16)\n", 4.0),
        ("def f(x):\n    return float('-inf')\n", float("-inf")),
        ("def g(k):\n    return k * 2\ndef f(x):\n    return g(4)\n", 8.0),
        ("def f(x):\n    k = lambda n: n + 1\n    return k(1)\n", 2.0),
        ("def f(x):\n    return max(2, 5.0)\n", 5.0),
        ("def f(x):\n    return {'a': 1, 'b': 2}['b']\n", 2.0),
        ("def f(x):\n    return (1, 2, 3)[-1]\n", 3.0),
        ("def f(x):\n    if (n := 3) > x:\n        pass\n    return n\n", 3.0),
    ],
)  # fmt: skip
def test_a_number_is_followed_to_where_it_is_written(text: str, number: float):
    name = "C.f" if "class C" in text and "self.f" not in text and "def f(self" in text else "f"
    assert returned(frame_of(text, CUDA, name)).number == number


@pytest.mark.parametrize(
    "text",
    [
        "A = 1\nA = 2\ndef f(x):\n    return A\n",
        "A = 1\nA += 2\ndef f(x):\n    return A\n",
        "A = 1\ndef g():\n    global A\n    A = 5\ndef f(x):\n    return A\n",
        "A = 1\nfor A in range(3):\n    pass\ndef f(x):\n    return A\n",
        "def f(x):\n    a = 1\n    if x:\n        a = 2\n    return a\n",
        "def f(x):\n    a = 1\n    for i in x:\n        a = a * 2\n    return a\n",
        "def f(x):\n    a = 1\n    while x:\n        a += 1\n    return a\n",
        "def f(x):\n    a = 1\n    try:\n        a = 2\n        x()\n    except ValueError:\n        pass\n    return a\n",  # noqa: E501
        "def f(x):\n    a = 1\n    match x:\n        case [a, *_]:\n            pass\n    return a\n",
        "def f(x):\n    a = 1\n    with x as a:\n        pass\n    return a\n",
        "def f(x):\n    a = [1]\n    a[0] = 2\n    return a[0]\n",
        "def f(x):\n    a = {'k': 1}\n    a['k'] = 2\n    return a['k']\n",
        "def f(x):\n    a = {'k': 1}\n    a[x] = 2\n    return a['k']\n",
        "def f(x):\n    return 1 if x else 2\n",
        "def f(x):\n    return x or 1\n",
        "class C:\n    def __init__(self):\n        self.k = 1\n    def set(self, k):\n        self.k = k\n    def f(self):\n        return self.k\n",  # noqa: E501
        "class C:\n    def __init__(self, k=None):\n        self.k = k\n        self.n = 0\n    def step(self):\n        self.n += 1\n    def f(self):\n        return self.n\n",  # noqa: E501
        "class C:\n    def __init__(self, big=False):\n        if big:\n            self.k = 1\n        else:\n            self.k = 2\n    def f(self):\n        return self.k\n",  # noqa: E501
    ],
)  # fmt: skip
def test_what_may_be_several_numbers_is_no_number(text: str):
    assert returned(frame_of(text, CUDA, "C.f" if "class C" in text else "f")).number is None


# ---- other files -------------------------------------------------------------------------------------------------


def test_constants_of_other_files(tmp_path: Path):
    project(
        tmp_path,
        shared="from .consts import NEG_INF\n",
        consts="NEG_INF = -1e9\nEPS = 1e-8\n",
        sub__m="from ..consts import EPS\nfrom pkg.shared import NEG_INF as BIG\nfrom .. import consts\nfrom ..consts import *\n"  # noqa: E501
        "def a():\n    return EPS\ndef b():\n    return BIG\ndef c():\n    return consts.EPS\ndef f():\n    return NEG_INF\n",  # noqa: E501
    )
    path = tmp_path / "pkg/sub/m.py"
    assert [returned(frame_in(path, CUDA, name)).number for name in "abcf"] == [1e-8, -1e9, 1e-8, -1e9]


def test_attributes_through_bases_in_other_files(tmp_path: Path):
    project(
        tmp_path,
        base="import torch.nn as nn\nclass Base(nn.Module):\n    SCALE = 3\n    def __init__(self, eps=1e-8):\n"
        "        super().__init__()\n        self.eps = eps\n        self.proj = nn.Linear(2, 2)\n"
        "    def norm(self, v):\n        return v.softmax(-1)\n",
        mid="from .base import Base\nclass Mid(Base):\n    pass\n",
        m="from pkg.mid import Mid\nclass Net(Mid):\n    def a(self):\n        return self.eps\n    def b(self, x):\n"
        "        return self.proj(x)\n    def c(self):\n        return self.SCALE\n    def d(self, x):\n"
        "        return self.norm(x.half())\n    def forward(self, x):\n        return x\n",
    )
    made = {name: returned(frame_in(tmp_path / "pkg/m.py", CUDA, f"Net.{name}")) for name in "abcd"}
    assert (made["a"].number, made["c"].number) == (1e-8, 3.0)
    assert (made["b"].op, made["b"].dtypes) == ("linear", LOW)
    assert made["d"].dtypes == F32


def test_importing_in_a_circle_ends(tmp_path: Path):
    project(
        tmp_path,
        a="from .b import K, C\nfrom .b import *\nclass D(C):\n    pass\ndef f():\n    return K\n",
        b="from .a import K, D\nfrom .a import *\nclass C(D):\n    pass\n",
    )
    assert returned(frame_in(tmp_path / "pkg/a.py", CUDA, "f")).number is None
    module = ProjectFacts().start(source_from_bytes((tmp_path / "pkg/a.py").read_bytes(), tmp_path / "pkg/a.py"))
    assert not module.classes["D"].is_module


def test_classes_that_inherit_from_themselves_end():
    frame_of(
        "class A(B):\n    def f(self):\n        return self.x\nclass B(A):\n    pass\nclass C(C):\n    pass\n",
        CUDA,
        "A.f",
    )


# ---- classes -----------------------------------------------------------------------------------------------------

NET = """
class Net(nn.Module):
    def __init__(self, dim, act=nn.GELU(), bias=True, norm=None):
        super().__init__()
        self.apply(self.setup)
        self.fc = nn.Linear(dim, dim, bias=bias)
        self.norm = norm or nn.LayerNorm(dim)
        self.act = nn.ReLU() if dim > 3 else nn.ReLU(inplace=True)
        self.scale = nn.Parameter(torch.ones([]) * 2.0)
        self.weight = nn.Parameter(torch.ones(dim))
        self.register_buffer("mask", torch.zeros(dim, dtype=torch.long))
        self.seq = nn.Sequential(nn.Linear(dim, dim), nn.Softmax(-1))
        self.emb = nn.Embedding(dim, dim)
        self.cache = None
        for i in range(3):
            setattr(self, f"layer{i}", nn.Linear(dim, dim))

    def setup(self, m):
        return m

    def forward(self, x):
        x = x.half()
        return %s
"""


@pytest.mark.parametrize(
    ("expression", "dtypes"),
    [
        ("self.fc(x)", LOW),
        ("self.fc.weight", F32),
        ("self.fc.weight @ x", LOW),
        ("self.act(self.fc(x))", LOW),
        ("x * self.scale", LOW),
        ("x * self.weight", F32),
        ("self.mask", INT),
        ("x + self.mask", LOW),
        ("self.seq(x)", F32),
        ("self.emb(self.mask)", F32),
        ("self.fc.to(x.device)(x)", LOW),
        ("self.setup(x)", LOW),
        ("self.fc(x).softmax(-1).to(x)", LOW),
    ],
)
def test_what_self_holds(expression: str, dtypes: int):
    assert abstractly(NET % expression, CUDA, "Net.forward").dtypes == dtypes


def test_judging_init_first_forgets_nothing():
    library = ProjectFacts()
    module = library.start(source_from_bytes((IMPORTS + NET % "self.fc(x)").encode(), Path("/nowhere/m.py")))
    machine = Machine(CUDA, library, [])
    methods = module.classes["Net"].methods
    machine.judge(methods["__init__"])
    assert returned(machine.judge(methods["forward"])).op == "linear"


def test_none_that_another_method_replaces_decides_nothing():
    text = (
        "class C:\n    def __init__(self):\n        self.cache = None\n    def fill(self, x):\n        self.cache = x\n"
        "    def f(self, x):\n        if self.cache:\n            return x.float()\n        return x.half()\n"
    )
    assert returned(frame_of(text, CUDA, "C.f")).dtypes == LOW | F32


def test_a_default_decides_nothing():
    assert (
        abstractly("def f(x, wide=False):\n    if wide:\n        return x.float()\n    return x.half()\n").dtypes
        == LOW | F32
    )
    assert abstractly("def f(x, wide=True):\n    return x.float() if wide else x.half()\n").dtypes == LOW | F32


def test_one_layer_or_another():
    text = "class Net(nn.Module):\n    def forward(self, x):\n        return nn.Conv2d(1, 1, 1).cuda().eval()(x)\n"
    made = abstractly(text, CUDA, "Net.forward")
    assert (made.op, made.dtypes) == ("conv2d", LOW)


# ---- functions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "dtypes"),
    [
        ("def g(v):\n    return v.exp()\ndef f(x):\n    return g(x.half())\n", F32),
        ("def g(v, w=None):\n    return v if w is None else w\ndef f(x):\n    return g(x.half(), w=x.float())\n", LOW | F32),  # noqa: E501
        ("def f(x):\n    def g(v):\n        return v.float()\n    return g(x.half())\n", F32),
        ("def f(x):\n    g = torch.exp\n    return g(x.half())\n", F32),
        ("def f(x):\n    g = lambda v: v.double().float()\n    return g(x.half())\n", F32),
        ("class A:\n    @staticmethod\n    def g(v):\n        return v.float()\ndef f(x):\n    return A.g(x.half())\n", F32),  # noqa: E501
        ("class A:\n    def g(self, v):\n        return v.float()\ndef f(x):\n    return A().g(x.half())\n", F32),
        ("def f(x):\n    return [v.float() for v in (x, x)][1]\n", F32),
        ("def f(x):\n    return sum(v.half() for v in x)\n", LOW),
        ("def f(x):\n    u, (v, w) = x, (x.half(), x.float())\n    return w\n", F32),
        ("def f(x):\n    for i, (u, v) in enumerate(zip([x.half()], [x.float()])):\n        pass\n    return v\n", F32),
        ("def f(x):\n    a, *b = (x.half(), x.float())\n    return a\n", LOW | F32),
    ],
)  # fmt: skip
def test_functions_are_followed(text: str, dtypes: int):
    assert abstractly(text).dtypes == dtypes


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return f(x)\n",
        "def g(x):\n    return f(x)\ndef f(x):\n    return g(x)\n",
        "def f(x):\n    def g(v):\n        return g(v)\n    return g(x)\n",
        "def f(x):\n    y = lambda v: y(v)\n    return y(x)\n",
        "def f(x):\n    return f(f(f(f(x))))\n",
        "class C:\n    def __init__(self):\n        self.c = C()\n        self.k = self.g()\n    def g(self):\n        return self.k\ndef f(x):\n    return C().g()\n",  # noqa: E501
        "A = B\nB = A\ndef f(x):\n    return A\n",
        "A = A + 1\ndef f(x):\n    return A\n",
        "def f(x=f):\n    return x\n",
    ],
)  # fmt: skip
def test_recursion_ends(text: str):
    assert abstractly(text).number is None


def test_calls_beyond_the_limit_are_unknown_and_quick():
    levels = "".join(f"def g{i}(x):\n    return g{i + 1}(x) + g{i + 1}(x)\n" for i in range(30))
    made = abstractly(f"{levels}def g30(x):\n    return x.half()\ndef f(x):\n    return g0(x)\n")
    assert made.dtypes & LOW and made.dtypes & F32


# ---- autocast ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "dtypes"),
    [
        ("return y @ y", LOW),
        ("with torch.autocast('cuda', enabled=False):\n    return y @ y", F32),
        ("with torch.cuda.amp.autocast(False):\n    return y @ y", F32),
        ("with torch.autocast('cuda', enabled=False):\n    z = y @ y\nreturn z @ z", LOW),
        ("with torch.no_grad(), torch.autocast('cuda', enabled=False):\n    return x.sum()", LOW),
        ("with torch.autocast('cuda', enabled=False):\n    with torch.autocast('cuda'):\n        return y @ y", LOW),
        ("with torch.autocast(device_type='cuda', dtype=torch.float16, enabled=False) as c:\n    return x.exp()", LOW),
    ],
)
def test_regions_of_autocast(text: str, dtypes: int):
    assert body(text).dtypes == dtypes


@pytest.mark.parametrize(
    ("decorator", "dtypes"),
    [
        ("", LOW),
        ("@torch.cuda.amp.autocast(enabled=False)", F32),
        ("@torch.autocast('cuda', enabled=False)", F32),
        ("@torch.amp.autocast(device_type='cuda')", LOW),
        ("@torch.amp.custom_fwd(device_type='cuda', cast_inputs=torch.float32)", F32),
        ("@torch.cuda.amp.custom_fwd(cast_inputs=torch.float32)", F32),
        ("@torch.cuda.amp.custom_fwd", LOW),
        ("@torch.no_grad()", LOW),
        ("@torch.inference_mode()", LOW),
    ],
)
def test_decorators_that_turn_autocast_off(decorator: str, dtypes: int):
    text = f"{decorator}\ndef f(x):\n    y = x.float()\n    return y @ y\n"
    assert abstractly(text.lstrip("\n")).dtypes == dtypes


def test_without_autocast_nothing_is_cast():
    assert body("return y @ y", O3).dtypes == F32
    assert body("return x.exp()", O3).dtypes == LOW


def test_a_backward_is_outside_of_autocast_unless_it_says_so():
    text = (
        "class F(torch.autograd.Function):\n    @staticmethod\n    %s\n    def backward(ctx, g):\n"
        "        return g.float() @ g.float()\n"
    )
    assert abstractly(text % "@torch.cuda.amp.custom_bwd", CUDA, "F.backward").dtypes == LOW
    assert abstractly(text.replace("    %s\n", ""), CUDA, "F.backward").dtypes == F32


# ---- ways through a function -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "dtypes"),
    [
        ("if y:\n    return x\nreturn y", LOW | F32),
        ("if y:\n    x = y\nreturn x", LOW | F32),
        ("if y:\n    x = y\nelse:\n    x = y\nreturn x", F32),
        ("if y:\n    x = y\n    raise ValueError\nreturn x", LOW),
        ("if True:\n    return x\nreturn y", LOW),
        ("for k in y:\n    x = y\nreturn x", LOW | F32),
        ("while True:\n    x = y\n    if y:\n        break\nreturn x", F32),
        ("for k in y:\n    if k:\n        continue\n    x = y\nreturn x", LOW | F32),
        ("for k in y:\n    z = x.exp()\n    x = x.float().double()\nreturn z", F32 | 4),
        ("for k in y:\n    x = y\nelse:\n    return x\nreturn y", LOW | F32),
        ("try:\n    x = y\nexcept ValueError:\n    pass\nreturn x", LOW | F32),
        ("try:\n    return y\nexcept ValueError:\n    return x", LOW | F32),
        ("try:\n    pass\nfinally:\n    x = y\nreturn x", F32),
        ("match y:\n    case 1:\n        x = y\n    case _:\n        pass\nreturn x", LOW | F32),
        ("x = (z := y) + x\nreturn z", F32),
        ("return x if x.dtype == torch.float16 else x", LOW),
        ("assert x.dtype == torch.float16\nreturn x", LOW),
        ("if y.dtype != torch.float16:\n    y = y.half()\nreturn y", LOW),
        ("if x.is_floating_point():\n    return x\nreturn x", LOW),
        ("del y\nreturn x", LOW),
        ("global G\nG = x\nreturn x", LOW),
        ("return (yield x) if False else y", F32),
        ("async def g():\n    return await y\nreturn y", F32),
        ("return not x or y", F32 | NUM),
    ],
)  # fmt: skip
def test_ways_are_joined(text: str, dtypes: int):
    made = body(text)
    assert made.dtypes & dtypes == dtypes
    if dtypes in (LOW, F32) and made.op != "join":
        assert made.dtypes == dtypes


def test_what_follows_a_return_is_not_run():
    made = frame_of("def f(x):\n    return 1\n    return 2\n", CUDA)
    assert [value.number for value in made.returned] == [1.0]


def test_unknown_things_are_any_type():
    made = body("return other.thing(y)[0]")
    assert made.dtypes & (LOW | F32) == LOW | F32
    assert body("return object()").dtypes & OTHER
