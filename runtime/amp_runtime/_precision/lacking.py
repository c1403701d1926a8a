"""What runs in float32 because the device lacks it in half, and what is said about a device: each note once."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from amp_runtime._core import capabilities
from amp_runtime._core.callers import stacklevel
from amp_runtime._core.context import HALF_DTYPES, context
from amp_runtime._core.hooks import Hook, has_hook
from amp_runtime._core.trees import to_float, to_half
from amp_runtime._precision.cast_tables import half_by_autocast
from amp_runtime._precision.properties import dtype_of_environment

_noted: set[tuple[str, str, torch.dtype]] = set()

# What a module's forward pass computes in the type of its weights; of recurrent ones, see _operations_of.
_OPERATIONS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("linear",),
    nn.Conv1d: ("conv1d",),
    nn.Conv2d: ("conv2d",),
    nn.Conv3d: ("conv3d",),
    nn.ConvTranspose1d: ("conv_transpose1d",),
    nn.ConvTranspose2d: ("conv_transpose2d",),
    nn.ConvTranspose3d: ("conv_transpose3d",),
    nn.PReLU: ("prelu",),
    nn.LSTMCell: ("lstm_cell",),
    nn.GRUCell: ("gru_cell",),
    nn.MultiheadAttention: ("linear", "bmm", "scaled_dot_product_attention"),
}


def lacking(kind: str, dtype: torch.dtype) -> frozenset[str]:
    """The operations that run in float32 on a kind of device, because it lacks them in ``dtype``."""
    return capabilities.lacking(kind, dtype, half_by_autocast(kind, dtype))


def lacks(name: str, kind: str, dtype: torch.dtype) -> bool:
    """Whether one operation is among :func:`lacking`; only this one is tried."""
    return capabilities.lacks(name, kind, dtype, name in half_by_autocast(kind, dtype))


def cannot_be_half(module: nn.Module, kind: str, dtype: torch.dtype) -> bool:
    """Whether a module's own operation is lacking, so that its weights have to stay float32."""
    return any(lacks(name, kind, dtype) for name in _operations_of(module))


def _operations_of(module: nn.Module) -> tuple[str, ...]:
    if isinstance(module, nn.RNNBase):
        return (module.mode.lower(),)  # LSTM, GRU, RNN_TANH, RNN_RELU
    if isinstance(module, nn.RNNCell):
        return (f"rnn_{module.nonlinearity}_cell",)
    return next((names for kind, names in _OPERATIONS.items() if isinstance(module, kind)), ())


def note(kind: str, dtype: torch.dtype) -> None:
    """Tells the user once, on the main process, what runs in float32 on a kind of device.

    When something of it is needed for the first time: a model without an LSTM has nothing to do with one.
    """
    if not _is_first("lacks", kind, dtype):
        return
    half = str(dtype).removeprefix("torch.")
    listed = ", ".join(f"{name} ({_reason(name, kind, dtype)})" for name in sorted(lacking(kind, dtype)))
    weights = ", and modules made of it keep float32 weights" if context.opt_level in ("O2", "O3") else ""
    warnings.warn(
        f"what this device ({_device(kind)}) lacks in {half} runs in float32{weights}: {listed}",
        stacklevel=stacklevel(),
    )


def note_emulation(kind: str, dtype: torch.dtype) -> None:
    """Tells the user once, on the main process, that the half type which ``auto`` chose is slow on this device."""
    if context.dtype_name != "auto" or not _is_first("emulates", kind, dtype):
        return
    # A script for Apex says no type to the context.
    if capabilities.emulates(kind, dtype) and dtype_of_environment() in (None, "auto"):
        warnings.warn(
            f"dtype='auto' is bfloat16 on the CPU, which is slow here: torch has no fast arithmetic in it for this "
            f"processor ({_device(kind)}). float32 is faster: AMP_OPT_LEVEL=O0 in the environment",
            stacklevel=stacklevel(),
        )


def _is_first(what: str, kind: str, dtype: torch.dtype) -> bool:
    """Whether a note is to be given: on the main process, for the first time."""
    if torch.compiler.is_compiling() or (what, kind, dtype) in _noted:
        return False
    _noted.add((what, kind, dtype))
    # A script for Apex makes its process group itself, of which the context knows nothing.
    return (dist.get_rank() if dist.is_available() and dist.is_initialized() else context.rank) == 0


def _reason(name: str, kind: str, dtype: torch.dtype) -> str:
    said = capabilities.reason(name, kind, dtype)
    # oneDNN's second sentence is about its own variables.
    return said.partition(". ")[0] or "on another process's device"


def forget_notes() -> None:
    """Lets the notes be given again."""
    _noted.clear()


def _device(kind: str) -> str:
    if kind == "cpu":
        return f"CPU, {torch.backends.cpu.get_cpu_capability()}"
    return torch.cuda.get_device_name() if kind == "cuda" and torch.cuda.is_available() else kind


def keep_in_float(module: nn.Module) -> None:
    """Gives a module in a half model float32 weights, inputs and operations, and half outputs for what follows it.

    Args:
        module: a module that :func:`cannot_be_half`, with all that it contains. It may have come with half weights.
    """
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.dtype in HALF_DTYPES:
                tensor.data = tensor.data.float()
    if not has_hook(module._forward_pre_hooks, widen_inputs):
        module.register_forward_pre_hook(Hook(widen_inputs), with_kwargs=True)
        module.register_forward_hook(Hook(narrow_outputs))


def widen_inputs(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """A forward pre-hook: half inputs as float32."""
    return to_float(args), to_float(kwargs)


def narrow_outputs(module: nn.Module, args: Any, output: Any) -> Any:
    """A forward hook: float32 outputs as half, which is what the module would have given."""
    kind = next(module.parameters()).device.type
    return to_half(output, context.half_dtype(kind))
