"""What autograd's graph tells of how a loss was computed, and from which data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .digests import contents

# Nodes of autograd's graph that stand for products with weights, whatever module or function made them.
_PRODUCT = re.compile(r"(?:[mM]m|[Mm]v|Convolution|Linear|Rnn\w*|DotProduct\w*Attention)\w*Backward")
_BATCH_NORM = re.compile(r"(?:Native|Cudnn|Miopen)BatchNormBackward")
_LARGEST_GRAPH = 100_000
# What of a product's operands may be data: part of the node's name, which edge is missing then, what the node keeps.
_STARTS = (
    ("AddmmBackward", 1, "_saved_mat1"),
    ("MmBackward", 0, "_saved_self"),
    ("ConvolutionBackward", 0, "_saved_input"),
    ("EmbeddingBackward", None, "_saved_indices"),
)
_INPUTS = 4


@dataclass
class Graph:
    """What led to a loss.

    Attributes:
        half: the number of products that were computed in half.
        full: the same in float32.
        inputs: of each tensor of data that went into products, the digests of its rows.
        has_batch_norm: whether a batch norm looked at the batch of this process alone.
    """

    half: int = 0
    full: int = 0
    inputs: list[list[str]] = field(default_factory=list)
    has_batch_norm: bool = False


def look_at(torch: Any, tensors: Iterable[Any]) -> Graph:
    """All of what led to these tensors."""
    graph = Graph()
    for node in nodes(tensors):
        _look_at(torch, node, graph)
        if len(graph.inputs) < _INPUTS and (rows := _input(torch, node)):
            graph.inputs.append(rows)
    return graph


def _input(torch: Any, node: Any) -> list[str]:
    """The digests of the rows of the data that a product starts from; empty where it starts from another result."""
    for pattern, place, name in _STARTS:
        if pattern in node.name() and (place is None or node.next_functions[place][0] is None):
            return contents(torch, getattr(node, name, None))
    return []


def _look_at(torch: Any, node: Any, graph: Graph) -> None:
    name = node.name()
    if not (_PRODUCT.search(name) or _BATCH_NORM.search(name)):
        return
    outputs = getattr(node, "_input_metadata", None)
    if not outputs:
        return
    if _PRODUCT.search(name):
        # What is in float64 stays there under autocast, and says nothing.
        graph.half += outputs[0].dtype in (torch.float16, torch.bfloat16)
        graph.full += outputs[0].dtype is torch.float32
    # An instance norm is computed as a batch norm of one sample.
    elif getattr(node, "_saved_training", True) and outputs[0].shape[0] > 1:
        graph.has_batch_norm = True


def nodes(tensors: Iterable[Any]) -> Iterator[Any]:
    """The nodes of autograd's graph that led to these tensors, as far as it is not too large."""
    pending = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(pending)
    while pending and len(seen) < _LARGEST_GRAPH:
        node = pending.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
