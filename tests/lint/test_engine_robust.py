"""The linter gets through whatever parses, in time that grows as the text does."""

from __future__ import annotations

import ast
import io
import keyword
import random
import sysconfig
import time
import tokenize
from functools import cache, lru_cache
from pathlib import Path

import pytest
import torch
from abstractly import source
from amp_rules.checks import all_checks
from amp_rules.lint import LEVELS, Linter, Mode
from amp_rules.lint.check import Check
from amp_rules.source.project_facts import ProjectFacts
from amp_rules.source.text import SourceError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from properties import examples

pytestmark = pytest.mark.heavy

MODES = [Mode("O1"), Mode("O2", "bf16"), Mode("O3", "fp16", "cpu", ddp=True)]
FILES = [
    *(Path(torch.__file__).parent / name for name in ("optim/adamw.py", "optim/lbfgs.py", "nn/functional.py",
      "nn/modules/activation.py", "nn/modules/batchnorm.py", "optim/swa_utils.py", "amp/grad_scaler.py",
      "distributions/normal.py", "nn/utils/clip_grad.py", "ao/quantization/observer.py")),
    *(Path(sysconfig.get_path("stdlib")) / name for name in ("dataclasses.py", "statistics.py", "typing.py", "enum.py")),  # noqa: E501
]  # fmt: skip
quickly = settings(
    max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


@lru_cache(maxsize=8)
def linter(mode: Mode) -> Linter:
    return Linter(mode, all_checks(), {check.code for check in all_checks()})


def lint(text: str, mode: Mode) -> None:
    """With a trigger in front of every function, so that all of them are run."""
    fresh = linter(mode)
    fresh.project = ProjectFacts()
    assert not fresh.lint(source(text)).failures


def everywhere(text: str) -> str:
    """The text with a rule's trigger in every line, so that nothing is left out."""
    return "\n".join(f"{line}  # masked_fill( 1e-8 .half() autocast backward( step(" for line in text.split("\n"))


@lru_cache(maxsize=32)
def tokens_of(path: Path) -> list[tokenize.TokenInfo]:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)[:700]
    return list(tokenize.generate_tokens(io.StringIO("".join(lines)).readline)) if _ends_well(lines) else []


def _ends_well(lines: list[str]) -> bool:
    try:
        list(tokenize.generate_tokens(io.StringIO("".join(lines)).readline))
    except (tokenize.TokenError, IndentationError):
        return False
    return True


@lru_cache(maxsize=64)
def functions_of(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    found = [
        ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    ]
    return [item for item in found if len(item) < 6000]


def mutated(text: str, chance: random.Random) -> str | None:
    """The text with a few of its tokens left out, doubled or changed; None if that does not parse."""
    tokens = [(item.type, item.string) for item in tokenize.generate_tokens(io.StringIO(text).readline)]
    swaps = [
        string for kind, string in tokens if kind in (tokenize.NAME, tokenize.NUMBER) and not keyword.iskeyword(string)
    ]
    for _ in range(chance.randint(1, 4)):
        index = chance.randrange(len(tokens))
        kind, string = tokens[index]
        if kind in (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER):
            continue
        action = chance.randrange(3)
        if action == 0:
            del tokens[index]
        elif action == 1:
            tokens.insert(index, (kind, string))
        elif swaps:
            tokens[index] = (kind, chance.choice(swaps))
    try:
        changed = tokenize.untokenize(tokens)
        ast.parse(changed)
    except (SyntaxError, ValueError, IndexError):
        return None
    return changed


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_real_files_with_parts_left_out(path: Path):
    chance = random.Random(path.name)
    tried = 0
    for text in chance.choices(functions_of(path), k=100):
        changed = mutated(text, chance)
        if changed is not None:
            tried += 1
            lint("import torch\nimport torch.nn.functional as F\n" + everywhere(changed), chance.choice(MODES))
    assert tried


# ---- trees made at random ----------------------------------------------------------------------------------------

NAMES = st.sampled_from(["x", "y", "self", "torch", "F", "nn", "loss", "scaler", "model", "None", "dtype", "a"])
ATTRIBUTES = st.sampled_from(
    ["half", "float", "to", "dtype", "shape", "softmax", "exp_", "backward", "step", "T", "weight", "autocast", "where"]
)
LITERALS = st.sampled_from(
    ["0", "1e-8", "-1e9", "'a'", "None", "True", "10**500", "1j", "b''", "...", "f'{x}'", "1e400"]
)


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from("+ - * / // % ** @ & | ^ << >> == < is in and or".split())
    return st.one_of(
        st.builds("({} {} {})".format, inner, operators, inner),
        st.builds("(-{})".format, inner),
        st.builds("(not {})".format, inner),
        st.builds("{}.{}".format, inner, ATTRIBUTES),
        st.builds("{}({})".format, inner, inner),
        st.builds("{}.{}({}, {})".format, inner, ATTRIBUTES, inner, inner),
        st.builds("{}({}, *{}, dim={}, **{})".format, inner, inner, inner, inner, inner),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("{}[{}:, ..., None]".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("[{}, *{}]".format, inner, inner),
        st.builds("({},)".format, inner),
        st.builds("{{{}: {}, **{}}}".format, inner, inner, inner),
        st.builds("[{} for x in {} if {}]".format, inner, inner, inner),
        st.builds("sum({} for a, (b, *c) in {})".format, inner, inner),
        st.builds("(lambda x, *y, a={}, **k: {})".format, inner, inner),
        st.builds("(x := {})".format, inner),
        st.builds("torch.where({}, {}, {})".format, inner, inner, inner),
        st.builds("torch.tensor({}, dtype={})".format, inner, inner),
        st.builds("nn.Linear({}, {})".format, inner, inner),
        st.builds("map(lambda x: {}, {})".format, inner, inner),
        st.builds("getattr({}, 'a', {})".format, inner, inner),
        st.builds("(await {})".format, inner),
        st.builds("(yield {})".format, inner),
    )


EXPRESSIONS = st.recursive(st.one_of(NAMES, LITERALS), _combined, max_leaves=8)


def _indented(*blocks: str) -> str:
    return "\n".join(f"    {line}" for block in blocks for line in block.split("\n"))


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    heads = st.one_of(
        st.builds("if {}:".format, EXPRESSIONS),
        st.builds("while {}:".format, EXPRESSIONS),
        st.builds("for x, *y in {}:".format, EXPRESSIONS),
        st.builds("async for self.a in {}:".format, EXPRESSIONS),
        st.builds(
            "with torch.autocast({}, enabled={}) as x, {} as (a, y[0]):".format, EXPRESSIONS, EXPRESSIONS, EXPRESSIONS
        ),
        st.builds("async with {} as self.x:".format, EXPRESSIONS),
        st.builds("def a(x, /, y={}, *, z: {} = None):".format, EXPRESSIONS, EXPRESSIONS),
        st.builds("@{}\nasync def y(self, *args, **kwargs):".format, EXPRESSIONS),
        st.builds("@{}\nclass model({}, a={}):".format, EXPRESSIONS, EXPRESSIONS, EXPRESSIONS),
    )
    return st.one_of(
        st.builds(lambda head, one, two: f"{head}\n{_indented(one, two)}", heads, inner, inner),
        st.builds(
            lambda one, two, three, four: (
                f"try:\n{_indented(one)}\nexcept (A, B) as x:\n{_indented(two)}\nelse:\n{_indented(three)}\n"
                f"finally:\n{_indented(four)}"
            ),
            inner, inner, inner, inner,
        ),
        st.builds(
            lambda subject, one, two: (
                f"match {subject}:\n    case [x, *y] | {{'a': (x), **y}} if y:\n{_indented(_indented(one))}\n"
                f"    case nn.Linear(1, a=y) as x:\n{_indented(_indented(two))}"
            ),
            EXPRESSIONS, inner, inner,
        ),
        st.builds(
            lambda one, two, three: f"if {one}:\n{_indented(two)}\nelse:\n{_indented(three)}", EXPRESSIONS, inner, inner
        ),
    )  # fmt: skip


SIMPLE = st.one_of(
    st.builds("{}".format, EXPRESSIONS),
    st.builds("x = y = {}".format, EXPRESSIONS),
    st.builds("x, (y, *self.a), a[0] = {}".format, EXPRESSIONS),
    st.builds("x += {}".format, EXPRESSIONS),
    st.builds("self.a.b **= {}".format, EXPRESSIONS),
    st.builds("x[{}] @= y".format, EXPRESSIONS),
    st.builds("x: {} = {}".format, EXPRESSIONS, EXPRESSIONS),
    st.builds("assert {}, {}".format, EXPRESSIONS, EXPRESSIONS),
    st.builds("return {}".format, EXPRESSIONS),
    st.builds("raise {}".format, EXPRESSIONS),
    st.builds("x.masked_fill_({}, {})".format, EXPRESSIONS, EXPRESSIONS),
    st.sampled_from(["pass", "break", "continue", "del x, y[0], self.a", "global x", "import torch.x as y", "return",
                     "from . import *", "from .m import x", "raise", "x: int", "nonlocal_ = 1"]),
)  # fmt: skip
STATEMENTS = st.recursive(SIMPLE, _nested, max_leaves=10)


@quickly
@given(text=st.lists(STATEMENTS, min_size=1, max_size=4).map("\n".join), mode=st.sampled_from(MODES))
def test_random_trees(text: str, mode: Mode):
    code = f"import torch\nimport torch.nn as nn\nclass M(nn.Module):\n    async def forward(self, x):\n{_indented(_indented(text))}\n"  # noqa: E501
    for whole in (code, text):
        try:
            ast.parse(whole)
        except (SyntaxError, ValueError):
            continue
        lint(everywhere_safe(whole), mode)


def everywhere_safe(text: str) -> str:
    return everywhere(text) if '"""' not in text else text


# ---- sizes -------------------------------------------------------------------------------------------------------


@cache
def yardstick() -> float:
    """What an ordinary function of a thousand lines takes here: no bound is in seconds, as machines differ."""
    text = (
        "import torch\ndef f(x, m):\n"
        + "    x = x.relu()\n    y = x @ x\n" * 500
        + "    return x.masked_fill(m, -1e9)\n"
    )
    taken = []
    for _ in range(3):
        start = time.process_time()
        lint(text, MODES[0])
        taken.append(time.process_time() - start)
    return max(taken)


@pytest.mark.parametrize(
    "text",
    [
        "x = x.half()" + " + x.exp()" * 2000,
        "x = " + "(" * 90 + "x.exp()" + ")" * 90,
        "x = " + "[" * 90 + "x.exp()" + "]" * 90,
        "x = x" + ".exp()" * 900,
        "x = x" + ".to(x)" * 900,
        "x = " + "x.exp() if x else " * 90 + "x",
        "x = " + "-" * 900 + "x.exp()",
        "x = " + "torch.where(x, x, " * 60 + "x" + ")" * 60,
        "x = " + "lambda: " * 80 + "x.exp()",
        "x = " + "torch.nn.Sequential(" * 60 + "torch.nn.ReLU()" + ")" * 60 + "(x)",
        "x = x" + "[0]" * 900,
        "x = x and " * 1 + " and ".join(["x.exp()"] * 3000),
        "x = {" + ", ".join(f"'{i}': x.exp()" for i in range(3000)) + "}",
        "x = torch.cat([" + ", ".join(["x.exp()"] * 5000) + "])",
        "x = '" + "masked_fill " * 100_000 + "'",
        "x = [" + "1e-8, " * 100_000 + "]",
        "x = torch.tensor([" + "65505.5, " * 100_000 + "])",
        "x = 10 ** 1000000 * 2 ** 1000",
        "x = (" + "'a' " * 20_000 + ")",
        "x = x < " + " < ".join(["x.exp()"] * 2000),
        "\n    ".join("if x:" + "\n" + "    " * (i + 2) + "x = x.exp()" for i in range(1)),
    ],
    ids=range(21),
)
@pytest.mark.parametrize("mode", MODES[::2], ids=str)
def test_deep_and_large_expressions(text: str, mode: Mode):
    start = time.process_time()
    try:
        lint(f"import torch\ndef f(x):\n    {text}\n    return x.masked_fill(x, -1e9)\n", mode)
    except SourceError as error:
        assert "too deep" in error.message
    assert time.process_time() - start < 80 * yardstick()


@pytest.mark.parametrize("depth", [5, 18])
@pytest.mark.parametrize("head", ["if x:", "for x in x:", "while x:", "with x:", "try:", "def f(x):", "class A:"])
def test_nested_blocks(head: str, depth: int):
    lines = ["import torch", "def f(x):"]
    for level in range(1, depth + 1):
        lines.append("    " * level + head)
    lines.append("    " * (depth + 1) + "x = x.exp() + 1e-8")
    if head == "try:":
        lines += [
            "    " * level + "finally:\n" + "    " * (level + 1) + "x = x.half()" for level in range(depth, 0, -1)
        ]
    lines.append("    return x.masked_fill(x, -1e9)")
    start = time.process_time()
    lint("\n".join(lines), MODES[0])
    assert time.process_time() - start < 30 * yardstick()


REPEATED = ["masked_fill ", "1e-8, ", "65505.5, ", "'a' ", "x", "x.exp()", "(", "[", " ", "x[0]", "a.b = ", "x ** 2 "]


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.code)
def test_patterns_of_rules_get_through_long_lines(check: Check):
    for pattern in check.triggers:
        for part in REPEATED if not isinstance(pattern, str) else ():
            text = "x = [" + part * (60_000 // len(part))
            start = time.process_time()
            list(pattern.finditer(text))
            assert time.process_time() - start < 5 * yardstick(), part


UNITS = {
    "straight": "    x = x.masked_fill(m, -1e4).softmax(-1) + 1e-8\n",
    "branches": "    if m:\n        x = x.half().exp()\n    else:\n        y = x.sum()\n",
    "loops": "    for i in m:\n        x = x + i.exp()\n        y += 1\n",
    "new names": "    x%d = x.exp() * 2\n    if m:\n        x%d = x\n",
    "training": "    loss = model(x)\n    scaler.scale(loss).backward()\n    if m:\n        scaler.step(opt)\n        scaler.update()\n",  # noqa: E501
    "helpers": "    x = helper(x, 1e-8)\n",
    "in place": "    x.clamp_(min=1e-8).add_(1)\n    x[0] = x.sum()\n",
    "lists": "    y.append(x.exp())\n    x = torch.cat(y)\n",
}
HEAD = "import torch\ndef helper(v, eps):\n    return v.log() + eps\n"


def seconds(unit: str, times: int, mode: Mode, apart: bool) -> float:
    lines = [unit.replace("%d", str(number)) for number in range(times)]
    if apart:
        lines = [f"def f{number}(x, m, y, model, opt, scaler):\n{line}" for number, line in enumerate(lines)]
        text = HEAD + "".join(lines)
    else:
        text = f"{HEAD}def f(x, m, y, model, opt, scaler):\n{''.join(lines)}    return x\n"
    best = float("inf")
    for _ in range(2):
        start = time.process_time()
        lint(text, mode)
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.parametrize("apart", [False, True], ids=["one function", "many functions"])
@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_time_is_linear_in_size(unit: str, apart: bool):
    """Eight times the text takes eight times the time, and far less than the 64 times of a quadratic program."""
    small = max(seconds(unit, 60, MODES[0], apart), 0.004)
    assert seconds(unit, 480, MODES[0], apart) < 26 * small


@pytest.mark.parametrize("level", LEVELS)
def test_a_function_of_twenty_thousand_lines(level: str):
    unit = "    x = x.relu()\n    y = x @ x\n    if m:\n        y = y.softmax(-1)\n"
    text = "import torch\ndef f(x, m):\n" + unit * 5000 + "    return x.masked_fill(m, -1e9)\n"
    start = time.process_time()
    lint(text, Mode(level))  # type: ignore[arg-type]
    # Twenty times as long as what it is measured by.
    assert time.process_time() - start < 5 * 20 * yardstick()


def test_findings_do_not_depend_on_what_was_judged_before():
    one = "import torch\nclass A(torch.nn.Module):\n    def forward(self, x):\n        return x.half().masked_fill(x, -1e9)\n"  # noqa: E501
    other = "import torch\nE = 1e-9\ndef g(x):\n    return x.half() + E\ndef f(x):\n    return (x.half() / (g(x).sum() + E)).log()\n"  # noqa: E501
    both = Linter(Mode("O3"), all_checks())
    first = [both.lint(source(text, f"/nowhere/{name}.py")).findings for name, text in (("a", one), ("b", other))]
    turned = Linter(Mode("O3"), all_checks())
    second = [turned.lint(source(text, f"/nowhere/{name}.py")).findings for name, text in (("b", other), ("a", one))]
    assert first == second[::-1] and first[0]
