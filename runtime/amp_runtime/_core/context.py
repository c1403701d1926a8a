"""The settings of this process, in one place.

Before ``amp.init`` they describe an untouched FP32 script in one process, so that importing the package
changes nothing.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from amp_runtime._core import capabilities

OptLevel = Literal["O0", "O1", "O2", "O3"]
DtypeName = Literal["auto", "fp16", "bf16"]
CastPolicy = Literal["torch", "apex"]
Parallel = Literal["ddp", "fsdp", "hsdp"]

OPT_LEVELS: tuple[OptLevel, ...] = ("O0", "O1", "O2", "O3")
DTYPES: tuple[DtypeName, ...] = ("auto", "fp16", "bf16")
CAST_POLICIES: tuple[CastPolicy, ...] = ("torch", "apex")
PARALLELS: tuple[Parallel, ...] = ("ddp", "fsdp", "hsdp")
SHARDED: tuple[Parallel, ...] = ("fsdp", "hsdp")
HALF_DTYPES = (torch.float16, torch.bfloat16)


@dataclass
class Context:
    """What ``amp.init`` decided.

    Attributes:
        initialised: whether ``amp.init`` has run.
        opt_level: the level in force, after ``AMP_OPT_LEVEL``.
        dtype_name: the half type asked for; ``auto`` is decided by device, see :meth:`half_dtype`.
        loss_scale: ``"dynamic"`` or a fixed scale.
        scales_always: whether losses are scaled at every level and in every type, as ``AMP_LOSS_SCALE`` asks for.
        init_scale: the dynamic scale to begin with.
        min_scale: the dynamic scale never falls below it; ``None`` leaves it to the scaler.
        max_scale: the dynamic scale never grows above it.
        growth_interval: the number of good steps in a row after which the dynamic scale doubles.
        num_losses: the number of losses with a scale each, which ``loss_id`` selects.
        keep_batchnorm_fp32: whether batch norm stays float32 in a half model; ``None`` where the level casts
            no model.
        master_weights: whether half parameters have float32 masters; ``None`` where the level casts no model.
        cast_model_outputs: the dtype of a prepared model's floating outputs; ``None`` is the level's own.
        cast_policy: which operations an autocast region casts; ``None`` is ``"torch"``.
        custom_white_list: operations that autocast runs in half besides those of the policy.
        custom_black_list: operations that autocast runs in float32 besides those of the policy.
        combine_grad: whether the scaler keeps gradients in flat buffers.
        parallel: how ``prepare_model`` has several processes train: with whole models (``"ddp"``, and ``None``), or
            with shards of one, over all processes (``"fsdp"``) or over those of each machine (``"hsdp"``).
        sync_bn: whether ``prepare_model`` synchronises batch norm over the processes.
        verbose: whether one line may be printed about a decision.
        rank: this process among all.
        local_rank: this process among those of its machine.
        world_size: the number of processes; 1 alone.
        evaluations: loops over a part of an evaluation that run now. Models in evaluation mode wait for nobody in them.
        owns_group: whether ``amp.init`` made the process group, and so has to destroy it.
        launch_checked: whether it was looked at, at the first step, if other processes train beside this one.
        said: the arguments that calls of ``amp.init`` have given, which a later call keeps.
    """

    initialised: bool = False
    opt_level: OptLevel = "O0"
    dtype_name: DtypeName = "auto"
    loss_scale: float | Literal["dynamic"] = "dynamic"
    scales_always: bool = False
    init_scale: float = 2.0**16
    min_scale: float | None = None
    max_scale: float = 2.0**24
    growth_interval: int = 2000
    num_losses: int = 1
    keep_batchnorm_fp32: bool | None = None
    master_weights: bool | None = None
    cast_model_outputs: torch.dtype | None = None
    cast_policy: CastPolicy | None = None
    custom_white_list: tuple[str, ...] = ()
    custom_black_list: tuple[str, ...] = ()
    combine_grad: bool = False
    parallel: Parallel | None = None
    sync_bn: bool = True
    verbose: bool = False
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    evaluations: int = 0
    owns_group: bool = False
    launch_checked: bool = False
    said: dict[str, Any] = field(default_factory=dict)
    _probes: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    _automatic: dict[str, torch.dtype] = field(default_factory=dict)

    @property
    def mixed(self) -> bool:
        """Whether anything runs in half precision."""
        return self.opt_level != "O0"

    @property
    def distributed(self) -> bool:
        """Whether there is more than one process."""
        return self.world_size > 1

    def watch(self, parameter: torch.Tensor) -> None:
        """Remembers one parameter of a prepared model, whose device tells where the training runs."""
        self._probes = [probe for probe in self._probes if probe() is not None]
        self._probes.append(weakref.ref(parameter))

    def device_type(self) -> str:
        """The kind of device that trains, as ``torch.autocast`` names it.

        It is read from the prepared models each time, because scripts move models late. A model on an
        accelerator wins over one on the CPU. Without a prepared model it is CUDA where there is one.
        """
        found = ""
        for probe in self._probes:
            parameter = probe()
            if parameter is not None:
                found = parameter.device.type
                if found not in ("cpu", "meta"):
                    return found
        if found == "cpu":
            return found
        return "cuda" if torch.cuda.is_available() else "cpu"

    def half_dtype(self, device_type: str | None = None) -> torch.dtype:
        """The half type for a kind of device.

        ``auto`` is bfloat16 on the CPU and on GPUs that compute in it (Ampere and later), float16 otherwise; see
        :func:`capabilities.computes`. A device is asked at the first use and not in ``init``, so that a script may
        still set ``CUDA_VISIBLE_DEVICES``.
        """
        if self.dtype_name == "fp16":
            return torch.float16
        if self.dtype_name == "bf16":
            return torch.bfloat16
        kind = device_type or self.device_type()
        if kind not in self._automatic:
            self.choose_half(kind, torch.bfloat16 if capabilities.computes(kind, torch.bfloat16) else torch.float16)
        return self._automatic[kind]

    def choose_half(self, kind: str, dtype: torch.dtype) -> None:
        """Makes ``dtype`` what ``auto`` is on a kind of device."""
        self._automatic[kind] = dtype

    def reset(self) -> None:
        """Goes back to the state before ``amp.init``."""
        self.__dict__.update(Context().__dict__)


context = Context()
"""The one context of this process."""
