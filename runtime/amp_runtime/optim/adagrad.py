"""Adagrad (Duchi et al., 2011, https://jmlr.org/papers/v12/duchi11a.html)."""

from __future__ import annotations

import inspect

import torch

from amp_runtime.optim._fused import Fused


class Adagrad(Fused, torch.optim.Adagrad):
    """``torch.optim.Adagrad`` that uses the fused kernel from O1 on, where there is one for its parameters.

    Arguments, state and checkpoints are torch's. At O0, or when ``foreach``, ``fused``, ``capturable`` or
    ``differentiable`` is given, it is torch's optimizer and nothing else.
    """

    _kind = torch.optim.Adagrad


Adagrad.__signature__ = inspect.signature(torch.optim.Adagrad)  # type: ignore[attr-defined]
