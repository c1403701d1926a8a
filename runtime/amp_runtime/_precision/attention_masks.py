"""Numbers of an attention mask that float16 has not, which autocast would make infinite.

A mask of float32 is added to the scores: ``F.scaled_dot_product_attention(q, k, v, attn_mask=mask)``, and likewise in
``nn.MultiheadAttention``. Autocast makes it half first, and -1e9 becomes minus infinity. A row that is masked
altogether, as that of a padded query is, had a finite softmax in the original for the sake of that number, and is NaN
or zero now. So numbers beyond float16 become the half of its largest one, which leaves room for the scores. What is
infinite stays so, as does all that float16 holds.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional

from amp_runtime._precision.policy import casting

_LARGEST = torch.finfo(torch.float16).max

_MASKED: tuple[tuple[Any, str, int, str], ...] = (
    (functional, "scaled_dot_product_attention", 3, "attn_mask"),
    (torch, "baddbmm", 0, "input"),
)
"""What adds a mask to scores: the place and the name of the mask among the arguments.

The second is what ``nn.MultiheadAttention`` calls where its weights are asked for.
"""

_replaced: list[tuple[Any, str, Any]] = []


def follow(wanted: bool) -> None:
    """Has masks keep their finite numbers, or gives torch's own functions back."""
    if wanted and not _replaced:
        for space, name, place, argument in _MASKED:
            _replace(space, name, place, argument)
    elif _replaced and not wanted:
        while _replaced:
            space, name, original = _replaced.pop()
            setattr(space, name, original)


def _replace(space: Any, name: str, place: int, argument: str) -> None:
    original = getattr(space, name)
    if "amp_original" in getattr(original, "__dict__", ()):
        return  # registered by the script, which chose a precision

    @functools.wraps(original)
    def holding(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not casting():
            return original(*args, **kwargs)
        if argument in kwargs:
            kwargs[argument] = held(kwargs[argument])
        elif len(args) > place:
            args = (*args[:place], held(args[place]), *args[place + 1 :])
        return original(*args, **kwargs)

    holding.amp_original = original  # type: ignore[attr-defined]
    _replaced.append((space, name, original))
    setattr(space, name, holding)
    # TorchScript knows torch's functions by identity, and would try to compile this one.
    torch.jit._builtins._register_builtin(holding, f"aten::{name}")


def held(mask: Any) -> Any:
    """A mask whose finite numbers are finite in float16, too, where autocast is about to make it that."""
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.float32:
        return mask
    kind = mask.device.type
    if not torch.is_autocast_enabled(kind) or torch.get_autocast_dtype(kind) is not torch.float16:
        return mask
    is_beyond = mask.isfinite() & (mask.abs() > _LARGEST)
    return torch.where(is_beyond, mask.sign() * (_LARGEST / 2), mask)
