"""Checks of optimizer arguments; every error repeats the value and says what is allowed."""

from __future__ import annotations

import math
from typing import Any

import torch


def number(
    owner: str,
    name: str,
    value: Any,
    *,
    at_least: float = 0.0,
    below: float = math.inf,
    optional: bool = False,
) -> None:
    """Refuses what is not a number of ``[at_least, below)``.

    Args:
        owner: the class that was called.
        name: its argument.
        value: what was given; a tensor of one element is accepted.
        at_least: the smallest number allowed.
        below: the first number that is too large.
        optional: whether ``None`` is allowed.

    Raises:
        TypeError: it is not a number.
        ValueError: it is out of range.
    """
    if optional and value is None:
        return
    allowed = f"a number of at least {at_least:g}" + ("" if below == math.inf else f" and below {below:g}")
    allowed += " or None" if optional else ""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ValueError(f"{owner} got {name}={value!r}; allowed: {allowed}")
        if value.device.type != "cpu":
            return  # asking would wait for the device
    elif isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise TypeError(f"{owner} got {name}={value!r}; allowed: {allowed}")
    if not at_least <= float(value) < below:
        raise ValueError(f"{owner} got {name}={value!r}; allowed: {allowed}")


def pair(owner: str, name: str, value: Any) -> None:
    """Refuses what is not two numbers of ``[0, 1)``.

    Raises:
        TypeError: it is not a pair.
        ValueError: one of them is out of range.
    """
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{owner} got {name}={value!r}; allowed: two numbers of at least 0 and below 1")
    for index, one in enumerate(value):
        number(owner, f"{name}[{index}]", one, below=1.0)


def choice(owner: str, name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Refuses what is not one of ``allowed``.

    Raises:
        ValueError: it is something else.
    """
    if not any(value is one or (type(value) is type(one) and value == one) for one in allowed):
        raise ValueError(f"{owner} got {name}={value!r}; allowed: {', '.join(map(repr, allowed))}")


def no_amsgrad(owner: str, amsgrad: bool) -> None:
    """Refuses ``amsgrad=True``, as Apex does.

    Raises:
        RuntimeError: it is true.
    """
    if amsgrad:
        raise RuntimeError(f"{owner} got amsgrad={amsgrad!r}; allowed: False (amp.optim.Adam has AMSGrad)")
