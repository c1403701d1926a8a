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
