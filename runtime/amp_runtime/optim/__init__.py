"""Optimizers with torch's names, fused where that is known to be faster; those that torch lacks; and Apex's.

- ``Adam``, ``AdamW``, ``SGD``, ``Adagrad``: torch's, through its fused kernels from O1 on.
- ``LAMB``, ``LARS``, ``NovoGrad``, and ``LARC``, which wraps any optimizer.
- ``FusedAdam``, ``FusedSGD``, ``FusedAdagrad``, ``FusedLAMB``, ``FusedMixedPrecisionLamb``, ``FusedNovoGrad``: with
  the arguments and the checkpoints of ``apex.optimizers``; ``NpuFused...``: with those of Ascend's Apex.

Any other name of ``torch.optim`` can be read from here too: ``amp.optim.RMSprop`` is ``torch.optim.RMSprop``.
"""

from __future__ import annotations

from typing import Any

import torch

from amp_runtime.optim.adagrad import Adagrad as Adagrad
from amp_runtime.optim.adam import Adam as Adam
from amp_runtime.optim.adamw import AdamW as AdamW
from amp_runtime.optim.fused_adagrad import FusedAdagrad as FusedAdagrad
from amp_runtime.optim.fused_adam import FusedAdam as FusedAdam
from amp_runtime.optim.fused_lamb import FusedLAMB as FusedLAMB
from amp_runtime.optim.fused_mixed_precision_lamb import FusedMixedPrecisionLamb as FusedMixedPrecisionLamb
from amp_runtime.optim.fused_novograd import FusedNovoGrad as FusedNovoGrad
from amp_runtime.optim.fused_sgd import FusedSGD as FusedSGD
from amp_runtime.optim.lamb import LAMB as LAMB
from amp_runtime.optim.larc import LARC as LARC
from amp_runtime.optim.lars import LARS as LARS
from amp_runtime.optim.novograd import NovoGrad as NovoGrad
from amp_runtime.optim.npu import NpuFusedAdadelta as NpuFusedAdadelta
from amp_runtime.optim.npu import NpuFusedAdam as NpuFusedAdam
from amp_runtime.optim.npu import NpuFusedAdamP as NpuFusedAdamP
from amp_runtime.optim.npu import NpuFusedAdamW as NpuFusedAdamW
from amp_runtime.optim.npu import NpuFusedBertAdam as NpuFusedBertAdam
from amp_runtime.optim.npu import NpuFusedLamb as NpuFusedLamb
from amp_runtime.optim.npu import NpuFusedRMSprop as NpuFusedRMSprop
from amp_runtime.optim.npu import NpuFusedRMSpropTF as NpuFusedRMSpropTF
from amp_runtime.optim.npu import NpuFusedSGD as NpuFusedSGD
from amp_runtime.optim.sgd import SGD as SGD

__all__ = [
    "LAMB",
    "LARC",
    "LARS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "FusedAdagrad",
    "FusedAdam",
    "FusedLAMB",
    "FusedMixedPrecisionLamb",
    "FusedNovoGrad",
    "FusedSGD",
    "NovoGrad",
    "NpuFusedAdadelta",
    "NpuFusedAdam",
    "NpuFusedAdamP",
    "NpuFusedAdamW",
    "NpuFusedBertAdam",
    "NpuFusedLamb",
    "NpuFusedRMSprop",
    "NpuFusedRMSpropTF",
    "NpuFusedSGD",
]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return getattr(torch.optim, name)
    except AttributeError:
        raise AttributeError(f"neither amp_runtime.optim nor torch.optim has {name!r}") from None
