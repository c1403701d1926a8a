"""``apex.optimizers``, with Ascend's additions; the same classes as in :mod:`amp_runtime.optim`."""

from __future__ import annotations

from amp_runtime.apex.contrib.optimizers.fp16_optimizer import FP16_Optimizer as FP16_Optimizer
from amp_runtime.optim.fused_adagrad import FusedAdagrad as FusedAdagrad
from amp_runtime.optim.fused_adam import FusedAdam as FusedAdam
from amp_runtime.optim.fused_lamb import FusedLAMB as FusedLAMB
from amp_runtime.optim.fused_mixed_precision_lamb import FusedMixedPrecisionLamb as FusedMixedPrecisionLamb
from amp_runtime.optim.fused_novograd import FusedNovoGrad as FusedNovoGrad
from amp_runtime.optim.fused_sgd import FusedSGD as FusedSGD
from amp_runtime.optim.npu import Lamb as Lamb
from amp_runtime.optim.npu import NpuFusedAdadelta as NpuFusedAdadelta
from amp_runtime.optim.npu import NpuFusedAdam as NpuFusedAdam
from amp_runtime.optim.npu import NpuFusedAdamP as NpuFusedAdamP
from amp_runtime.optim.npu import NpuFusedAdamW as NpuFusedAdamW
from amp_runtime.optim.npu import NpuFusedBertAdam as NpuFusedBertAdam
from amp_runtime.optim.npu import NpuFusedLamb as NpuFusedLamb
from amp_runtime.optim.npu import NpuFusedRMSprop as NpuFusedRMSprop
from amp_runtime.optim.npu import NpuFusedRMSpropTF as NpuFusedRMSpropTF
from amp_runtime.optim.npu import NpuFusedSGD as NpuFusedSGD

__all__ = [
    "FP16_Optimizer",
    "FusedAdagrad",
    "FusedAdam",
    "FusedLAMB",
    "FusedMixedPrecisionLamb",
    "FusedNovoGrad",
    "FusedSGD",
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
