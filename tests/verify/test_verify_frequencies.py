"""Two series of draws are told apart where their samplers differ, and not by chance."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from amp_migrate.verify.checks.frequencies import apart, repeats

Draw = Callable[[random.Random], Sequence[int]]


def weighted(chance: random.Random) -> list[int]:
    return chance.choices(range(200), [10] * 20 + [1] * 180, k=16)


def uniform(chance: random.Random) -> list[int]:
    return chance.choices(range(200), k=16)


def some_of_each_class(chance: random.Random) -> list[int]:
    classes = chance.sample(range(6), 3)
    return [sample for one in classes for sample in chance.sample(range(20 * one, 20 * one + 20), 4)]


def batches(draw: Draw, count: int, chance: random.Random) -> list[Sequence[int]]:
    return [draw(chance) for _ in range(count)]


@pytest.mark.parametrize("draw", [weighted, uniform, some_of_each_class])
def test_one_sampler_is_never_told_from_itself(draw: Draw) -> None:
    chance = random.Random(1)
    for count in (16, 20, 60):
        for _ in range(50):
            one, other = batches(draw, count, chance), batches(draw, count // 2, chance)
            assert not apart(one, other) and not repeats(one, other)


def test_other_weights_are_told() -> None:
    chance = random.Random(1)
    for _ in range(50):
        assert apart(batches(weighted, 64, chance), batches(uniform, 64, chance))


def test_a_pass_without_a_repeat_is_told_from_draws_with_replacement() -> None:
    chance = random.Random(1)
    order = chance.sample(range(200), 192)
    whole = [order[start : start + 16] for start in range(0, 192, 16)]
    assert repeats(batches(weighted, 12, chance), whole) and repeats(batches(uniform, 12, chance), whole)


def test_a_few_batches_tell_nothing() -> None:
    chance = random.Random(1)
    assert apart(batches(weighted, 8, chance), batches(uniform, 8, chance)) is None
