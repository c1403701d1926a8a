"""Programs made at random: what torch gives lies in what the linter thinks of them."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from abstractly import BOOL, CPU, IMPORTS, INT, LOW, Mode, dtype_bit, frame_of, run_for_real
from amp_rules.lattice.abstract_values import INTEGRAL, MAX_SUBTRACTED, NUM, PROBABILITY, TENSORS, ZERO_DIM, Value, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from properties import examples

pytestmark = pytest.mark.heavy

HALF = Mode("O3", "fp16", "cpu")
MODES = pytest.mark.parametrize("mode", [HALF, CPU], ids=str)
quickly = settings(
    max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)

CONSTANTS = st.sampled_from("0 1 2 -1 0.5 -0.25 1.5 3 -2.0 1e-3 10 0.0".split())
UNARY = """
x.exp() torch.exp(x) x.relu() F.relu(x) x.sigmoid() x.tanh() x.abs() -x x*x x**2 x.pow(2) x.square() x.softmax(-1)
F.softmax(x,dim=-1) F.log_softmax(x,-1) F.logsigmoid(x) x.sin() x.cos() x.clone() x.detach() x.reshape(4,4) x.t()
x.T x.abs().sqrt() x.abs().sqrt()+1 x.sign() x.float() x.half() x.double() x.long() x.bool() (x>0) x.contiguous()
F.normalize(x,dim=-1) F.relu6(x) F.hardsigmoid(x) x.erf() F.softplus(x) x.cumsum(0) 2**x 1/(x.abs()+1) x[0] x[:,1:3]
x.max() x.min() x.mean() x.sum() x.sum(-1,keepdim=True) x.mean(0) x.amax(-1,keepdim=True) x.max(-1)[0] x.max(-1)[1]
x.max(-1).values x.max(-1,keepdim=True)[0] x.min(dim=-1)[0] x-x.max() x-x.amax(-1,keepdim=True)
x-x.max(-1,keepdim=True)[0] x-x.max()*0.5 x*2-x.max() x[0]-x[1].max() x.logsumexp(-1,keepdim=True)
x-x.logsumexp(-1,keepdim=True) x.var(-1) x.std() x.norm() x.norm(2) x.norm(dim=-1) x.norm(2,-1) x/x.norm()
x/x.sum(-1,keepdim=True) x-x.mean(-1,keepdim=True) torch.zeros_like(x) torch.ones_like(x) torch.full_like(x,2.5)
x.new_zeros(4,4) x.new_full((2,),3) x.to(x.dtype) x.topk(2)[0] x.sort(-1)[0] x.argmax(-1) x.view(-1) x.flatten()
x.unsqueeze(0) x.chunk(2)[1] x.mul(2) x.add(1) x.sub(0.5) x.div(2) x.sub(1,alpha=2) x.add(x,alpha=-1)
x.div(2,rounding_mode="floor") x//2 x%2 x.floor() x.round() x.trunc() x.clamp_min(0.1) x.clamp_max(0.5)
x.clamp(-1,1) x.clamp(min=-0.5) x.clamp(max=x.mean()) F.dropout(x,0.5) F.dropout(x.abs(),0.5)
x.masked_fill(x>0,-1e4) x.masked_fill(x>0,2) torch.cat([x,x]) torch.stack([x,x],0) x@x.T F.mse_loss(x,x+1)
F.l1_loss(x,x*2) torch.tensor(0.5) torch.arange(4) torch.arange(-2,2) torch.arange(3,-1,-1) torch.rand(4)
torch.zeros(4) torch.eye(4) torch.tensor(2)*x torch.tensor(0.5)*x torch.zeros(())+x
torch.rand_like(x)*torch.rand_like(x)-1 x.median() x.prod() torch.randn(4)*torch.randn(4) x.to(torch.float32)
x.type(torch.float64) F.gelu(x) F.silu(x) F.leaky_relu(x) F.elu(x) x.float().softmax(-1) x.softmax(-1).sum(-1)
x.softmax(-1).log() 1-x.sigmoid() x.exp().sum().log() x.nan_to_num() x.isnan() torch.linspace(0,1,4)
x.count_nonzero() x.numel() x.size(0) x.dim() x.shape[0] len(x) float(3) max(1,2) x.shape[0]**-0.5 x.square().mean()
x.square().mean(-1,keepdim=True).sqrt() x.expm1() x.log1p() (x+x).half() x.sum(dtype=torch.float32)
x.softmax(-1,dtype=torch.float32) torch.softmax(x,-1,torch.float32) sum([x,x]) sum(x.chunk(2)) x.ceil() x.frac()
x.atan() x.cummax(0)[0] x.cummin(0)[1] x.neg().exp() x.reciprocal() x.rsqrt() x.log() x.abs().log() x.sinh()
x.cosh() x.logit()
""".split()
BINARY = [
    *"""
x+y x-y x*y x/y torch.maximum(x,y) torch.minimum(x,y) torch.max(x,y) torch.min(x,y) torch.where(x>y,x,y)
x.where(x>y,y) torch.where(x>0,x,y) x==y x<y torch.add(x,y) x.sub(y) x.mul(y) torch.add(x,y,alpha=2)
x-torch.maximum(x,y) x.clamp(min=y) x.clamp(max=y) torch.atan2(x,y) torch.lerp(x,x,0.5) (x,y)[0] (x,y)[1] [x,y][-1]
torch.cat([x,x,y]) torch.stack((x,y))[0] x.type_as(y) x.to(y) x.to(y.dtype) torch.zeros_like(x,dtype=y.dtype) x@y
x.matmul(y) torch.einsum("ij,jk->ik",x,y) x-y.max() x-y.amax(-1,keepdim=True) x*y.mean() y.sum()*x F.mse_loss(x,y)
x+y.float() x*y.half() x.addcmul(y,y) sum([x,y]) torch.logaddexp(x,y) x.fmod(y) x.masked_fill(y>0,0)
torch.sub(x,other=y)
""".split(),
    "(x if len(x) > 2 else y)",
    "(x if x.sum() > 0 else y)",
    "(n and x)",
]
WITH_CONSTANT = """
x+c c+x x-c c-x x*c c*x x/c x.clamp(min=c) x.clamp(max=c) x.clamp(c,c+1) torch.clamp(x,c) x.masked_fill(x>c,c) x>c
torch.where(x>c,x,c) torch.where(x>c,c,x) torch.full((2,),c) torch.full_like(x,c) torch.tensor(c) x.new_full((2,),c)
torch.tensor([c,1]) torch.tensor([[c],[c]]) x*c+c (x+c).abs() x.add(c) x.fmod(c) max(c,1) min(c,0.5) abs(c) -c c*2
c+c
""".split()
INPLACE = """
x.add_(1) x.mul_(2) x.clamp_(min=0.1) x.exp_() x.zero_() x.fill_(3) x.relu_() x.copy_(y) x[0]=5.0 x[:,0]=y.mean()
x+=1 x*=y x-=x.max() x[0]+=1 x.view(-1)[0]=7.0 x[0].fill_(9) x.masked_fill_(x>0,-3) x.normal_()
nn.init.constant_(x,4) torch.add(x,1,out=x) x.neg_() x.sub_(y) x.data.fill_(2) z=x;z+=1 z=x.view(-1);z.add_(2)
x.div_(2) x[x>0]=0.25 x.uniform_(-3,3) x=x+y x=x*2 x=x.float() x=x.half() x=x.clamp(0,1) x=x.exp() x=y x=-x
x=x.softmax(-1) x=torch.where(x>0,x,y)
""".split()
TESTS = [
    "x.sum() > 0", "x.dtype == torch.float16", "x.dtype == torch.bfloat16", "x.dtype != torch.float32",
    "x.dtype == y.dtype", "x.is_floating_point()", "x.dtype in (torch.float16, torch.bfloat16)",
    "x.dtype in (torch.float16, torch.float32)", "x.dim() == 2", "True", "False", "flag", "flag is None",
    "x.shape[0] > 2", "torch.is_floating_point(x)", "not (x.dtype == torch.float16)",
    "x.dtype == torch.float16 and y.sum() > 0", "x.dtype == torch.float32 or y.sum() > 0", "n > 1", "(n := 2) > 1",
    "isinstance(x, torch.Tensor)",
]  # fmt: skip


@st.composite
def programs(draw: st.DrawFn, control: bool) -> str:
    """The body of a function of ``h`` (half) and ``s`` (float32), which ends with all of its variables."""
    names = ["h", "s"]
    lines = ["n = 3", "flag = None"]

    def fill(form: str) -> str:
        names_of = {"x": draw(st.sampled_from(names)), "y": draw(st.sampled_from(names)), "c": f"({draw(CONSTANTS)})"}
        return _filled(form, names_of)

    def statement(indent: str, depth: int) -> None:
        kind = draw(st.integers(0, 11 if control and depth < 2 else 7))
        target = f"v{len(names)}"
        if kind <= 2:
            lines.append(f"{indent}{target} = {fill(draw(st.sampled_from(UNARY)))}")
        elif kind <= 4:
            lines.append(f"{indent}{target} = {fill(draw(st.sampled_from(BINARY)))}")
        elif kind <= 6:
            lines.append(f"{indent}{target} = {fill(draw(st.sampled_from(WITH_CONSTANT)))}")
        elif kind == 7 and control:
            lines.append(f"{indent}{fill(draw(st.sampled_from(INPLACE)))}")
            return
        elif kind in (8, 9):
            lines.append(f"{indent}if {fill(draw(st.sampled_from(TESTS)))}:")
            block(indent, depth, draw(st.sampled_from(["", "", "", "return", "raise ValueError"])))
            if draw(st.booleans()):
                lines.append(f"{indent}else:")
                block(indent, depth)
            return
        elif kind >= 10:
            head = draw(
                st.sampled_from(["for i in range(3):", "for x in x:", "for i, x in enumerate(x):", "while n > 0:"])
            )
            lines.append(indent + fill(head))
            if head.startswith("while"):
                lines.append(f"{indent}    n = n - 1")
            block(indent, depth, draw(st.sampled_from(["", "", "", "break", "continue", "if s.sum() > 1: break"])))
            return
        else:
            lines.append(f"{indent}{target} = {fill(draw(st.sampled_from(UNARY)))}")
        if not indent:
            names.append(target)
        else:
            # Within a branch only what exists already may change, or else it would not exist after it.
            lines[-1] = lines[-1].replace(target, draw(st.sampled_from(names)), 1)

    def block(indent: str, depth: int, end: str = "") -> None:
        for _ in range(draw(st.integers(1, 3))):
            statement(indent + "    ", depth + 1)
        if end:
            lines.append(f"{indent}    {end}".replace("return", "return " + _everything(names)))

    for _ in range(draw(st.integers(2, 7))):
        statement("", 0)
    return "\n".join([*lines, f"return {_everything(names)}"])


def _everything(names: list[str]) -> str:
    return f"({', '.join(names)}, n)"


def _filled(form: str, names: dict[str, str]) -> str:
    return re.sub(r"(?<![\w.])[xyc](?!\w)", lambda match: names[match[0]], form)


def text_of(body: str) -> str:
    lines = "\n    ".join(body.split("\n"))
    return f"def f(a, b):\n    h = a.half()\n    s = b.float()\n    {lines}\n"


def check(body: str, mode: Mode, in_place: bool) -> None:
    text = text_of(body)
    if mode is CPU:
        text = text.replace(".half()", ".bfloat16()")
    torch.manual_seed(0)
    try:
        real = run_for_real(text, mode, torch.randn(4, 4) * 2, torch.rand(4, 4) * 3 - 1)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError, ZeroDivisionError):
        return
    frame = frame_of(IMPORTS + text, mode)
    paths = [_disagreement(real, found, in_place) for found in frame.returned]
    assert None in paths, f"{paths}\n{text}"


def _disagreement(real: tuple[Any, ...], found: Value, in_place: bool) -> str | None:
    """Why the values of a run are not those of one ``return``, or None."""
    if len(found.args) != len(real):
        return "returned elsewhere"
    for index, (value, one) in enumerate(zip(found.args, real, strict=True)):
        reason = _outside(value, one)
        if reason:
            return f"variable {index}: {reason}; {one!r}"
        for other, two in zip(found.args[:index], real[:index], strict=True):
            if not (isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor)):
                continue
            if value.root is other.root and one.dtype != two.dtype:
                return f"variable {index}: said to have the type of another, which has {two.dtype}; {one!r}"
            if not in_place and same(value, other) and not torch.allclose(one.double(), two.double(), 0, 0, True):
                return f"variable {index}: said to be the same as another; {one!r} {two!r}"
    return None


def _outside(value: Value, one: Any) -> str | None:
    if isinstance(one, (tuple, list)) or one is None:
        return None
    if not value.dtypes & dtype_bit(one):
        return f"type not in {value!r}"
    if isinstance(one, torch.Tensor):
        if value.tensor == 0:
            return f"said to be no tensor: {value!r}"
        if value.bits & ZERO_DIM and one.dim():
            return "said to have no dimensions"
        if not one.numel():
            return None
        numbers = [float(item) for item in one.double().flatten().tolist()]
    else:
        if value.tensor == 2:
            return f"said to be a tensor: {value!r}"
        numbers = [float(one)]
    if value.is_const and value.const != one:
        return f"said to be {value.const!r}"
    largest = 65504.0 if dtype_bit(one) & LOW else 3e38
    for number in numbers:
        if math.isnan(number) or (math.isinf(number) and max(abs(value.lo), abs(value.hi)) >= largest):
            continue
        slack = 0.05 * abs(number) + 0.02 if dtype_bit(one) & ~(INT | BOOL | NUM) else 1e-9
        if not value.lo - slack <= number <= value.hi + slack:
            return f"{number} not in [{value.lo}, {value.hi}] of {value!r}"
        if value.bits & INTEGRAL and not math.isinf(number) and number != round(number):
            return f"{number} said to be whole"
        if value.bits & MAX_SUBTRACTED and number > 1e-6:
            return f"{number} of what its maximum was subtracted from"
        if value.bits & PROBABILITY and dtype_bit(one) & TENSORS and not -0.01 <= number <= 1.05:
            return f"{number} said to be a probability"
    return None


@MODES
@quickly
@given(body=programs(control=False))
def test_straight_programs_stay_within_what_is_said_of_them(mode: Mode, body: str):
    check(body, mode, in_place=False)


@MODES
@quickly
@given(body=programs(control=True))
def test_branches_loops_and_changes_in_place_stay_within_what_is_said_of_them(mode: Mode, body: str):
    check(body, mode, in_place=True)


@MODES
@pytest.mark.parametrize("form", [*UNARY, *WITH_CONSTANT], ids=str)
def test_every_operation_alone(mode: Mode, form: str):
    for name in ("h", "s"):
        for constant in ("0.5", "-2", "3") if "c" in form else ("1",):
            check(f"n = 1\nv = {_filled(form, {'x': name, 'c': f'({constant})'})}\nreturn (h, s, v, n)", mode, False)


@MODES
@pytest.mark.parametrize("form", [*BINARY], ids=str)
def test_every_pair_of_operands(mode: Mode, form: str):
    for left, right in (("h", "s"), ("s", "h"), ("h", "h"), ("s.mean()", "h"), ("h.relu()", "s.sigmoid()")):
        names = {"x": left, "y": right}
        check(f"n = 1\nv = {_filled(form, names)}\nreturn (h, s, v, n)", mode, False)


@MODES
@pytest.mark.parametrize("form", [*INPLACE], ids=str)
def test_every_change_in_place(mode: Mode, form: str):
    for start in ("h.clone()", "torch.zeros(4, 4)", "s.sigmoid()", "h.softmax(-1)"):
        change = _filled(form, {"x": "k", "y": "s"})
        body = f"n = 1\nk = {start}\nw = k\nu = k.view(-1)\n{change}\nreturn (k, w, s, k + 1, n)"
        check(body, mode, True)
