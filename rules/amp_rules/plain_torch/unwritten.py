"""Words of the runtime that have no counterpart in torch, each with what to do about it."""

from __future__ import annotations

from amp_rules.plan.report import Unit

_CHECKPOINTS = "save and load with `torch.save` and `torch.load`, on the first process (`if amp.is_main_process():`)"
_POSITION = "resume at the beginning of an epoch, and take the position out of the checkpoint"
_CASTS = "run it under `amp.autocast(enabled=False)`, with its inputs cast by hand"
_OWN_WORK = "take it out, or do the same by hand with torch.distributed"
_LEVEL = "read the environment variable AMP_OPT_LEVEL in its place"
_INT8 = "torch makes no model in int8 of its own any more"
_TORCHAO = "call torchao by hand"

UNWRITTEN: dict[str, tuple[str, str, Unit]] = {
    "save_checkpoint": ("torch writes no checkpoint at once for all processes", _CHECKPOINTS, "precision"),
    "load_checkpoint": ("torch reads no checkpoint of several parts at once", _CHECKPOINTS, "precision"),
    "loader_state": ("torch's loaders do not know their position in an epoch", _POSITION, "precision"),
    "load_loader_state": ("torch's loaders do not know their position in an epoch", _POSITION, "precision"),
    "half_function": (
        "torch has no function that computes in half precision whatever it is given",
        _CASTS,
        "precision",
    ),
    "promote_function": ("torch has no function that widens its arguments to one type", _CASTS, "precision"),
    "register_half_function": ("torch's autocast has no list that functions are added to", _CASTS, "precision"),
    "register_float_function": ("torch's autocast has no list that functions are added to", _CASTS, "precision"),
    "register_promote_function": ("torch's autocast has no list that functions are added to", _CASTS, "precision"),
    "EMA": (
        "torch's averaged models do not follow a skipped step",
        "use torch.optim.swa_utils.AveragedModel, and update it where the step was taken",
        "precision",
    ),
    "inference": (
        "torch prepares no model for inference in half precision",
        "call `model.half()` by hand",
        "precision",
    ),
    "check_inference": ("torch compares no outputs in half precision", "compare them by hand", "precision"),
    "quantize": (_INT8, _TORCHAO, "precision"),
    "convert_quantized": (_INT8, _TORCHAO, "precision"),
    "save_quantized": (_INT8, _TORCHAO, "precision"),
    "load_quantized": (_INT8, _TORCHAO, "precision"),
    "QuantizedModel": (_INT8, _TORCHAO, "precision"),
    "PreparedModel": (_INT8, _TORCHAO, "precision"),
    "opt_level": ("torch has no optimization level", _LEVEL, "precision"),
    "shutdown": ("the end of the script ends the process group", "take the call out", "precision"),
    "StepTimer": ("torch has no timer of training steps", "measure with torch.utils.benchmark or by hand", "precision"),
    "Reducer": (
        "torch averages gradients in its wrapper only",
        "wrap the model, or all-reduce by hand",
        "distribution",
    ),
    "DistributedModel": ("the wrapper is another class in torch", "name DistributedDataParallel there", "distribution"),
    "no_sync": (
        "several backward passes without averaging are torch's `model.no_sync()`, of a wrapped model only",
        "write `with model.no_sync():` by hand where there are several processes",
        "distribution",
    ),
    "gather": ("torch gathers tensors of one size only", _OWN_WORK, "distribution"),
    "shadowing": (
        "torch's wrapper has no rounds without samples",
        "use torch.distributed.algorithms.Join",
        "distribution",
    ),
    "create_syncbn_process_group": ("groups of processes for batch norm are made by hand", _OWN_WORK, "distribution"),
}
"""The name: what torch lacks, what to do, and the unit that is not migrated then."""
