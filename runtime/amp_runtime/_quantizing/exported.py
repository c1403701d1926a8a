"""Models that ``torch.export`` writes down as a graph, and what pt2e of torchao makes of the graph."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.fx.operator_schemas import get_signature_for_torch_op

from amp_runtime._core.trees import rebuild_sequence
from amp_runtime._quantizing.calibration import Call
from amp_runtime._quantizing.library import part, quietly

_DROPOUT = "amp_dropout"
"""Where a node keeps the probability that it trains with."""


def export(model: nn.Module, call: Call) -> Any:
    """The exported program of ``model``, with every dimension free that the model leaves free."""
    args, kwargs = call
    with quietly():
        # By name, for arguments by keyword have no place of their own.
        return torch.export.export(model, args, kwargs, dynamic_shapes=_by_parameter(model, _free(args), _free(kwargs)))


def _free(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        # A length of one stays, and nothing is said about it.
        return {i: torch.export.Dim.AUTO for i, length in enumerate(value.shape) if length != 1}
    if isinstance(value, Mapping):
        return {key: _free(item) for key, item in value.items()}
    return rebuild_sequence(value, list(map(_free, value))) if isinstance(value, (list, tuple)) else None


def _by_parameter(model: nn.Module, free_args: tuple[Any, ...], free_kwargs: dict[str, Any]) -> Any:
    if not free_kwargs:
        return free_args
    names = list(inspect.signature(model.forward).parameters)
    return {**dict(zip(names, free_args, strict=False)), **free_kwargs}


def fixed_batch(program: Any) -> int | None:
    """The only number of samples that an exported program takes; None if it takes any."""
    inputs = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"}
    shapes = [
        node.meta["val"].shape
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in inputs and isinstance(node.meta.get("val"), torch.Tensor)
    ]
    lengths = [shape[0] for shape in shapes if len(shape)]
    return int(lengths[0]) if lengths and all(isinstance(length, int) for length in lengths) else None


def prepare(graph: Any, *, training: bool) -> Any:
    """The graph with observers, or with fake quantization; batch norm is folded into the layer before it."""
    quantizers = part("quantization.pt2e.quantizer.x86_inductor_quantizer")
    making = part("quantization.pt2e.quantize_pt2e")
    quantizer = quantizers.X86InductorQuantizer()
    with quietly():
        quantizer.set_global(quantizers.get_default_x86_inductor_quantization_config(is_qat=training))
        return (making.prepare_qat_pt2e if training else making.prepare_pt2e)(graph, quantizer)


def convert(graph: Any) -> Any:
    """The graph with int8 weights, without the float weights that they were made from."""
    with quietly():
        made = part("quantization.pt2e.quantize_pt2e").convert_pt2e(graph)
    move(made, False)
    made.graph.eliminate_dead_code()
    read = {node.target for node in made.graph.nodes if node.op == "get_attr"}
    for name in [*dict(made.named_parameters()), *dict(made.named_buffers())]:
        if name not in read:
            owner, _, leaf = name.rpartition(".")
            delattr(made.get_submodule(owner), leaf)
    made.recompile()
    for parameter in made.parameters():
        parameter.requires_grad_(False)
    return made


def move(graph: Any, training: bool) -> None:
    """Has dropout and batch norm of a graph that was exported in training train, or evaluate.

    torchao's own functions look for patterns, which takes seconds at each call, and leave the dropout of attention out.
    """
    for node in graph.graph.nodes:
        signatures: Any = get_signature_for_torch_op(node.target) if node.op == "call_function" else None
        for place, name in enumerate(signatures[0].parameters if signatures else ()):
            if name in ("train", "training"):
                _set(node, place, name, training)
            elif name == "dropout_p":
                trained_with = node.meta.setdefault(_DROPOUT, _get(node, place, name, 0.0))
                _set(node, place, name, trained_with if training else 0.0)
    graph.recompile()


def _get(node: Any, place: int, name: str, default: Any) -> Any:
    return node.args[place] if place < len(node.args) else node.kwargs.get(name, default)


def _set(node: Any, place: int, name: str, value: Any) -> None:
    if place < len(node.args):
        node.update_arg(place, value)
    elif name in node.kwargs:
        node.update_kwarg(name, value)


def observe(graph: Any, on: bool) -> None:
    """Has the observers of a graph look at values, or keep what they have."""
    pt2e = part("quantization.pt2e")
    graph.apply(pt2e.enable_observer if on else pt2e.disable_observer)


def has_ranges(graph: Any) -> bool:
    """Whether the observers of a graph have looked at values: before, there is no least one, or it is infinite."""
    least = [value for name, value in graph.named_buffers() if name.endswith("min_val")]
    return all(value.numel() and bool(value.isfinite().all()) for value in least)


def fake(graph: Any, on: bool) -> None:
    """Has fake quantization round values, or let them pass."""
    pt2e = part("quantization.pt2e")
    graph.apply(pt2e.enable_fake_quant if on else pt2e.disable_fake_quant)
