"""Optimizers with torch's names: fused where that is known to be faster, torch's own otherwise.

Any other name of ``torch.optim`` can be read from here too: ``amp.optim.RMSprop`` is ``torch.optim.RMSprop``.
"""

from __future__ import annotations

from typing import Any

import torch

from amp_runtime.optim.adagrad import Adagrad as Adagrad
from amp_runtime.optim.adam import Adam as Adam
from amp_runtime.optim.adamw import AdamW as AdamW
from amp_runtime.optim.sgd import SGD as SGD

__all__ = ["SGD", "Adagrad", "Adam", "AdamW"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return getattr(torch.optim, name)
    except AttributeError:
        raise AttributeError(f"neither amp_runtime.optim nor torch.optim has {name!r}") from None
