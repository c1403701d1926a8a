"""Layer sizes that Tensor Cores have to pad."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import keyword

_SIZES = {
    "Linear": ((0, "in_features"), (1, "out_features")),
    "Conv1d": ((0, "in_channels"), (1, "out_channels")),
    "Conv2d": ((0, "in_channels"), (1, "out_channels")),
    "Conv3d": ((0, "in_channels"), (1, "out_channels")),
    "ConvTranspose1d": ((0, "in_channels"), (1, "out_channels")),
    "ConvTranspose2d": ((0, "in_channels"), (1, "out_channels")),
    "LSTM": ((0, "input_size"), (1, "hidden_size")),
    "GRU": ((0, "input_size"), (1, "hidden_size")),
    "MultiheadAttention": ((0, "embed_dim"),),
    "Embedding": ((1, "embedding_dim"),),
    "TransformerEncoderLayer": ((0, "d_model"), (2, "dim_feedforward")),
    "TransformerDecoderLayer": ((0, "d_model"), (2, "dim_feedforward")),
}
_SMALL = 64
"""Layers narrower than this are not worth a word: other things take the time there."""


class DimNotMultipleOf8(Check):
    """Layer sizes that Tensor Cores have to pad.

    ## What it does

    Finds layers whose width is written as a number from 64 on that is not a multiple of 8.

    ## Why

    Tensor Cores multiply half matrices in tiles of 8 (16 bytes of alignment). With 50257 columns each row begins at
    another misalignment: 50257 = 8 * 6282 + 1, so only 1 row in 8 is aligned, and cuBLAS takes a kernel that loads
    element by element or none of the Tensor Core kernels at all. Padded to 50304, the first 50257 outputs are the
    same numbers.

    ## Example

        self.head = nn.Linear(768, 50257)

    ## Use instead

        self.head = nn.Linear(768, 50304)

    ## When it is silent

    For sizes below 64 (numbers of classes, channels of images), for sizes that are not numbers in the text, and for
    depthwise convolutions.

    ## Source

    https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html
    """

    code = "AMP951"
    name = "dim-not-multiple-of-8"
    severity = "performance"
    message = "The size of a layer is not a multiple of 8."
    advice = "Round the size up to a multiple of 8 (64 is better still) and ignore what is beyond."
    preview = "the width of a layer is a choice, and changing it changes the model"
    triggers = tuple(f"{name}(" for name in _SIZES)

    def applies(self, mode: Mode) -> bool:
        """Tensor Cores are in GPUs."""
        return mode.device == "cuda"

    def visit_module(self, file: LintedFile) -> None:
        """Judge each layer whose sizes are numbers."""
        module = file.module
        index = module.index
        for name, places in _SIZES.items():
            for call in index.named.get(name, ()):
                if (module.dotted(call.func) or "").startswith("torch.nn.") and not _is_depthwise(call):
                    for node, size in _odd_sizes(module, call, places):
                        message = f"`{module.module.text(node)}`, a size of this {name}, is not a multiple of 8"
                        self.report_in(file, node, f"{message}: {size} = 8 * {size // 8} + {size % 8}")
                        break


def _odd_sizes(
    module: ModuleFacts, call: ast.Call, places: tuple[tuple[int, str], ...]
) -> Iterator[tuple[ast.expr, int]]:
    for position, name in places:
        node = keyword(call, name) or (call.args[position] if len(call.args) > position else None)
        size = _number(module, node)
        if node is not None and size is not None and size >= _SMALL and size % 8:
            yield node, size


def _number(module: ModuleFacts, node: ast.expr | None) -> int | None:
    if isinstance(node, ast.Name) and node.id in module.constants:
        node = module.constants[node.id]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _number(module, node.left), _number(module, node.right)
        return left * right if left is not None and right is not None else None
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_depthwise(call: ast.Call) -> bool:
    """Depthwise convolutions have no matrix product."""
    return keyword(call, "groups") is not None
