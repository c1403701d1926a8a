"""Names of NVIDIA Apex and Ascend's variant of it, and what replaces them.

Source: the public API of Apex before ``apex.amp`` and ``apex.parallel`` were removed in 2025.
"""

from __future__ import annotations

import re

from amp_rules.torch.apex_names import DROPIN_NAMES

NAMES_APEX = re.compile(r"\bapex\b", re.IGNORECASE | re.ASCII)
"""Texts that speak of it; words of other scripts may follow without a space."""

EXTENSIONS = frozenset({"amp_C", "apex_C"})
"""Compiled modules of Apex, which are imported by themselves."""

COMPILED_ALONE = {
    "bnp": "",
    "cudnn_gbn_lib": "",
    "distributed_adam_cuda": "",
    "distributed_lamb_cuda": "",
    "fast_bottleneck": "",
    "fast_layer_norm": "apex.contrib.layer_norm.FastLayerNorm",
    "fast_multihead_attn": "",
    "fmhalib": "",
    "focal_loss_cuda": "apex.contrib.focal_loss.FocalLoss",
    "fused_adam_cuda": "apex.contrib.optimizers.FusedAdam",
    "fused_dense_cuda": "apex.fused_dense.FusedDense",
    "fused_index_mul_2d": "",
    "fused_lamb_cuda": "apex.optimizers.FusedLAMB",
    "fused_layer_norm_cuda": "apex.normalization.FusedLayerNorm",
    "fused_rotary_positional_embedding": "",
    "fused_weight_gradient_mlp_cuda": "",
    "generic_scaled_masked_softmax_cuda": "",
    "group_norm_cuda": "apex.contrib.group_norm.GroupNorm",
    "mlp_cuda": "apex.mlp.MLP",
    "peer_memory_cuda": "",
    "permutation_search_cuda": "",
    "scaled_masked_softmax_cuda": "",
    "scaled_softmax_cuda": "",
    "scaled_upper_triang_masked_softmax_cuda": "",
    "syncbn": "apex.parallel.SyncBatchNorm",
    "transducer_joint_cuda": "",
    "transducer_loss_cuda": "",
    "xentropy_cuda": "apex.contrib.xentropy.SoftmaxCrossEntropyLoss",
}
"""Compiled modules of Apex that the runtime has not, and what it has of the classes that Apex builds on them.

Source: the names of the extensions in Apex's ``setup.py`` over its history.
"""

ROOTS = EXTENSIONS | {"apex"}
"""Packages that an installation of Apex brings."""

FINDERS = frozenset({"importlib.util.find_spec", "importlib.find_loader", "pkgutil.find_loader"})
"""Functions that say by its name whether a package can be imported: something, or None."""

ASKED_OF_TRANSFORMERS = "is_apex_available"
"""The function of transformers that says whether Apex can be imported; its place has moved between releases."""

FLAG_OF_TRANSFORMERS = "use_apex"
"""The attribute of its ``Trainer`` that says whether Apex scales the loss; asking for it without Apex is an error."""

LOADED_MODULES = "sys.modules"
"""What holds all packages that are imported."""

RENAMED = {
    "apex.amp.master_params": "master_params",
    "apex.amp.state_dict": "scaler.state_dict",
    "apex.amp.load_state_dict": "scaler.load_state_dict",
    "apex.amp.disable_casts": "disable_casts",
    "apex.amp.half_function": "half_function",
    "apex.amp.float_function": "float_function",
    "apex.amp.promote_function": "promote_function",
    "apex.amp.register_half_function": "register_half_function",
    "apex.amp.register_float_function": "register_float_function",
    "apex.amp.register_promote_function": "register_promote_function",
}
"""Functions of ``apex.amp`` that the runtime has with the same arguments, by their paths there."""

OPTIMIZERS = frozenset(
    {
        "FusedAdam",
        "FusedSGD",
        "FusedAdagrad",
        "FusedLAMB",
        "FusedMixedPrecisionLamb",
        "FusedNovoGrad",
        "NpuFusedSGD",
        "NpuFusedAdam",
        "NpuFusedAdamW",
        "NpuFusedAdamP",
        "NpuFusedBertAdam",
        "NpuFusedAdadelta",
        "NpuFusedLamb",
        "NpuFusedRMSprop",
        "NpuFusedRMSpropTF",
    }
)
"""Optimizers of ``apex.optimizers`` that ``amp_runtime.optim`` has with the same arguments."""

OPTIMIZER_PATHS = {f"apex.optimizers.{name}": f"optim.{name}" for name in OPTIMIZERS} | {
    "apex.parallel.LARC": "optim.LARC",
}
"""Optimizers by their paths in the runtime."""

PARALLEL = {
    "apex.parallel.convert_syncbn_model": "convert_sync_batchnorm",
    "apex.parallel.create_syncbn_process_group": "create_syncbn_process_group",
    "apex.parallel.Reducer": "Reducer",
    "apex.parallel.SyncBatchNorm": "SyncBatchNorm",
}
"""What ``apex.parallel`` has beside its wrapper and the runtime has too, by its paths there."""

WRAPPERS = frozenset({"apex.parallel.DistributedDataParallel", "apex.parallel.distributed.DistributedDataParallel"})
"""What wraps a model for several processes."""

ALL_WRAPPERS = WRAPPERS | {f"amp_runtime.{name}" for name in WRAPPERS}
"""The same, and by the name under which the runtime has it."""

SWITCHES_EXCHANGE = frozenset({"disable_allreduce", "enable_allreduce"})
"""Methods of Apex's wrapper by which a script accumulates gradients; PyTorch's has ``no_sync`` instead."""

SCALERS_OF_LIBRARIES = frozenset({"timm.utils.ApexScaler", "timm.utils.cuda.ApexScaler"})
"""Classes of libraries that scale a loss with the Apex that the library imports itself."""

STANDALONE = (
    "apex.normalization",
    "apex.mlp",
    "apex.fused_dense",
    "apex.multi_tensor_apply",
    "apex.contrib",
    "apex.RNN",
    "apex.reparameterization",
    "apex.fp16_utils.BN_convert_float",
    "apex.fp16_utils.clip_grad_norm",
    "apex.fp16_utils.to_python_float",
    *sorted(EXTENSIONS),
)
"""Parts of Apex that have nothing to do with the loss scale: layers and kernels, taken from the runtime's drop-in."""

EXPORTS = {
    "apex.fp16_utils": frozenset(
        {
            "BN_convert_float",
            "DynamicLossScaler",
            "FP16Model",
            "FP16_Optimizer",
            "LossScaler",
            "clip_grad_norm",
            "convert_module",
            "convert_network",
            "master_params_to_model_params",
            "model_grads_to_master_grads",
            "network_to_half",
            "prep_param_lists",
            "to_python_float",
            "tofp16",
        }
    ),
    "apex.parallel": frozenset(
        {
            "DistributedDataParallel",
            "ReduceOp",
            "Reducer",
            "SyncBatchNorm",
            "convert_syncbn_model",
            "create_syncbn_process_group",
        }
    ),
    "apex.optimizers": frozenset({"FusedAdam", "FusedAdagrad", "FusedLAMB", "FusedNovoGrad", "FusedSGD"}),
    "apex.normalization": frozenset({"FusedLayerNorm", "FusedRMSNorm", "MixedFusedLayerNorm", "MixedFusedRMSNorm"}),
}
"""What ``from package import *`` binds."""

DROPIN_MODULES = frozenset(
    {
        "amp_C",
        "apex",
        "apex.RNN",
        "apex.RNN.RNNBackend",
        "apex.RNN.models",
        "apex.amp",
        "apex.amp._amp_state",
        "apex.amp.frontend",
        "apex.amp.handle",
        "apex.amp.scaler",
        "apex.contrib",
        "apex.contrib.clip_grad",
        "apex.contrib.focal_loss",
        "apex.contrib.focal_loss.focal_loss",
        "apex.contrib.group_norm",
        "apex.contrib.group_norm.group_norm",
        "apex.contrib.layer_norm",
        "apex.contrib.layer_norm.layer_norm",
        "apex.contrib.optimizers",
        "apex.contrib.optimizers.fp16_optimizer",
        "apex.contrib.optimizers.fused_adam",
        "apex.contrib.optimizers.fused_sgd",
        "apex.contrib.xentropy",
        "apex.contrib.xentropy.softmax_xentropy",
        "apex.fp16_utils",
        "apex.fp16_utils.fp16_optimizer",
        "apex.fp16_utils.fp16util",
        "apex.fp16_utils.loss_scaler",
        "apex.fused_dense",
        "apex.fused_dense.fused_dense",
        "apex.mlp",
        "apex.mlp.mlp",
        "apex.multi_tensor_apply",
        "apex.multi_tensor_apply.multi_tensor_apply",
        "apex.normalization",
        "apex.normalization.fused_layer_norm",
        "apex.optimizers",
        "apex.optimizers.fused_adam",
        "apex.optimizers.fused_lamb",
        "apex.optimizers.fused_mixed_precision_lamb",
        "apex.optimizers.fused_sgd",
        "apex.parallel",
        "apex.parallel.LARC",
        "apex.parallel.distributed",
        "apex.parallel.multiproc",
        "apex.parallel.optimized_sync_batchnorm",
        "apex.parallel.sync_batchnorm",
        "apex.reparameterization",
        "apex_C",
    }
)
"""Modules of Apex, by their old names, that ``amp_runtime.apex`` has."""

MISSING = frozenset(
    {
        "amp_C.multi_tensor_adagrad",
        "amp_C.multi_tensor_l2norm_mp",
        "amp_C.multi_tensor_l2norm_scale",
        "amp_C.multi_tensor_lamb_mp",
        "apex.RNN.cells",
        "apex.RNN.models.toRNNBackend",
        "apex.amp.amp",
        "apex.amp.frontend.O0",
        "apex.amp.frontend.O1",
        "apex.amp.frontend.O2",
        "apex.amp.frontend.O3",
        "apex.amp.lists",
        "apex.amp.opt",
        "apex.amp.wrap",
        "apex.contrib.group_norm.group_norm.cuda_group_norm_nhwc_one_pass",
        "apex.contrib.group_norm.group_norm.cuda_group_norm_nhwc_two_pass",
        "apex.contrib.group_norm.group_norm.cuda_group_norm_v2_nhwc",
        "apex.contrib.group_norm.group_norm.torch_group_norm",
        "apex.contrib.group_norm.torch_group_norm",
        "apex.contrib.optimizers.FusedLAMB",
        "apex.contrib.optimizers.distributed_fused_adam",
        "apex.contrib.optimizers.distributed_fused_lamb",
        "apex.contrib.optimizers.fused_lamb",
        "apex.normalization.fused_layer_norm.manual_rms_norm",
        "apex.optimizers.fp16_optimizer",
        "apex.optimizers.fused_adagrad",
        "apex.optimizers.fused_novograd",
        "apex.reparameterization.Reparameterization",
        "apex.reparameterization.WeightNorm",
        "apex.reparameterization.apply_reparameterization",
        "apex.reparameterization.remove_reparameterization",
        "apex.reparameterization.reparameterization",
        "apex.reparameterization.weight_norm",
    }
)
"""What Apex has in those modules and ``amp_runtime.apex`` has not.

Public scripts use some of it. What none uses was taken out of the runtime; docs/apex_interface.md lists the search. It
stands here so that an import of it is declined instead of rewritten.
"""

MISSING_STATE = frozenset(
    {
        "_overflow_buf",
        "all_fp32_from_fp16_grad_stash",
        "all_fp32_from_fp32_grad_stash",
        "dummy_overflow_buf",
    }
)
"""Attributes of Apex's loss scalers, and of what it keeps with an optimizer, that the runtime's have not."""

CLIP_OF_ASCEND = "clip_optimizer_grad_norm_fused"
"""The method that Ascend's Apex gives optimizers: it clips what ``amp.master_params`` yields to a norm."""

BUFFERS_OF_ASCEND = frozenset(
    f"get_{of}_combined_{what}" for of in ("model", "optimizer") for what in ("params", "grads")
)
"""Methods of Ascend's optimizers that hand out its flat buffers; the runtime has buffers, and hands out none."""

INITIALIZE_PARAMETERS = (
    "models",
    "optimizers",
    "enabled",
    "opt_level",
    "cast_model_type",
    "patch_torch_functions",
    "keep_batchnorm_fp32",
    "master_weights",
    "loss_scale",
    "cast_model_outputs",
    "num_losses",
    "verbosity",
    "min_loss_scale",
    "max_loss_scale",
)
"""The parameters of ``amp.initialize`` in their order."""

INITIALIZE_PARAMETERS_OF_ASCEND = frozenset(
    [
        "check_combined_tensors", "combine_ddp", "combine_grad", "ddp_replica_count", "dynamic_init_scale",
        "scale_backoff_factor", "scale_growth_factor", "scale_window", "user_cast_preferred",
    ]
)  # fmt: skip
"""Keywords of ``amp.initialize`` that Ascend's Apex adds."""

INIT_ARGUMENTS = {
    "enabled": "enabled",
    "keep_batchnorm_fp32": "keep_batchnorm_fp32",
    "master_weights": "master_weights",
    "loss_scale": "loss_scale",
    "cast_model_outputs": "cast_model_outputs",
    "num_losses": "num_losses",
    "min_loss_scale": "min_scale",
    "max_loss_scale": "max_scale",
    "dynamic_init_scale": "init_scale",
    "scale_window": "growth_interval",
    "combine_grad": "combine_grad",
}
"""Keywords of ``amp.initialize``, Ascend's included, and their names in ``amp_runtime.init``."""

IGNORED_ARGUMENTS = frozenset({"verbosity", "check_combined_tensors"})
"""Keywords of ``amp.initialize`` that change no number."""


def has_dropin(name: str) -> bool:
    """Whether ``amp_runtime.apex`` has what an import or an expression names."""
    if name in DROPIN_MODULES:
        return True
    while name:
        # The attributes of an object are its own; those of `_amp_state` are as Apex's.
        if name in DROPIN_NAMES or name == "apex.amp._amp_state":
            return True
        name = name.rpartition(".")[0]
    return False


def is_standalone(name: str) -> bool:
    """Whether a name belongs to a part of Apex that knows no loss scale."""
    if name.endswith("FP16_Optimizer"):
        return False
    return any(name == part or name.startswith(part + ".") for part in STANDALONE)
