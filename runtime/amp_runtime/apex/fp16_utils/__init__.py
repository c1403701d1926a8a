"""Apex's tools for half models by hand: ``FP16_Optimizer``, ``network_to_half`` and what goes with them."""

from amp_runtime.apex.fp16_utils.fp16_optimizer import FP16_Optimizer as FP16_Optimizer
from amp_runtime.apex.fp16_utils.fp16util import BN_convert_float as BN_convert_float
from amp_runtime.apex.fp16_utils.fp16util import FP16Model as FP16Model
from amp_runtime.apex.fp16_utils.fp16util import clip_grad_norm as clip_grad_norm
from amp_runtime.apex.fp16_utils.fp16util import convert_module as convert_module
from amp_runtime.apex.fp16_utils.fp16util import convert_network as convert_network
from amp_runtime.apex.fp16_utils.fp16util import master_params_to_model_params as master_params_to_model_params
from amp_runtime.apex.fp16_utils.fp16util import model_grads_to_master_grads as model_grads_to_master_grads
from amp_runtime.apex.fp16_utils.fp16util import network_to_half as network_to_half
from amp_runtime.apex.fp16_utils.fp16util import prep_param_lists as prep_param_lists
from amp_runtime.apex.fp16_utils.fp16util import to_python_float as to_python_float
from amp_runtime.apex.fp16_utils.fp16util import tofp16 as tofp16
from amp_runtime.apex.fp16_utils.loss_scaler import DynamicLossScaler as DynamicLossScaler
from amp_runtime.apex.fp16_utils.loss_scaler import LossScaler as LossScaler

__all__ = [
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
]
