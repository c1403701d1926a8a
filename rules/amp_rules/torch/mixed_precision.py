"""Autocast and scalers: every name under which torch and this project's runtime have them."""

from __future__ import annotations

import ast

TORCH_AMP = (
    "torch.cuda.amp",
    "torch.amp",
    "torch.autocast",
    "torch.cpu.amp",
    "torch.npu.amp",
    "torch_npu.npu.amp",
)
"""Where torch has its mixed precision, and torch_npu its own, of the same interface."""

APEX = ("apex",)
APEX_LAYERS = ("apex.parallel", "apex.normalization", "apex.mlp", "apex.RNN", "apex.transformer")
"""Parts of Apex that compute in whatever precision they are given."""

FOLLOWS_AUTOCAST = frozenset(
    {
        "amp_definitely_not_available",
        "custom_bwd",
        "custom_fwd",
        "is_autocast_available",
    }
)
"""Last names of what only follows the autocast around it, or asks for it."""

AUTOCASTS_BY_DEVICE = frozenset(
    {"torch.cuda.amp.autocast", "torch.cpu.amp.autocast", "torch.cuda.amp.autocast_mode.autocast"}
)
"""The old contexts, which take no device type.

Source: https://docs.pytorch.org/docs/stable/amp.html, deprecated since PyTorch 2.4.
"""

LEVEL_VARIABLE = "AMP_OPT_LEVEL"
"""The variable of the environment that chooses the level of migrated scripts, in plain PyTorch too."""

TORCH_AUTOCASTS = frozenset({"torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast"})
"""The context that takes a device type first."""

AUTOCASTS = TORCH_AUTOCASTS | AUTOCASTS_BY_DEVICE | {"amp_runtime.autocast"}
"""Contexts in which operations choose their types."""

SHARDED_SCALER = "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler"
"""Knows of gradients of which each process keeps a shard.

Source: https://docs.pytorch.org/docs/stable/fsdp.html
"""

PLAIN_SCALERS = frozenset(
    {
        "torch.GradScaler",
        "torch.amp.GradScaler",
        "torch.amp.grad_scaler.GradScaler",
        "torch.cuda.amp.GradScaler",
        "torch.cuda.amp.grad_scaler.GradScaler",
    }
)
"""Those for CUDA that look at the gradients of their own process alone."""

SCALERS = PLAIN_SCALERS | frozenset(
    {
        SHARDED_SCALER,
        "amp_runtime.scaler",
        "torch.cpu.amp.GradScaler",
        "torch.npu.amp.GradScaler",
        "torch_npu.npu.amp.GradScaler",
    }
)
"""Scalers of losses."""

HAS_MIXED_PRECISION = frozenset(
    {
        "torch.amp",
        "torch.autocast",
        "torch.amp.autocast",
        "torch.cuda.amp",
        *(name for name in AUTOCASTS_BY_DEVICE | SCALERS if name.startswith("torch.cuda.")),
    }
)
"""What every torch can import that has the mixed precision of CUDA."""


def is_scaler_name(name: str) -> bool:
    """Whether a dotted name is that of a scaler; a library's own class ``...GradScaler`` has the same protocol."""
    return name in SCALERS or name.rpartition(".")[2].endswith("GradScaler")


def scaler_of(loss: ast.expr) -> ast.expr | None:
    """``scaler`` of ``scaler.scale(loss)``."""
    if isinstance(loss, ast.Call) and isinstance(loss.func, ast.Attribute) and loss.func.attr == "scale":
        return loss.func.value
    return None


STEPS_OF_SCALERS = frozenset({"step", "update"})
"""Methods that an object has beside ``scale`` if it is a scaler of losses, whatever its class."""


def has_loss_scale(name: str) -> bool:
    """Whether a dotted name is that of a scaler, or of an object around one whose state is the scaler's.

    timm's ``NativeScaler(loss, optimizer)`` runs the whole step; MAE and others have copies of it.
    """
    return is_scaler_name(name) or name.rpartition(".")[2].startswith("NativeScaler")


def runs_whole_step(name: str) -> bool:
    """Whether a dotted name is a library's class whose object scales, goes backward and steps in one call: timm's."""
    return name.rpartition(".")[2] in ("NativeScaler", "NativeScalerWithGradNormCount", "ApexScaler")


SCALERS_OF_DATA = ("sklearn.", "cuml.", "dask_ml.", "pyspark.", "tslearn.", "torch_geometric.")
"""Libraries whose ``...Scaler`` classes scale data, with methods ``scale`` and ``update`` of their own in places."""


def may_scale_losses(name: str) -> bool:
    """Whether the class of that dotted name may be somebody's own scaler of losses, as far as its name tells."""
    return "scaler" in name.rpartition(".")[2].lower() and not name.startswith(SCALERS_OF_DATA)


def is_off(name: str, call: ast.Call) -> bool:
    """Whether a call of what has this name turns autocast off: ``torch.autocast("cuda", enabled=False)``."""
    if name not in AUTOCASTS:
        return False
    enabled = next((item.value for item in call.keywords if item.arg == "enabled"), None)
    if enabled is None and name in AUTOCASTS_BY_DEVICE and call.args:
        enabled = call.args[0]
    return isinstance(enabled, ast.Constant) and not enabled.value
