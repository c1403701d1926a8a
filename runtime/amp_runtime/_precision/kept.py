"""What a further call of ``amp.init`` keeps of earlier ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ParamSpec

from amp_runtime._core.context import context
from amp_runtime._precision.names import operation
from amp_runtime._precision.properties import positive

P = ParamSpec("P")
_LIMITS = ("min_scale", "max_scale")
_LISTS = ("custom_white_list", "custom_black_list")
_offered: dict[str, Any] = {}


def keeping(init: Callable[P, None]) -> Callable[P, None]:
    """``amp.init``, whose calls keep the arguments that earlier ones gave and they do not give themselves."""

    @functools.wraps(init)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        said: dict[str, Any] = {**dict(zip(("opt_level",), args, strict=False)), **kwargs}
        said.update({name: list(said[name]) for name in _LISTS if isinstance(said.get(name), Iterator)})
        kept = {name: value for name, value in context.said.items() if name not in said}
        fitting = _fitting(kept, said)
        _offered.clear()
        _offered.update({**kept, **fitting, **said})
        init(*args, **{**fitting, **kwargs, **{name: said[name] for name in _LISTS if name in said}})

    return call


def remember() -> None:
    """Has later calls of ``amp.init`` keep what the present one goes by; see :func:`keeping`."""
    context.said = dict(_offered)


def _fitting(kept: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """``kept`` without what contradicts ``said``: nobody has to take back what was given before."""
    fitting = dict(kept)
    if {**kept, **said}.get("opt_level", "O1") == "O1":
        for name in ("keep_batchnorm_fp32", "master_weights"):
            fitting.pop(name, None)
    for own, other in (_LIMITS, _LIMITS[::-1]):
        if own in kept and other in said:
            lowest, highest = (positive({**kept, **said}[name]) for name in _LIMITS)
            if lowest is not None and highest is not None and lowest > highest:
                fitting[own] = said[other]
    for own, other in (_LISTS, _LISTS[::-1]):
        taken = said.get(other, ())
        if own in kept and isinstance(taken, Iterable) and not isinstance(taken, str):
            moved = {operation(name, "amp.init", other) for name in taken}
            fitting[own] = [name for name in kept[own] if operation(name, "amp.init", own) not in moved]
    return fitting
