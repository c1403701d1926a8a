"""Floating-point formats and the experiments of the page about numerics: what its plots show and its text says."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from amp_runtime._scaling.loss_scale import LossScale

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with infinities and subnormal numbers, as in IEEE 754.

    Attributes:
        name: as in ``fp16``.
        exponent: the number of bits of the exponent.
        fraction: the number of bits of the fraction, without the leading one.
    """

    name: str
    exponent: int
    fraction: int

    @property
    def lowest(self) -> int:
        """The power of two of the smallest normal number."""
        return 2 - 2 ** (self.exponent - 1)

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return float((2 - 2.0**-self.fraction) * 2.0 ** (2 ** (self.exponent - 1) - 1))

    @property
    def smallest_normal(self) -> float:
        """The smallest number with all its digits."""
        return 2.0**self.lowest

    @property
    def smallest(self) -> float:
        """The smallest positive number."""
        return 2.0 ** (self.lowest - self.fraction)

    @property
    def epsilon(self) -> float:
        """The distance from one to the next larger number."""
        return 2.0**-self.fraction

    def spacing(self, x: npt.ArrayLike) -> Array:
        """The distance between neighbours at ``x``."""
        _, exponent = np.frexp(np.abs(np.asarray(x, dtype=np.float64)))
        return np.ldexp(1.0, np.maximum(exponent - 1, self.lowest) - self.fraction)

    def round(self, x: npt.ArrayLike) -> Array:
        """The nearest number of the format, ties to even; infinity beyond the largest."""
        wide = np.asarray(x, dtype=np.float64)
        quantum = self.spacing(wide)
        with np.errstate(invalid="ignore"):
            near = np.rint(wide / quantum) * quantum
            return np.where(np.abs(near) > self.largest, np.copysign(np.inf, near), near)


FP32 = Format("fp32", 8, 23)
TF32 = Format("tf32", 8, 10)
BF16 = Format("bf16", 8, 7)
FP16 = Format("fp16", 5, 10)
FORMATS = (FP32, TF32, BF16, FP16)


def running_sum(values: Iterable[float], accumulator: Format) -> Array:
    """The partial sums, each rounded to the accumulator's format."""
    total, found = 0.0, []
    for value in values:
        total = float(accumulator.round(total + value))
        found.append(total)
    return np.array(found)


def softmax(scores: Array, kind: Format, *, shifted: bool) -> Array:
    """A softmax over the first axis with every result rounded; ``shifted`` takes the maximum off first."""
    with np.errstate(all="ignore"):
        if shifted:
            scores = kind.round(scores - scores.max(axis=0))
        powers = kind.round(np.exp(scores))
        return kind.round(powers / kind.round(powers.sum(axis=0)))


def gradients(steps: int = 300) -> Array:
    """The sizes of the gradients of all activations of a small classifier after some training, without zeros."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, 256)
    x = random.normal(size=(10, 32))[labels] + 0.5 * random.normal(size=(256, 32))
    sizes = (32, 64, 64, 64, 10)
    weights = [random.normal(size=pair) * np.sqrt(2 / pair[0]) for pair in itertools.pairwise(sizes)]
    for _ in range(steps):
        layers = [x]
        for weight in weights[:-1]:
            layers.append(np.maximum(layers[-1] @ weight, 0))
        scores = layers[-1] @ weights[-1]
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        error = (powers / powers.sum(axis=1, keepdims=True) - np.eye(10)[labels]) / len(labels)
        found = []
        for index in reversed(range(len(weights))):
            found.append(error.ravel())
            change = layers[index].T @ error
            error = (error @ weights[index].T) * (layers[index] > 0)
            weights[index] = weights[index] - 0.1 * change
    every = np.abs(np.concatenate(found))
    return every[every > 0]


def lost(values: Array, kind: Format, scale: float = 1.0) -> float:
    """The share of the values that become zero when they are multiplied by the scale and stored."""
    return float(np.mean(kind.round(values * scale) == 0))


@dataclass(frozen=True)
class Scaling:
    """A training run with a dynamic loss scale, step by step."""

    scales: Array
    skipped: npt.NDArray[np.bool_]
    gradients: Array


GROWTH_INTERVAL = 50
OUTLIER, TOO_LARGE = 260, 1000


def dynamic_scaling(steps: int = 500) -> Scaling:
    """Least squares whose gradients are scaled and stored in fp16, with one batch that is too large."""
    random = np.random.default_rng(1)
    wanted, weights = random.normal(size=16), np.zeros(16)
    state = LossScale(2.0**16)
    scales, skipped, largest = [], [], []
    for step in range(steps):
        x = random.normal(size=(32, 16)) * (TOO_LARGE if step == OUTLIER else 1)
        gradient = x.T @ (x @ weights - x @ wanted) / len(x)
        scaled = FP16.round(gradient * state.value)
        overflowed = not np.isfinite(scaled).all()
        scales.append(state.value)
        skipped.append(overflowed)
        largest.append(np.abs(gradient).max())
        if not overflowed:
            weights -= 0.01 * scaled / state.value
        found = torch.tensor(float(overflowed))
        state.follow(found, growth=2.0, backoff=0.5, interval=GROWTH_INTERVAL, floor=2.0**-24, ceiling=2.0**24)
    return Scaling(np.array(scales), np.array(skipped), np.array(largest))


SHARES = (1, 2, 4, 8, 16, 32)
EPSILONS = (1e-10, 1e-3)


def in_shares(values: npt.NDArray[np.float32], shares: int) -> np.float32:
    """The sum that several processes get of the same values: each that of its own part, then all of them together."""
    parts = [np.cumsum(part, dtype=np.float32)[-1] for part in np.split(values, shares)]
    return np.cumsum(np.array(parts, dtype=np.float32), dtype=np.float32)[-1]


def reassociated(shares: int, runs: int = 64, size: int = 4096) -> Array:
    """The relative differences between one process's sum and that of several, over random values."""
    random = np.random.default_rng(2)
    found = []
    for _ in range(runs):
        values = random.random(size, dtype=np.float32)
        alone = in_shares(values, 1)
        found.append(abs(float(in_shares(values, shares)) - float(alone)) / float(alone))
    return np.array(found)
