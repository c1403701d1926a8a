"""Models in int8: the functions of torch, torchao and the runtime that make them."""

from __future__ import annotations

_PT2E = ("torchao.quantization.pt2e.quantize_pt2e", "torch.ao.quantization.quantize_pt2e")
_OLD = ("torch.ao.quantization", "torch.quantization")
_EAGER = tuple(f"{path}{part}" for path in _OLD for part in ("", ".quantize"))
_FX = tuple(f"{path}{part}" for path in _OLD for part in ("", ".quantize_fx"))


def _names(paths: tuple[str, ...], *names: str) -> frozenset[str]:
    return frozenset(f"{path}.{name}" for path in paths for name in names)


RUNTIME_QUANTIZES = "amp_runtime.quantize"
"""The runtime's, which raises an error under autocast, and calibrates in evaluation mode."""

OBSERVED_LAYERS = _names(_EAGER, "prepare", "prepare_qat")
"""Give a model each layer of which is observed by itself: nothing is folded into another one.

Source: https://docs.pytorch.org/docs/stable/quantization-support.html
"""

CALIBRATED = _names(_EAGER, "prepare") | _names(_FX, "prepare_fx") | _names(_PT2E, "prepare_pt2e")
"""Give a model that is trained already: what it is called with after that is calibration."""

OBSERVED = CALIBRATED | OBSERVED_LAYERS | _names(_FX, "prepare_qat_fx") | _names(_PT2E, "prepare_qat_pt2e")
"""Give a model whose ranges are those of what it is called with.

Source: https://docs.pytorch.org/ao/stable/pt2e_quantization/pt2e_quant_ptq.html
"""

CONVERTED = _names(_PT2E, "convert_pt2e") | {"amp_runtime.convert_quantized"}
"""Give a model whose graph holds the ranges, as numbers and not as tensors."""

EXPORTS = frozenset({"torch.export.export", "torch.export.export_for_training"})
"""Write a model down as it is in its mode."""

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
