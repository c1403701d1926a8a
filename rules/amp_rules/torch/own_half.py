"""Names of the helpers for half precision by hand that Apex began with and that projects copy into files of their own.

Source: ``apex/fp16_utils`` and ``apex/contrib/optimizers`` before they were removed, and the copies of them in public
repositories.
"""

from __future__ import annotations

APEX = ("apex.fp16_utils", "apex.optimizers", "apex.contrib.optimizers")
"""Where Apex has them."""

CONVERTERS = frozenset({"network_to_half", "convert_network", "FP16Model", "FP16_Module"})
"""Functions and classes that make a model half and give it back."""

NORMS_TO_FLOAT = frozenset({"BN_convert_float"})
"""Functions that make the batch norms of a half model float32 again."""

WRAPPER = "FP16_Optimizer"
"""The optimizer around another one, with master weights and a loss scale."""

WRAPPER_ARGUMENTS = ("init_optimizer", "static_loss_scale", "dynamic_loss_scale", "dynamic_loss_args", "verbose")
"""Its parameters in their order."""

SCALER_ARGUMENTS = {"init_scale": "dynamic_init_scale", "scale_window": "scale_window"}
"""Keys of ``dynamic_loss_args`` that the runtime has too, by names of :data:`amp_rules.torch.apex.INIT_ARGUMENTS`."""

CLIPPING = frozenset({"clip_master_grads", "clip_fp32_grads"})
"""Its methods that clip gradients by their norm."""

KEPT_ATTRIBUTES = frozenset(
    {"add_param_group", "defaults", "load_state_dict", "param_groups", "state", "state_dict", "step", "zero_grad"}
)
"""What it has in common with the optimizer that it holds."""

WRAPPERS_OWN = frozenset(
    {
        "backward",
        "clip_fp32_grads",
        "clip_master_grads",
        "cur_scale",
        "dynamic_loss_scale",
        "fp16_groups",
        "fp32_from_fp16_groups",
        "fp32_from_fp32_groups",
        "inspect_master_grad_data",
        "loss_scale",
        "loss_scaler",
        "optimizer",
        "overflow",
        "update_master_grads",
    }
)
"""What an optimizer of torch does not have."""

MASTERS = "prep_param_lists"
"""The function that makes float32 copies of a model's parameters."""

TO_MASTERS = "model_grads_to_master_grads"
TO_MODEL = "master_params_to_model_params"
"""The functions that copy gradients one way and parameters the other."""


def is_helper_of_apex(name: str) -> bool:
    """Whether a dotted name is that of one of these helpers, where Apex has it."""
    package, _, last = name.rpartition(".")
    helpers = CONVERTERS | NORMS_TO_FLOAT | {WRAPPER, MASTERS, TO_MASTERS, TO_MODEL}
    return last in helpers and any(package == item or package.startswith(f"{item}.") for item in APEX)


HALF_TYPES = {
    "torch.half": "torch.float",
    "torch.float16": "torch.float32",
    "torch.HalfTensor": "torch.FloatTensor",
    "torch.cuda.HalfTensor": "torch.cuda.FloatTensor",
}
"""Half types, and the full ones that scripts choose in their place."""
