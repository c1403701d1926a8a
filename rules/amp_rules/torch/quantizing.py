"""Models in int8: the functions of torchao and of the runtime that make them."""

from __future__ import annotations

_PT2E = ("torchao.quantization.pt2e.quantize_pt2e", "torch.ao.quantization.quantize_pt2e")

RUNTIME_QUANTIZES = "amp_runtime.quantize"
"""The runtime's, which raises an error under autocast."""

OBSERVED = frozenset(f"{path}.{name}" for path in _PT2E for name in ("prepare_pt2e", "prepare_qat_pt2e"))
"""Give a model whose ranges are those of what it is called with.

Source: https://docs.pytorch.org/ao/stable/pt2e_quantization/pt2e_quant_ptq.html
"""

CONVERTED = frozenset({*(f"{path}.convert_pt2e" for path in _PT2E), "amp_runtime.convert_quantized"})
"""Give a model whose graph holds the ranges, as numbers and not as tensors."""

LIBRARIES = ("torchao.", "torch.ao.quantization", "torch.quantization", "torch.ao.nn.", "amp_runtime.quantize",
             "amp_runtime.convert_quantized", "bitsandbytes.", "optimum.", "neural_compressor.")  # fmt: skip
"""Beginnings of the names with which a script quantizes itself."""

_LAYERS = ("torch.nn", "torch.nn.modules", "torch.nn.modules.linear", "torch.nn.modules.conv")

HAS_DYNAMIC_FORM = frozenset(f"{path}.Linear" for path in _LAYERS)
"""Layers that have int8 weights with inputs that are rounded batch by batch."""

HAS_STATIC_FORM = HAS_DYNAMIC_FORM | {f"{path}.{name}" for path in _LAYERS for name in ("Conv1d", "Conv2d")}
"""Layers of which the x86 quantizer has an int8 form."""

LIBRARY_MODELS = ("torchvision.models.resnet", "torchvision.models.vgg", "torchvision.models.mobilenet",
                  "torchvision.models.densenet", "torchvision.models.alexnet")  # fmt: skip
"""Beginnings of the names of models that have such layers."""

OTHER_FORMS = frozenset(
    {"torch.compile", "torch.jit.script", "torch.jit.trace", "torch.set_default_dtype", "torch.set_default_tensor_type"}
)
"""Functions that make something else of a model than torch's own layers in float32."""

HOOKS = frozenset({"register_forward_hook", "register_forward_pre_hook"})
"""Methods that let a layer run a function of the script's, which is no part of an exported graph."""

JOINS = frozenset({"torch.distributed.init_process_group"})
"""Functions that start processes which the runtime does not know."""
