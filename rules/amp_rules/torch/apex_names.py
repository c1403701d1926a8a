"""What the runtime has of Apex's interface, name by name: nothing else of it is written into a script."""

from __future__ import annotations

_NAMES = {
    "amp_C": """
        multi_tensor_adam multi_tensor_adam_capturable multi_tensor_adam_capturable_master
        multi_tensor_axpby multi_tensor_l2norm multi_tensor_lamb multi_tensor_lamb_stage1_cuda
        multi_tensor_lamb_stage2_cuda multi_tensor_novograd multi_tensor_scale multi_tensor_sgd
        multi_tensor_unscale_l2norm update_scale_hysteresis
    """,
    "apex.RNN": "GRU LSTM ReLU Tanh mLSTM",
    "apex.RNN.RNNBackend": "RNNCell bidirectionalRNN stackedRNN",
    "apex.RNN.models": """
        GRU LSTM RNNCell ReLU Tanh bidirectionalRNN gru_cell lstm_cell mLSTM mLSTMRNNCell relu_cell
        stackedRNN tanh_cell
    """,
    "apex.amp": """
        disable_casts float_function half_function init initialize load_state_dict master_params
        promote_function register_float_function register_half_function register_promote_function scale_loss
        state_dict
    """,
    "apex.amp._amp_state": "AmpState Casts LossScaler master_params maybe_print warn_or_err",
    "apex.amp.frontend": """
        LossScaler Properties init initialize load_state_dict maybe_print process_optimizer state_dict
        warn_or_err
    """,
    "apex.amp.handle": "AmpHandle LossScaler NoOpHandle OptimWrapper disable_casts half_dtype scale_loss",
    "apex.amp.scaler": "FLOOR LossScaler",
    "apex.contrib.clip_grad": "clip_grad_norm_",
    "apex.contrib.focal_loss": "FocalLoss focal_loss",
    "apex.contrib.focal_loss.focal_loss": "FocalLoss focal_loss",
    "apex.contrib.group_norm": "GroupNorm",
    "apex.contrib.group_norm.group_norm": "GroupNorm",
    "apex.contrib.layer_norm": "FastLayerNorm",
    "apex.contrib.layer_norm.layer_norm": "FastLayerNorm fused_layer_norm_affine",
    "apex.contrib.optimizers": "FP16_Optimizer FusedAdam FusedSGD",
    "apex.contrib.optimizers.fp16_optimizer": """
        DynamicLossScaler FP16_Optimizer LossScaler WrappingOptimizer found_in
    """,
    "apex.contrib.optimizers.fused_adam": "FusedAdam",
    "apex.contrib.optimizers.fused_sgd": "FusedSGD",
    "apex.contrib.xentropy": "SoftmaxCrossEntropyLoss",
    "apex.contrib.xentropy.softmax_xentropy": "SoftmaxCrossEntropyLoss",
    "apex.fp16_utils": """
        BN_convert_float DynamicLossScaler FP16Model FP16_Optimizer LossScaler clip_grad_norm convert_module
        convert_network master_params_to_model_params model_grads_to_master_grads network_to_half
        prep_param_lists to_python_float tofp16
    """,
    "apex.fp16_utils.fp16_optimizer": """
        DynamicLossScaler FP16_Optimizer HALF_DTYPES LossScaler WrappingOptimizer clip_grad_norm found_in
    """,
    "apex.fp16_utils.fp16util": """
        BN_convert_float FP16Model cast_model clip_grad_norm convert_module convert_network
        master_params_to_model_params model_grads_to_master_grads network_to_half prep_param_lists
        to_python_float tofp16
    """,
    "apex.fp16_utils.loss_scaler": "DynamicLossScaler LossScaler found_in has_overflow to_python_float",
    "apex.fused_dense": "FusedDense FusedDenseGeluDense",
    "apex.fused_dense.fused_dense": "FusedDense FusedDenseGeluDense cast_if_autocast without_autocast",
    "apex.mlp": "MLP MlpFunction mlp_function",
    "apex.mlp.mlp": "MLP MlpFunction cast_if_autocast mlp_function without_autocast",
    "apex.multi_tensor_apply": "MultiTensorApply multi_tensor_applier",
    "apex.multi_tensor_apply.multi_tensor_apply": "MultiTensorApply",
    "apex.normalization": "FusedLayerNorm FusedRMSNorm MixedFusedLayerNorm MixedFusedRMSNorm",
    "apex.normalization.fused_layer_norm": """
        FusedLayerNorm FusedLayerNormAffineFunction FusedLayerNormAffineMixedDtypesFunction
        FusedLayerNormFunction FusedRMSNorm FusedRMSNormAffineFunction FusedRMSNormAffineMixedDtypesFunction
        FusedRMSNormFunction MixedFusedLayerNorm MixedFusedRMSNorm cast_if_autocast fused_layer_norm
        fused_layer_norm_affine fused_rms_norm fused_rms_norm_affine mixed_dtype_fused_layer_norm_affine
        mixed_dtype_fused_rms_norm_affine without_autocast
    """,
    "apex.optimizers": """
        FP16_Optimizer FusedAdagrad FusedAdam FusedLAMB FusedMixedPrecisionLamb FusedNovoGrad FusedSGD Lamb
        NpuFusedAdadelta NpuFusedAdam NpuFusedAdamP NpuFusedAdamW NpuFusedBertAdam NpuFusedLamb
        NpuFusedRMSprop NpuFusedRMSpropTF NpuFusedSGD
    """,
    "apex.optimizers.fused_adam": "FusedAdam",
    "apex.optimizers.fused_lamb": "FusedLAMB",
    "apex.optimizers.fused_mixed_precision_lamb": "FusedMixedPrecisionLamb",
    "apex.optimizers.fused_sgd": "FusedSGD",
    "apex.parallel": """
        DistributedDataParallel LARC Reducer SyncBatchNorm apply_flat_dist_call convert_syncbn_model
        create_syncbn_process_group flat_dist_call flatten split_by_type split_half_float_double unflatten
    """,
    "apex.parallel.LARC": "LARC",
    "apex.parallel.distributed": """
        DistributedDataParallel Reducer apply_flat_dist_call average broadcast flat_dist_call split_by_type
        split_half_float_double
    """,
    "apex.parallel.multiproc": "main",
    "apex.parallel.optimized_sync_batchnorm": "SyncBatchNorm convert_syncbn_model",
    "apex.parallel.sync_batchnorm": "SyncBatchNorm",
    "apex.reparameterization": "HALF_DTYPES apply_weight_norm remove_weight_norm",
    "apex_C": "flatten unflatten",
}

DROPIN_NAMES = frozenset(f"{module}.{name}" for module, names in _NAMES.items() for name in names.split())
"""Functions, classes and objects of ``amp_runtime.apex``, by Apex's names."""
