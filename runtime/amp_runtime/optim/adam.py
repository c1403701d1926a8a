"""Adam (Kingma and Ba, 2015, https://arxiv.org/abs/1412.6980)."""

from __future__ import annotations

import inspect

import torch

from amp_runtime.optim._fused import Fused


class Adam(Fused, torch.optim.Adam):
    """``torch.optim.Adam`` that uses the fused kernel from O1 on, where there is one for its parameters.

    Arguments, state and checkpoints are torch's. At O0, or when ``foreach``, ``fused``, ``capturable`` or
    ``differentiable`` is given, it is torch's optimizer and nothing else.
    """

    _kind = torch.optim.Adam


Adam.__signature__ = inspect.signature(torch.optim.Adam)  # type: ignore[attr-defined]
