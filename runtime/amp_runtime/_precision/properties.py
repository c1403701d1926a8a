"""What an opt level means, and how the arguments of ``amp.init`` change it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

from amp_runtime._core.context import CAST_POLICIES, DTYPES, OPT_LEVELS, CastPolicy, DtypeName, OptLevel, context
from amp_runtime._precision.names import operations

LossScale = float | Literal["dynamic"]

OUTPUT_DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp64": torch.float64,
}
_HALF_NAMES: dict[Any, DtypeName] = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_WORDS: dict[Any, bool | None] = {"True": True, "true": True, "False": False, "false": False, "None": None}


@dataclass(frozen=True)
class Properties:
    """The resolved settings of precision, with the names that they have in the context.

    Attributes:
        opt_level: the level in force.
        dtype_name: ``"auto"``, ``"fp16"`` or ``"bf16"``.
        loss_scale: ``"dynamic"`` or the fixed scale.
        scales_always: whether ``AMP_LOSS_SCALE`` fixed it, for every level and type.
        init_scale: the dynamic scale to begin with, not above ``max_scale``.
        min_scale: its floor; ``None`` leaves it to the scaler.
        max_scale: its ceiling.
        growth_interval: the number of good steps in a row after which it doubles.
        num_losses: the number of losses with a scale each.
        keep_batchnorm_fp32: whether batch norm stays float32; ``None`` where the level casts no model.
        master_weights: whether half parameters have float32 masters; ``None`` where the level casts no model.
        cast_model_outputs: the dtype asked for; ``None`` is the level's own: untouched at O0, float32 for
            half outputs from O1.
        cast_policy: the operations that autocast casts; ``None`` decides by device.
        custom_white_list: further operations to run in half.
        custom_black_list: further operations to run in float32.
        combine_grad: whether gradients are kept in flat buffers.
    """

    opt_level: OptLevel
    dtype_name: DtypeName
    loss_scale: LossScale
    scales_always: bool
    init_scale: float
    min_scale: float | None
    max_scale: float
    growth_interval: int
    num_losses: int
    keep_batchnorm_fp32: bool | None
    master_weights: bool | None
    cast_model_outputs: torch.dtype | None
    cast_policy: CastPolicy | None
    custom_white_list: tuple[str, ...]
    custom_black_list: tuple[str, ...]
    combine_grad: bool

    def table(self) -> str:
        """A line for each property, with its value as it would be written in a call."""
        width = max(len(entry.name) for entry in fields(self))
        return "\n".join(f"  {entry.name:<{width}}  {getattr(self, entry.name)!r}" for entry in fields(self))


def current() -> Properties:
    """The properties in force, as the context holds them."""
    return Properties(**{entry.name: getattr(context, entry.name) for entry in fields(Properties)})


def put_in_force(properties: Properties) -> bool:
    """Writes them into the context; returns whether any of them differs from what was there."""
    changed = properties != current()
    for entry in fields(properties):
        setattr(context, entry.name, getattr(properties, entry.name))
    return changed


# The level's own values, where its model is half.
_KEEP_BATCHNORM: dict[OptLevel, bool | None] = {"O0": None, "O1": None, "O2": True, "O3": False}
_MASTERS: dict[OptLevel, bool | None] = {"O0": None, "O1": None, "O2": True, "O3": False}


def resolve(
    opt_level: str,
    *,
    override: Any,
    enabled: Any,
    dtype: Any,
    loss_scale: Any,
    init_scale: Any,
    min_scale: Any,
    max_scale: Any,
    growth_interval: Any,
    keep_batchnorm_fp32: Any,
    master_weights: Any,
    cast_model_outputs: Any,
    num_losses: Any,
    cast_policy: Any,
    custom_white_list: Any,
    custom_black_list: Any,
    combine_grad: Any,
) -> Properties:
    """Checks the arguments of ``amp.init``, and merges them with the level's own properties.

    Every argument is checked at every level. Those that the level in force has no use for are dropped where
    ``override``, ``AMP_OPT_LEVEL`` or ``enabled=False`` chose it, so that one script runs at all of them.

    Raises:
        ValueError: an argument or ``AMP_OPT_LEVEL``, ``AMP_DTYPE`` or ``AMP_LOSS_SCALE`` is not allowed, or contradicts
            the level.
    """
    asked, named = half_name("amp.init", dtype), dtype_of_environment()
    level, chosen_elsewhere = _level(opt_level, override, flag("enabled", enabled))
    keep = flag("keep_batchnorm_fp32", keep_batchnorm_fp32, optional=True)
    own_masters = flag("master_weights", master_weights, optional=True)
    outputs = _output_dtype(cast_model_outputs)
    if level == "O1" and not chosen_elsewhere:
        _refuse_at_o1("keep_batchnorm_fp32", keep, "batch norm is in float32 anyway")
        _refuse_at_o1("master_weights", own_masters, "they are their own masters")
    half_model = level in ("O2", "O3")
    lowest = None if min_scale is None else _number("min_scale", min_scale)
    highest = _number("max_scale", max_scale)
    if lowest is not None and lowest > highest:
        raise ValueError(f"amp.init got min_scale={min_scale!r} above max_scale={max_scale!r}; allowed: at most it")
    first = min(_number("init_scale", init_scale), highest)
    white, black = _names("custom_white_list", custom_white_list), _names("custom_black_list", custom_black_list)
    operations(white, black, "amp.init")
    scale, fixed = _loss_scale(loss_scale), fixed_loss_scale()
    return Properties(
        opt_level=level,
        dtype_name=named if asked == "auto" and named is not None else asked,
        loss_scale=scale if fixed is None else fixed,
        scales_always=fixed is not None,
        init_scale=first if lowest is None else max(first, lowest),
        min_scale=lowest,
        max_scale=highest,
        growth_interval=_count("growth_interval", growth_interval),
        num_losses=_count("num_losses", num_losses),
        keep_batchnorm_fp32=_KEEP_BATCHNORM[level] if keep is None or not half_model else keep,
        master_weights=_MASTERS[level] if own_masters is None or not half_model else own_masters,
        cast_model_outputs=None if level == "O0" and chosen_elsewhere else outputs,
        cast_policy=_policy(cast_policy),
        custom_white_list=white,
        custom_black_list=black,
        combine_grad=bool(flag("combine_grad", combine_grad)),
    )


def half_name(caller: str, dtype: Any) -> DtypeName:
    """``dtype`` as one of the names of a half type; torch's own types are taken too.

    Raises:
        ValueError: it is neither.
    """
    name = _HALF_NAMES.get(dtype, dtype) if isinstance(dtype, (str, torch.dtype)) else None
    for allowed in DTYPES:
        if name == allowed:
            return allowed
    raise ValueError(f"{caller} got dtype={dtype!r}; allowed: {', '.join(map(repr, DTYPES))}")


def dtype_of_environment() -> DtypeName | None:
    """The half type that ``AMP_DTYPE`` names in place of ``auto``; ``None`` without it.

    Raises:
        ValueError: it is no name of one.
    """
    text = os.environ.get("AMP_DTYPE", "").strip()
    for allowed in DTYPES:
        if text == allowed:
            return allowed
    if text:
        raise ValueError(f"AMP_DTYPE={text!r} in the environment; allowed: {', '.join(map(repr, DTYPES))}")
    return None


def _level(opt_level: Any, override: Any, enabled: bool | None) -> tuple[OptLevel, bool]:
    """The level in force, and whether another place than the argument ``opt_level`` chose it."""
    if override is not None:
        return _known_level(override, f"amp.init got override={override!r}"), True
    text = os.environ.get("AMP_OPT_LEVEL", "").strip()
    if text:
        return _known_level(text, f"AMP_OPT_LEVEL={text!r} in the environment"), True
    level = _known_level(opt_level, f"amp.init got opt_level={opt_level!r}")
    return (level, False) if enabled else ("O0", True)


def _known_level(text: Any, source: str) -> OptLevel:
    for level in OPT_LEVELS:
        if text == level:
            return level
    raise ValueError(f"{source}; allowed: {', '.join(map(repr, OPT_LEVELS))} (the letter O, not zero)")


def _refuse_at_o1(name: str, value: bool | None, reason: str) -> None:
    if value is not None:
        raise ValueError(
            f"amp.init got {name}={value!r} with opt_level='O1'; allowed there: None. O1 leaves the weights in "
            f"float32, so {reason}"
        )


def flag(name: str, value: Any, optional: bool = False) -> bool | None:
    """A bool, also as argparse gives it: ``"True"``."""
    chosen = _WORDS.get(value, value) if isinstance(value, str) else value
    if isinstance(chosen, bool) or (optional and chosen is None):
        return chosen
    allowed = "True, False, 'True', 'False'" + (", None" if optional else "")
    raise ValueError(f"amp.init got {name}={value!r}; allowed: {allowed}")


def fixed_loss_scale() -> float | None:
    """The loss scale that ``AMP_LOSS_SCALE`` fixes for every level and type; ``None`` without it.

    Raises:
        ValueError: it is no positive number.
    """
    text = os.environ.get("AMP_LOSS_SCALE", "").strip()
    number = positive(text)
    if text and number is None:
        raise ValueError(f"AMP_LOSS_SCALE={text!r} in the environment; allowed: a positive number")
    return number


def _loss_scale(value: Any) -> LossScale:
    if value is None or value == "dynamic":
        return "dynamic"
    number = positive(value)
    if number is None:
        raise ValueError(f"amp.init got loss_scale={value!r}; allowed: 'dynamic' or a positive number")
    return number


def _number(name: str, value: Any) -> float:
    number = positive(value)
    if number is None:
        raise ValueError(f"amp.init got {name}={value!r}; allowed: a positive number")
    return number


def positive(value: Any) -> float | None:
    """A positive finite number, also as a string, or ``None``."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def _count(name: str, value: Any) -> int:
    number = positive(value)
    if number is None or number != int(number):
        raise ValueError(f"amp.init got {name}={value!r}; allowed: a positive whole number")
    return int(number)


def _output_dtype(value: Any) -> torch.dtype | None:
    chosen = OUTPUT_DTYPES.get(value) if isinstance(value, str) else value
    if (value is None) or (isinstance(chosen, torch.dtype) and chosen.is_floating_point):
        return chosen
    names = ", ".join(map(repr, OUTPUT_DTYPES))
    raise ValueError(f"amp.init got cast_model_outputs={value!r}; allowed: None, {names}, a floating torch.dtype")


def _policy(value: Any) -> CastPolicy | None:
    if value is None:
        return None
    for policy in CAST_POLICIES:
        if value == policy:
            return policy
    raise ValueError(f"amp.init got cast_policy={value!r}; allowed: None, {', '.join(map(repr, CAST_POLICIES))}")


def _names(name: str, value: Any) -> tuple[str, ...]:
    names = None if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if names is None or not all(isinstance(entry, str) for entry in names):
        raise ValueError(f"amp.init got {name}={value!r}; allowed: names of operations, as in ('bmm', 'softmax')")
    return tuple(sorted(names))
