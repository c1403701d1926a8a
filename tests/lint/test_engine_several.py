"""Functions that give several results, and those that are applied to several arguments."""

from __future__ import annotations

import pytest
from abstractly import CUDA, abstractly
from amp_rules.checks.common.mixed_types import is_outer, operands
from amp_rules.lattice.abstract_values import F32, LOW
from amp_rules.lattice.mode import Mode

O3 = Mode("O3", "fp16", "cuda")


def body(text: str, mode: Mode = CUDA, head: str = ""):
    lines = "\n    ".join(text.strip().split("\n"))
    return abstractly(f"{head}\ndef f(x, y):\n    x = x.half()\n    y = y.float()\n    {lines}\n", mode)


@pytest.mark.parametrize(("call", "op"), [("var_mean", "var"), ("std_mean", "std")])
def test_the_parts_of_two_moments_are_what_their_names_say(call: str, op: str):
    first = body(f"a, b = torch.{call}(x, dim=-1, keepdim=True)\nreturn a", O3)
    second = body(f"a, b = torch.{call}(x, dim=-1, keepdim=True)\nreturn b", O3)
    assert (first.op, second.op) == (op, "mean")
    assert first.dtypes == second.dtypes == LOW
    assert first.lo == 0.0


def test_changes_in_place_of_a_part_are_followed():
    made = body("a, b = torch.var_mean(x, dim=-1)\na.add_(1e-6)\na.sqrt_()\nreturn x / a", O3)
    assert [item.op for item in made.args[1].behind()][:3] == ["sqrt", "add", "var"]


HELPERS = "from functools import partial\ndef widened(a, b):\n    return b.float()\ndef kept(a):\n    return a[None]\n"


def test_a_function_is_mapped_over_each_element():
    made = body("a, b = map(kept, (x, y))\nreturn a", O3, HELPERS)
    assert made.dtypes == LOW
    assert body("a, b = map(kept, (x, y))\nreturn b", O3, HELPERS).dtypes == F32


def test_a_partial_is_called_with_what_it_holds():
    assert body("g = partial(widened, 3)\nreturn g(x)", O3, HELPERS).dtypes == F32
    assert body("a, b = map(partial(widened, 3), (x, x))\nreturn b", O3, HELPERS).dtypes == F32


def test_a_partial_of_something_else_is_unknown():
    assert body("g = partial(nowhere, 3)\nreturn g(x)", O3, HELPERS).op in ("call", "module")


@pytest.mark.parametrize(
    ("call", "outer"),
    [
        ("torch.einsum('bi,j->bij', x, x)", True),
        ("torch.einsum('bi,ij->bj', x, x)", False),
        ("einsum(x, x, 'batch here, there -> batch here there')", True),
        ("einsum(x, x, 'batch here, here there -> batch there')", False),
    ],
)
def test_einsum_has_its_equation_first_or_last(call: str, outer: bool):
    made = body(f"return {call}", CUDA, "from einops import einsum")
    assert made.op == "einsum"
    assert made.dtypes == LOW
    assert [item.op for item in operands(made)] == ["half", "half"]
    assert is_outer(made) is outer


def test_a_switch_at_the_head_of_the_file_turns_no_region_off():
    text = "with torch.autocast('cuda', enabled={}):\n    z = y @ y\nreturn z"
    assert body(text.format("FAST"), O3, "FAST = False").dtypes == LOW
    assert body(text.format("False"), CUDA).dtypes == F32
