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
