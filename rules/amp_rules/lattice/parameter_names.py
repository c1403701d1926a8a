"""What names of parameters say of types: never enough for a finding, enough to doubt one."""

from __future__ import annotations

import re
from functools import lru_cache

from amp_rules.lattice.abstract_values import BOOL, INT, NUM

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_MASKS = frozenset("mask masks valid padding where condition cond inlier inliers".split())
_INTEGERS = frozenset(
    """
    index indices idx inds ids id label labels target targets length lengths len lens count counts num step steps size
    sizes pos position positions timestep timesteps
    """.split()
)
_NUMBERS = frozenset(
    "eps epsilon alpha beta gamma dim axis k p temperature scale lr weight_decay momentum ratio".split()
)


@lru_cache(maxsize=4096)
def possible_types(name: str, *, number: bool = False) -> int:
    """The types that a parameter of this name may have besides floating-point ones, by its last word.

    Args:
        name: of the parameter: ``key_padding_mask``, ``targetIds``.
        number: whether it may be a number of Python as well.
    """
    words = _WORDS.findall(name)
    while len(words) > 1 and len(words[-1]) == 1:
        words.pop()  # Which one of several: ``mask_l``.
    last = words[-1].lower() if words else ""
    types = 0
    if last in _MASKS:
        types |= BOOL | INT
    if last in _INTEGERS or last.endswith(("lens", "lengths")):  # ``hlens``, ``ylens``
        types |= INT
    if number and (name.startswith(("num_", "n_")) or name.lower() in _NUMBERS):
        types |= NUM
    return types
