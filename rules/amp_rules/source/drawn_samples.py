"""Calls of scikit-learn that draw a set of samples anew: ``x, y = make_moons(64, noise=0.1)``."""

from __future__ import annotations

import ast
from collections.abc import Collection

from amp_rules.source.syntax import is_none
from amp_rules.torch.data import ALIKE_WITHOUT_NOISE, MAKES_SAMPLES


def draws_samples(names: Collection[str], call: ast.Call) -> bool:
    """Whether a call of these names draws samples from NumPy's generator of the process.

    One that is given a seed gives the same each time, and circles and moons are points of a curve until noise moves
    them. Arguments that a call unpacks could hold a seed.
    """
    if not names or not all(name.startswith(MAKES_SAMPLES) for name in names):
        return False
    given = {item.arg: item.value for item in call.keywords}
    if None in given or any(isinstance(item, ast.Starred) for item in call.args) or len(call.args) > _BEFORE_THE_SEED:
        return False
    if not is_none(given.get("random_state", _NONE)):
        return False
    noise = given.get("noise", _NONE)
    is_noisy = not isinstance(noise, ast.Constant) or bool(noise.value)
    return is_noisy or not any(name.rpartition(".")[2] in ALIKE_WITHOUT_NOISE for name in names)


_NONE = ast.Constant(None)

_BEFORE_THE_SEED = 2
"""Sizes are all that is given by place; in old versions the seed could be, after them."""
