"""The optimizers that Ascend added to Apex, on any device.

Arguments and arithmetic are theirs. Theirs can only step through ``amp``; these step like any other optimizer.
"""

from __future__ import annotations

from amp_runtime.optim.npu.adadelta import NpuFusedAdadelta as NpuFusedAdadelta
from amp_runtime.optim.npu.adam import NpuFusedAdam as NpuFusedAdam
from amp_runtime.optim.npu.adamp import NpuFusedAdamP as NpuFusedAdamP
from amp_runtime.optim.npu.adamw import NpuFusedAdamW as NpuFusedAdamW
from amp_runtime.optim.npu.bert_adam import NpuFusedBertAdam as NpuFusedBertAdam
from amp_runtime.optim.npu.lamb import Lamb as Lamb
from amp_runtime.optim.npu.lamb import NpuFusedLamb as NpuFusedLamb
from amp_runtime.optim.npu.rmsprop import NpuFusedRMSprop as NpuFusedRMSprop
from amp_runtime.optim.npu.rmsprop_tf import NpuFusedRMSpropTF as NpuFusedRMSpropTF
from amp_runtime.optim.npu.sgd import NpuFusedSGD as NpuFusedSGD

__all__ = [
    "Lamb",
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
