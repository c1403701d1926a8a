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

_LARGEST = torch.finfo(torch.float16).max


def _with_mask_held(
    place: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if name in kwargs:
        return args, {**kwargs, name: held(kwargs[name])}
    return (*args[:place], *map(held, args[place : place + 1]), *args[place + 1 :]), kwargs


def held(mask: Any) -> Any:
    """A mask whose finite numbers are finite in float16, too, where autocast is about to make it that."""
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.float32:
        return mask
    kind = mask.device.type
    if not torch.is_autocast_enabled(kind) or torch.get_autocast_dtype(kind) is not torch.float16:
        return mask
    is_beyond = mask.isfinite() & (mask.abs() > _LARGEST)
    return torch.where(is_beyond, mask.sign() * (_LARGEST / 2), mask)


CHANGES = (
    (functional, "scaled_dot_product_attention", functools.partial(_with_mask_held, 3, "attn_mask")),
    (torch, "baddbmm", functools.partial(_with_mask_held, 0, "input")),
)
"""What adds a mask to scores, by the place and the name of the mask among the arguments.

The second is what ``nn.MultiheadAttention`` calls where its weights are asked for.
"""
