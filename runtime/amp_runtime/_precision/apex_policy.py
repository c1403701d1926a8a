"""What Apex does at O1, for ``cast_policy="apex"``."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from amp_runtime._core.context import HALF_DTYPES
from amp_runtime._precision import cast_tables, rules
from amp_runtime._precision.rules import Function, castable, closed


def follow(builder: Any, native_floats: Set[str]) -> None:
    """Puts Apex's tables into a builder of actions, but for what autocast runs in float32 as well."""
    builder.put(cast_tables.APEX_FLOAT - native_floats, rules.in_float)
    builder.put(cast_tables.APEX_FLOAT, None, refused_in_place)
    builder.put(cast_tables.APEX_PROMOTE, rules.in_widest)
    builder.put(cast_tables.APEX_REFUSED, refused_in_half)


def refused_in_half(kind: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Raises for half tensors, as Apex does for the same function."""
    if any(tensor.dtype in HALF_DTYPES for tensor in castable(kind, (args, kwargs))):
        raise NotImplementedError(
            f"torch.nn.functional.{function.__name__} does not run on half tensors under cast_policy='apex'. Use "
            "torch.nn.functional.binary_cross_entropy_with_logits, amp.float_function, or custom_black_list="
            f"{{{function.__name__!r}}}."
        )
    return closed(kind, function, args, kwargs)


def refused_in_place(kind: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Raises for half tensors, because what is written in place cannot become float32."""
    if any(tensor.dtype in HALF_DTYPES for tensor in castable(kind, (args, kwargs))):
        name = function.__name__
        raise NotImplementedError(
            f"{name} runs in float32 under cast_policy='apex' and cannot write into a half tensor; use "
            f"{name.strip('_')} without the underscore"
        )
    return function(*args, **kwargs)
