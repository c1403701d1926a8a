"""AdamW (Loshchilov and Hutter, 2019, https://arxiv.org/abs/1711.05101)."""

from __future__ import annotations

import inspect

import torch

from amp_runtime.optim._fused import Fused


class AdamW(Fused, torch.optim.AdamW):
    """``torch.optim.AdamW`` that uses the fused kernel from O1 on, where there is one for its parameters.

    Arguments, state and checkpoints are torch's. At O0, or when ``foreach``, ``fused``, ``capturable`` or
    ``differentiable`` is given, it is torch's optimizer and nothing else.
    """

    _kind = torch.optim.AdamW


AdamW.__signature__ = inspect.signature(torch.optim.AdamW)  # type: ignore[attr-defined]
