"""``amp.initialize``, the properties of the opt levels, and ``amp.state_dict``."""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import nn

from amp_runtime._core.hooks import Hook
from amp_runtime._precision.lacking import note_emulation
from amp_runtime.apex import _replicas
from amp_runtime.apex.amp import _initialize
from amp_runtime.apex.amp._amp_state import _amp_state, maybe_print, warn_or_err
from amp_runtime.apex.amp._functions import init
from amp_runtime.apex.amp._process_optimizer import process_optimizer
from amp_runtime.apex.amp.scaler import LossScaler

_MASTERS = "master_params"
_optimizers: list[weakref.ref[Any]] = []


class Properties:
    """The properties in force, as attributes; ``amp._amp_state.opt_properties`` is the instance.

    Setting one checks it against the level, as Apex does.

    Attributes:
        options: the properties as a dictionary.
    """

    options: dict[str, Any]

    def __init__(self) -> None:
        vars(self)["options"] = {
            "enabled": False,
            "opt_level": None,
            "cast_model_type": None,
            "patch_torch_functions": False,
            "keep_batchnorm_fp32": None,
            "master_weights": None,
            "loss_scale": 1.0,
        }

    def _update_options_dict(self, new_options: Mapping[str, Any]) -> None:
        for name, value in new_options.items():
            if name not in self.options:
                raise ValueError(f"Tried to set unexpected option {name}; allowed: {', '.join(self.options)}")
            self.options[name] = value

    def __getattr__(self, name: str) -> Any:
        options = vars(self).get("options", {})
        if name in options:
            return options[name]
        raise AttributeError(f"'Properties' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.options:
            super().__setattr__(name, value)
            return
        check = _CHECKS.get(name)
        self.options[name] = value if check is None else check(self.options["opt_level"], value)


def _checked_cast_model_type(level: str | None, value: Any) -> Any:
    if level == "O1" and value not in (None, False, torch.float32):
        warn_or_err(
            "O1 inserts casts around Torch functions rather than model weights, so with O1, the model weights "
            "themselves should remain FP32. If you wish to cast the model to a different type, use opt_level='O2' or "
            f"'O3'. cast_model_type was {value}"
        )
    return value


def _checked_patch_torch_functions(level: str | None, value: Any) -> Any:
    if level != "O1" and value:
        warn_or_err("Currently, patch_torch_functions=True should only be set by selecting opt_level='O1'.")
    return value


def _checked_keep_batchnorm_fp32(level: str | None, value: Any) -> bool | None:
    if level == "O1" and value is not None:
        warn_or_err(
            "With opt_level O1, batchnorm functions are automatically patched to run in FP32, so keep_batchnorm_fp32 "
            f"should be None. keep_batchnorm_fp32 was {value}"
        )
    named = {"True": True, "False": False}.get(value, value) if isinstance(value, str) else value
    if named is not None and not isinstance(named, bool):
        raise AssertionError(
            "keep_batchnorm_fp32 must be a boolean, the string 'True' or 'False', or None, found "
            f"keep_batchnorm_fp32={value!r}"
        )
    return named


def _checked_master_weights(level: str | None, value: Any) -> Any:
    if level == "O1" and value is not None:
        warn_or_err(
            "It doesn't make sense to use master_weights with O1. With O1, your model weights themselves should be "
            "FP32."
        )
    return value


def _checked_loss_scale(level: str | None, value: Any) -> float | str:
    return "dynamic" if value == "dynamic" else float(value)


_CHECKS = {
    "cast_model_type": _checked_cast_model_type,
    "patch_torch_functions": _checked_patch_torch_functions,
    "keep_batchnorm_fp32": _checked_keep_batchnorm_fp32,
    "master_weights": _checked_master_weights,
    "loss_scale": _checked_loss_scale,
}

_LEVELS: dict[str, tuple[str, dict[str, Any]]] = {
    "O0": (
        "Pure FP32 training.",
        {"patch_torch_functions": False, "keep_batchnorm_fp32": None, "master_weights": False, "loss_scale": 1.0},
    ),
    "O1": (
        "Insert automatic casts around Pytorch functions and Tensor methods.",
        {"patch_torch_functions": True, "keep_batchnorm_fp32": None, "master_weights": None, "loss_scale": "dynamic"},
    ),
    "O2": (
        "FP16 training with FP32 batchnorm and FP32 master weights.",
        {"patch_torch_functions": False, "keep_batchnorm_fp32": True, "master_weights": True, "loss_scale": "dynamic"},
    ),
    "O3": (
        "Pure FP16 training.",
        {"patch_torch_functions": False, "keep_batchnorm_fp32": False, "master_weights": False, "loss_scale": 1.0},
    ),
}

_CASTING = frozenset({"cast_model_type", "keep_batchnorm_fp32", "master_weights"})
_WITHOUT_USE: dict[str, frozenset[str]] = {
    "O0": _CASTING | {"patch_torch_functions", "loss_scale"},
    "O1": _CASTING,
    "O2": frozenset({"patch_torch_functions"}),
    "O3": frozenset({"patch_torch_functions"}),
}


def initialize(
    models: Any,
    optimizers: Any = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: torch.dtype | Literal[False] | None = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: bool | str | None = None,
    master_weights: bool | None = None,
    loss_scale: float | str | None = None,
    cast_model_outputs: torch.dtype | None = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
    *,
    dynamic_init_scale: float = 2.0**16,
    scale_growth_factor: float = 2.0,
    scale_backoff_factor: float = 0.5,
    scale_window: int = 2000,
    combine_grad: bool | None = None,
    combine_ddp: bool | None = None,
    ddp_replica_count: int = 4,
    user_cast_preferred: bool | None = None,
    check_combined_tensors: bool | None = None,
) -> Any:
    """Prepares models and optimizers for mixed precision, in place.

    Call it once, after the optimizers are made and before a parallel wrapper is put around a model. It works on the CPU
    as well as on CUDA. The half type is Apex's float16, and on the CPU bfloat16; ``AMP_DTYPE=fp16`` or ``bf16`` in the
    environment chooses it, as does ``cast_model_type``. ``AMP_OPT_LEVEL`` overrides ``opt_level``; arguments that its
    level has no use for are then dropped, so that one script runs at all levels.

    ======================  =======  ========  =======  =====
    property                O0       O1        O2       O3
    ======================  =======  ========  =======  =====
    cast_model_type         float32  None      half     half
    patch_torch_functions   False    True      False    False
    keep_batchnorm_fp32     None     None      True     False
    master_weights          False    None      True     False
    loss_scale              1.0      dynamic   dynamic  1.0
    ======================  =======  ========  =======  =====

    Args:
        models: a module or a list of modules, with float32 parameters.
        optimizers: an optimizer, a list of them, or ``None``.
        enabled: ``False`` returns everything untouched, and ``scale_loss`` then yields the loss itself.
        opt_level: ``"O0"`` to ``"O3"``.
        cast_model_type: the type of the model's weights; ``False`` leaves them as they are.
        patch_torch_functions: cast in torch's functions; only O1 may.
        keep_batchnorm_fp32: leave batch norm float32 in a half model; also as ``"True"`` or ``"False"``.
        master_weights: give half weights float32 masters, which the optimizer steps.
        loss_scale: ``"dynamic"``, or a fixed scale, also as a string.
        cast_model_outputs: the type of the models' floating outputs; float32 by default if the model is cast.
        num_losses: the number of loss scales, which ``loss_id`` of ``scale_loss`` selects.
        verbosity: 0 prints nothing, 1 the properties and skipped steps.
        min_loss_scale: the floor of dynamic scales.
        max_loss_scale: their ceiling.
        dynamic_init_scale: the first dynamic scale (Ascend).
        scale_growth_factor: what it is multiplied by when it grows (Ascend).
        scale_backoff_factor: what it is multiplied by at an overflow (Ascend).
        scale_window: the number of good backward passes before it grows (Ascend).
        combine_grad: accepted at O1 and O2 (Ascend); gradients are always unscaled in a few kernels.
        combine_ddp: with ``combine_grad``, takes the place of DistributedDataParallel (Ascend): rank 0's weights go to
            all ranks now, and ``scale_loss`` averages the gradients.
        ddp_replica_count: accepted (Ascend).
        user_cast_preferred: accepted at O1 (Ascend); functions that a script registers are always cast as it says.
        check_combined_tensors: accepted at O1 and O2 (Ascend).

    Returns:
        ``models`` if ``optimizers`` is ``None``, else ``(models, optimizers)``; lists where lists were given.

    Raises:
        RuntimeError: an unknown level, a property that the level does not allow, a model that is half or wrapped
            already, an optimizer that keeps masters itself or was initialised before.
        TypeError: ``models`` or ``optimizers`` is something else, a tuple for instance.
        ValueError: ``loss_scale`` is no number and not ``"dynamic"``.
    """
    properties = Properties()
    _amp_state.opt_properties = properties
    _amp_state.verbosity = verbosity
    if not enabled:
        return models if optimizers is None else (models, optimizers)
    chosen_elsewhere = os.environ.get("AMP_OPT_LEVEL", "").strip()
    level = chosen_elsewhere or opt_level
    if level not in _LEVELS:
        raise RuntimeError(
            f"Unexpected optimization level {level}. Options are 'O0', 'O1', 'O2', 'O3'.  Note that in `O0`, `O1`, "
            "etc., the prefix O is the letter O, not the number zero."
        )
    model_list = _models(models)
    optimizer_list = _optimizers_in(optimizers)
    kind = _initialize.device_type(model_list)
    half = _initialize.half_dtype(kind)
    _set_level(properties, level, half)
    overrides = {
        "enabled": enabled,
        "opt_level": level,
        "cast_model_type": cast_model_type,
        "patch_torch_functions": patch_torch_functions,
        "keep_batchnorm_fp32": keep_batchnorm_fp32,
        "master_weights": master_weights,
        "loss_scale": loss_scale,
    }
    if chosen_elsewhere:
        overrides = {name: value for name, value in overrides.items() if name not in _WITHOUT_USE[level]}
    else:
        _check_ascend(level, combine_grad, combine_ddp, user_cast_preferred, check_combined_tensors)
    _override(properties, overrides)
    _check(model_list, optimizer_list)
    if level != "O0":
        note_emulation(kind, half)
    _amp_state.min_loss_scale, _amp_state.max_loss_scale = min_loss_scale, max_loss_scale
    _amp_state.loss_scalers = [
        LossScaler(
            properties.loss_scale,
            dynamic_init_scale,
            scale_growth_factor,
            scale_window,
            min_loss_scale,
            max_loss_scale,
            scale_backoff_factor,
        )
        for _ in range(num_losses)
    ]
    _prepare_models(model_list, properties, cast_model_outputs)
    if combine_ddp:
        _initialize.broadcast_from_rank_0(model_list)
        for model in model_list:
            _replicas.mark(model.parameters(), combined=True)
    for optimizer in optimizer_list:
        if properties.cast_model_type and not properties.master_weights and optimizer.state:
            optimizer.load_state_dict(optimizer.state_dict())  # its state in the type of the weights
        process_optimizer(optimizer, bool(properties.master_weights))
    _optimizers[:] = [weakref.ref(optimizer) for optimizer in optimizer_list]
    if properties.patch_torch_functions:
        init(loss_scale=properties.loss_scale, verbose=verbosity == 2, device_type=kind)
    if optimizers is None:
        return models
    return models, optimizers


def _models(models: Any) -> list[nn.Module]:
    if isinstance(models, nn.Module):
        return [models]
    if isinstance(models, list):
        return models
    raise TypeError(f"models must be either a single model or a list of models, not a {type(models).__name__}.")


def _optimizers_in(optimizers: Any) -> list[Any]:
    if optimizers is None:
        return []
    if isinstance(optimizers, list):
        return optimizers
    if isinstance(optimizers, torch.optim.Optimizer) or hasattr(optimizers, "param_groups"):
        return [optimizers]
    raise TypeError(
        f"optimizers must be either a single optimizer or a list of optimizers, not a {type(optimizers).__name__}."
    )


def _set_level(properties: Properties, level: str, half: torch.dtype) -> None:
    description, defaults = _LEVELS[level]
    cast_type = {"O0": torch.float32, "O1": None}.get(level, half)
    properties._update_options_dict({"enabled": True, "opt_level": level, "cast_model_type": cast_type, **defaults})
    maybe_print(f"Selected optimization level {level}:  {description}\n", True)
    maybe_print("Defaults for this optimization level are:", True)
    _print(properties)


def _override(properties: Properties, overrides: Mapping[str, Any]) -> None:
    maybe_print("Processing user overrides (additional kwargs that are not None)...", True)
    for name, value in overrides.items():
        if value is not None:
            setattr(properties, name, value)
    maybe_print("After processing overrides, optimization options are:", True)
    _print(properties)


def _print(properties: Properties) -> None:
    for name, value in properties.options.items():
        maybe_print(f"{name:22} : {value}", True)


def _check_ascend(
    level: str, combine_grad: Any, combine_ddp: Any, user_cast_preferred: Any, check_combined_tensors: Any
) -> None:
    if combine_grad and level not in ("O1", "O2"):
        warn_or_err(f"combine_grad=True is for opt_level O1 and O2, not {level}.")
    if combine_ddp and not combine_grad:
        warn_or_err("combine_ddp=True needs combine_grad=True.")
    if user_cast_preferred and level != "O1":
        warn_or_err(f"user_cast_preferred=True is for opt_level O1, not {level}.")
    if check_combined_tensors and level not in ("O1", "O2"):
        warn_or_err(f"check_combined_tensors=True is for opt_level O1 and O2, not {level}.")


def _check(models: list[nn.Module], optimizers: list[Any]) -> None:
    _initialize.check_models(models)
    if not _amp_state.allow_incoming_model_not_fp32:
        _initialize.check_params_fp32(models)
    _initialize.check_optimizers(optimizers)


def _prepare_models(models: list[nn.Module], properties: Properties, outputs: torch.dtype | None) -> None:
    cast_type = properties.cast_model_type or None
    for model in models:
        _initialize.process_model(model, cast_type, outputs, bool(properties.keep_batchnorm_fp32))
        if properties.opt_level != "O0":
            model.register_forward_pre_hook(Hook(_replicas.notice_torch_ddp))


def state_dict(destination: Any = None) -> Any:
    """The state for a checkpoint.

    ``loss_scaler0`` and so on, each with ``loss_scale`` and ``unskipped``, are Apex's. Where there are float32 master
    weights, which Apex did not save, ``master_params`` holds them: a list for each optimizer of the last
    ``initialize``.

    Args:
        destination: a mapping to write into; a new ``OrderedDict`` by default.

    Raises:
        AttributeError: ``amp.initialize`` has not run, or with ``enabled=False``.
    """
    state = OrderedDict() if destination is None else destination
    for index, scaler in enumerate(_amp_state.loss_scalers):
        state[f"loss_scaler{index}"] = {"loss_scale": scaler.loss_scale(), "unskipped": scaler._unskipped}
    stashes = _stashes()
    if any(stash.all_fp32_from_fp16_params for stash in stashes):
        for stash in stashes:
            stash.follow_model()
        state[_MASTERS] = [[master.detach() for master in stash.all_fp32_from_fp16_params] for stash in stashes]
    return state


def load_state_dict(state_dict: Mapping[str, Any]) -> None:
    """Restores a state of :func:`state_dict`, or one that Apex saved.

    With ``master_params`` the masters and the half weights of the model are restored as well, so a run resumes exactly.
    Without, masters follow the half weights that the model has loaded.

    Args:
        state_dict: the state.

    Raises:
        RuntimeError: there are keys that belong to neither, or masters of other shapes.
    """
    unexpected = [key for key in state_dict if "loss_scaler" not in key and key != _MASTERS]
    if unexpected:
        names = ", ".join(f'"{key}"' for key in unexpected)
        raise RuntimeError(f"Error(s) in loading state_dict. Unexpected key(s) in state_dict: {names}. ")
    saved = [value for key, value in state_dict.items() if "loss_scaler" in key]
    scalers = _amp_state.loss_scalers
    if len(saved) != len(scalers):
        print(f"Warning: state_dict contains {len(saved)} entries, while {len(scalers)} loss_scalers are used")
    for scaler, values in zip(scalers, saved, strict=False):
        scaler._loss_scale = values["loss_scale"]
        scaler._unskipped = values["unskipped"]
    if _MASTERS in state_dict:
        _load_masters(state_dict[_MASTERS])


def _stashes() -> list[Any]:
    return [optimizer._amp_stash for ref in _optimizers if (optimizer := ref()) is not None]


def _load_masters(saved: list[list[torch.Tensor]]) -> None:
    stashes = _stashes()
    if not any(stash.master_weights for stash in stashes):
        return  # saved at O2, resumed at another level
    shapes = [[tuple(master.shape) for master in stash.all_fp32_from_fp16_params] for stash in stashes]
    given = [[tuple(master.shape) for master in masters] for masters in saved]
    if shapes != given:
        raise RuntimeError(
            f"Error(s) in loading state_dict: {_MASTERS} holds {[len(g) for g in given]} tensors for the optimizers, "
            f"which have {[len(s) for s in shapes]} half parameters; or their shapes differ. The models and optimizers "
            "given to amp.initialize must be those of the checkpoint, in the same order"
        )
    with torch.no_grad():
        for stash, masters in zip(stashes, saved, strict=True):
            stash.follow_devices()
            for master, value in zip(stash.all_fp32_from_fp16_params, masters, strict=True):
                master.copy_(value)
            stash.copy_to_model()
