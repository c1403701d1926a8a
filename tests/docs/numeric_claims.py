"""What docs/numerics.md says, with every number computed here."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from functools import lru_cache

import amp_runtime as amp
import formats
import numpy as np
from formats import BF16, FORMATS, FP16, FP32


def short(x: float, digits: int = 2) -> str:
    """A number as the page writes it: 5.96e-8."""
    mantissa, _, exponent = f"{x:.{digits}e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def smallest_where(condition, low: float, high: float) -> float:
    """The point from which on a condition holds, between two points, by bisection."""
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if condition(middle) else (middle, high)
    return high


def is_infinite(kind):
    return lambda x: bool(np.isinf(kind.round(math.exp(x))))


def is_one(kind):
    return lambda x: bool(kind.round(1 / (1 + math.exp(-x))) == 1)


@lru_cache(maxsize=1)
def claims() -> tuple[str, ...]:
    """Every sentence or row of the page that holds a number."""
    return tuple(_claims())


def _claims() -> Iterator[str]:
    for kind in FORMATS:
        sizes = (kind.largest, kind.smallest_normal, kind.smallest, kind.epsilon)
        row = [kind.name, f"{kind.exponent} bits", f"{kind.fraction} bits", *map(short, sizes)]
        yield f"| {' | '.join(row)} |"
    yield f"reach from about {short(FP32.smallest_normal, 0)} to {short(FP32.largest, 0)}"
    yield (
        f"fp16 only from {short(FP16.smallest_normal, 0)} to {FP16.largest:.0f}, with a pale part down to "
        f"{short(FP16.smallest, 0)}"
    )
    low, high = ([short(kind.epsilon * part, 0) for kind in (FP16, BF16)] for part in (0.5, 1))
    yield (
        f"near {short(FP32.epsilon, 0)} for fp32, between {low[0]} and {high[0]} for tf32 and fp16, between {low[1]} "
        f"and {high[1]} for bf16. Below {short(FP16.smallest_normal, 0)} the line"
    )
    yield f"ends at {FP16.largest:.0f}; what is larger by rounding"
    after = 256 + float(BF16.spacing(256))
    yield f"after 256 comes {after:.0f}"

    yield from _gradients()
    yield from _loss_scale()
    yield from _sums()

    ends = [f"{smallest_where(is_infinite(kind), 1, 100):.2f}" for kind in (FP16, FP32, BF16)]
    assert ends[1] == ends[2]
    yield f"The exponential is infinite above {ends[0]} in fp16, above {ends[1]} in fp32 and bf16"
    yield f"ends where exp overflows, at {ends[0]}"
    ends = [smallest_where(is_one(kind), 1, 30) for kind in (FP16, BF16)]
    yield f"it becomes 1 exactly, in fp16 from a score of {ends[0]:.2f} on and in bf16 from {ends[1]:.2f}"

    yield from _epsilons()

    big, one = np.float32(100_000_000), np.float32(1)
    yield f"In fp32, 100000000 + 1 - 100000000 is {big + one - big:.0f}, and"
    yield f"100000000 - 100000000 + 1 is {big - big + one:.0f}, because"
    yield f"neighbours at 100000000 are {float(FP32.spacing(1e8)):.0f} apart"
    apart = formats.reassociated(2)
    assert formats.reassociated(1).max() == 0
    yield f"With 2 processes half of the sums differ by more than {short(np.median(apart), 1)}"
    assert apart.max() <= 2.4e-6
    yield f"none by more than {short(_up(apart.max(), 7), 1)}"
    yield f"shared among {formats.SHARES[0]} to {formats.SHARES[-1]} processes"
    yield f"scatter up to about {short(apart.max(), 0)}"
    yield f": {len(apart)} sets of numbers for each number of processes"


def _gradients() -> Iterator[str]:
    steps = inspect.signature(formats.gradients).parameters["steps"].default
    yield f"after {steps} steps of training:"
    values = formats.gradients()
    assert values.max() < FP16.smallest_normal
    yield f"{100 * formats.lost(values, FP16):.0f} % of them would be zero, and all others would have fewer digits"
    scale = inspect.signature(amp.init).parameters["init_scale"].default
    assert formats.lost(values, FP16, scale) == 0
    assert formats.lost(values, BF16) == 0
    yield f"they lie around two to the minus {-math.log2(np.median(values)):.0f}, and a part"
    yield f"smallest number, two to the minus {-math.log2(FP16.smallest):.0f}."
    yield f"Scaled by two to the {math.log2(scale):.0f} all of them"
    yield f"with the scale of {scale:.0f} none is zero"
    yield f"with the loss multiplied by {scale:.0f}."


def _loss_scale() -> Iterator[str]:
    defaults = {name: item.default for name, item in inspect.signature(amp.init).parameters.items()}
    yield f"it begins at {defaults['init_scale']:.0f}, doubles after {defaults['growth_interval']} good steps in a row"
    yield f"never beyond {defaults['max_scale']:.0f}"
    yield f"grows after every {formats.GROWTH_INTERVAL} good steps"
    run = formats.dynamic_scaling()
    yield f"The loss scale over {len(run.scales)} steps, as a staircase"
    yield f"then doubles every {formats.GROWTH_INTERVAL} steps"
    first, second, third = np.flatnonzero(run.skipped)
    assert third == formats.OUTLIER and run.scales[-1] > run.scales[third]
    yield f"In this run {run.skipped.sum()} steps of {len(run.scales)} are skipped: steps {first} and {second}, because"
    yield f"and step {third}, whose batch was made {formats.TOO_LARGE} times too large"
    yield f"after {amp.scaler.max_skips} the runtime raises"


def _sums() -> Iterator[str]:
    ends = {kind: formats.running_sum(np.ones(4096), kind)[-1] for kind in (FP32, FP16, BF16)}
    assert ends[FP32] == 4096
    apart = float(FP16.spacing(ends[FP16]))
    yield f"At {ends[FP16]:.0f} neighbours in fp16 are {apart:.0f} apart, so one more"
    yield "a sum of 4096 ones stays there"
    yield "up to 4096 ones. Added up in fp32 it is a straight line"
    yield f"in fp16 it stays at {ends[FP16]:.0f}, in bf16 at {ends[BF16]:.0f}"
    yield f"In bf16 it stays at {ends[BF16]:.0f}."


def _epsilons() -> Iterator[str]:
    half = FP16.smallest / 2
    assert FP16.round(half) == 0 and FP16.round(half * 1.001) > 0
    low, high = (short(bound, 0) for bound in formats.EPSILONS)
    yield f"over its size from {low} to {high}. bf16 keeps all of it."
    yield f"fp16 keeps nothing below {short(half, 0)}, twice the number at that point"
    assert round(float(FP16.round(half * 1.001)) / half, 1) == 2
    assert half > 1e-8
    yield "`x / (x.norm() + 1e-8)` divides by zero in fp16 where the norm is zero"
    yield f": 1e-8 is below half of the smallest number, {short(half)}"
    yield f"is stored as {float(FP16.round(1e-8)):.0f}"
    yield f"1e-7 becomes {short(float(FP16.round(1e-7)))}"
    yield f"1e-6 is kept to within {_off(FP16, 1e-6):.1f} %"
    yield f"bf16 keeps 1e-8 to within {_off(BF16, 1e-8):.1f} %"
    bound = BF16.epsilon / 2
    assert BF16.round(1 + bound) == 1 and BF16.round(1 + bound * 1.01) > 1
    yield f"one plus an epsilon below {short(bound)} is one"


def _off(kind, x: float) -> float:
    """By how much a number is changed, in per cent, rounded up."""
    return _up(100 * abs(float(kind.round(x)) / x - 1), 1)


def _up(x: float, digits: int = 2) -> float:
    return math.ceil(x * 10**digits) / 10**digits
