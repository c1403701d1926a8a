"""Stochastic gradient descent with momentum (Sutskever et al., 2013)."""

from __future__ import annotations

import inspect

import torch

from amp_runtime.optim._fused import Fused


class SGD(Fused, torch.optim.SGD):
    """``torch.optim.SGD`` that uses the fused kernel from O1 on, where there is one for its parameters.

    Arguments, state and checkpoints are torch's. At O0, or when ``foreach``, ``fused``, ``capturable`` or
    ``differentiable`` is given, it is torch's optimizer and nothing else.
    """

    _kind = torch.optim.SGD


SGD.__signature__ = inspect.signature(torch.optim.SGD)  # type: ignore[attr-defined]
