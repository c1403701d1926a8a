"""``amp.quantize`` and ``amp.convert_quantized``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import nn

from amp_runtime._core.context import context
from amp_runtime._core.dtensors import any_sharded
from amp_runtime._core.hooks import Hook
from amp_runtime._core.randomness import random_state_with_gpu, set_random_state_with_gpu
from amp_runtime._core.trees import tensors_in
from amp_runtime._distributed.group import from_main_process, is_main_process
from amp_runtime._prepare import unwrap
from amp_runtime._quantizing import exported
from amp_runtime._quantizing.calibration import Call, at_least_two, calls_of, together
from amp_runtime._quantizing.library import check, part, quietly
from amp_runtime._quantizing.models import PreparedModel, QuantizedModel, size_of
from amp_runtime._quantizing.pieces import Piece, batch_of, exportable

_NO_DYNAMIC_KERNEL = "only linear layers have a dynamic int8 kernel"
_NO_STATIC_KERNEL = "the x86 quantizer has no int8 form of what reads it"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def quantize(
    model: nn.Module,
    kind: Literal["dynamic", "static", "qat"],
    calibration: Iterable[Any] | None = None,
    *,
    inputs: Callable[[Any], Any] | None = None,
    batches: int = 64,
) -> Any:
    """A copy of ``model`` in int8, or, for ``"qat"``, one that trains for it. Needs torchao; all ranks call it.

    - ``"dynamic"``: the weights of linear layers are int8, and their inputs are rounded batch by batch.
    - ``"static"``: linear and convolution layers, with ranges of the calibration batches; batch norm is folded.
    - ``"qat"``: the copy is made before the optimizer, trains with rounding in its forward pass, and is converted at
      the end::

          model = amp.quantize(model, "qat", calibration=train_loader)
          optimizer = SGD(model.parameters(), lr=0.1)
          for epoch in range(epochs):
              if epoch == epochs - 2:
                  model.freeze_observers()
              ...
          quantized = amp.convert_quantized(model)

    The model itself stays as it is; the copy is one in float32 that evaluates. Layers without an int8 kernel, and for
    ``"static"`` parts that ``torch.export`` cannot take, stay float and stand in ``left_float``; the main process
    prints them. In several processes the ranges are those of the main process's batches.

    Args:
        model: what is trained, prepared by ``amp.prepare_model`` or not; not sharded.
        kind: which of the three.
        calibration: a loader with samples like those of training; ``"dynamic"`` needs none, ``"qat"`` reads one batch.
        inputs: makes of a batch the model's input: a tensor, a tuple of arguments or a dictionary of them. Without it,
            the first element of a batch that is a tuple or list, or the batch itself; of a dictionary, the entries that
            ``forward`` names.
        batches: how many batches are read at most.

    Returns:
        A ``QuantizedModel``, called like ``model``; for ``"qat"`` a ``PreparedModel``.

    Raises:
        ValueError: ``kind`` is none of the three; a kind needs calibration and has none, or the loader is empty (on all
            ranks); nothing in the model can be int8.
        ImportError: torchao is not installed.
        RuntimeError: the call stands under autocast; the model is sharded; for ``"qat"`` it cannot be exported; the
            exported model computes something else.
    """
    own = unwrap(model)
    together(lambda: _refuse(own, kind, calibration))
    state = random_state_with_gpu()  # loaders draw a seed, and torchao the inputs of its patterns
    try:
        made = _made(float_copy(own), kind, calibration, inputs, batches)
    finally:
        set_random_state_with_gpu(state)
    if isinstance(made, QuantizedModel):
        _tell(made)
    return made


def _refuse(model: nn.Module, kind: str, calibration: Iterable[Any] | None) -> None:
    """Raises what ``quantize`` says that it raises at once."""
    check(kind)
    if kind != "dynamic" and calibration is None:
        raise ValueError(f"amp.quantize got kind={kind!r} without calibration; give calibration=loader")
    parameter = next(model.parameters(), None)
    if torch.is_autocast_enabled("cpu" if parameter is None else parameter.device.type):
        raise RuntimeError(
            "amp.quantize was called under autocast, which would calibrate half precision; call it outside"
        )
    if any_sharded(model.parameters()):
        raise RuntimeError(
            "amp.quantize got a sharded model, of which a rank has a part; load its whole weights into one"
        )


def _made(
    plain: nn.Module,
    kind: str,
    calibration: Iterable[Any] | None,
    inputs: Callable[[Any], Any] | None,
    batches: int,
) -> Any:
    if kind == "dynamic":
        return together(lambda: _dynamic(plain))
    assert calibration is not None
    calls = calls_of(plain, calibration, inputs, 1 if kind == "qat" else batches)
    return _static(plain, calls) if kind == "static" else together(lambda: _prepared(plain, at_least_two(calls[0])))


def convert_quantized(model: Any) -> QuantizedModel:
    """The int8 model of one that ``amp.quantize(model, "qat", ...)`` made, and that was trained since.

    That one stays as it is. With batch norm, torchao takes a minute or two.

    Args:
        model: the model that trains, prepared by ``amp.prepare_model`` or not.

    Returns:
        The model in int8, for the last evaluation and ``amp.save_quantized``.

    Raises:
        TypeError: the model was not made by ``amp.quantize``.
    """
    own = unwrap(model)
    if not isinstance(own, PreparedModel):
        raise TypeError(
            f"amp.convert_quantized got {type(own).__name__}; give the model that amp.quantize(model, 'qat', ...) made"
        )
    with quietly():
        graph = copy.deepcopy(own.model)
    exported.move(graph, False)
    exported.observe(graph, False)
    _agree([graph])
    state = random_state_with_gpu()
    try:
        made = exported.convert(graph)
    finally:
        set_random_state_with_gpu(state)
    left = _left_in(made, "")
    result = QuantizedModel(made, "qat", left, own.float_bytes, {"": own.call})
    _tell(result)
    return result


def float_copy(model: nn.Module) -> nn.Module:
    """A float32 copy that evaluates, without the hooks of ``amp.prepare_model``."""
    made = copy.deepcopy(model).float().eval()
    for module in made.modules():
        for attribute in _HOOKS:
            hooks = getattr(module, attribute, {})
            for key in [key for key, hook in hooks.items() if isinstance(hook, Hook)]:
                del hooks[key]
    return made


def to_dynamic(model: nn.Module) -> None:
    """Gives the linear layers of ``model`` int8 weights and inputs that are rounded batch by batch."""
    quantization = part("quantization")
    with quietly():
        quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())


def _dynamic(model: nn.Module) -> QuantizedModel:
    before = size_of(model)
    with torch.no_grad():
        to_dynamic(model)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    named = dict(model.named_parameters())
    left = {n: _NO_DYNAMIC_KERNEL for n, p in named.items() if p.dim() > 1 and not hasattr(p, "__tensor_flatten__")}
    if len(left) == sum(p.dim() > 1 for p in named.values()):
        raise ValueError(
            "amp.quantize found nothing that can be int8 in the model; 'dynamic' takes linear layers alone"
        )
    return QuantizedModel(model, "dynamic", left, before)


def _static(model: nn.Module, calls: list[Call]) -> QuantizedModel:
    before = size_of(model)
    left: dict[str, str] = {}
    with torch.no_grad():
        whole, pieces, graphs = together(lambda: _observed(model, calls, left))
        _agree(list(graphs.values()))
        converted = {name: exported.convert(graph) for name, graph in graphs.items()}
    for name, graph in converted.items():
        left.update(_left_in(graph, name))
    if not any(buffer.dtype is torch.int8 for graph in converted.values() for buffer in _constants(graph)):
        raise ValueError("amp.quantize found nothing that can be int8 in the model; see left_float of 'dynamic'")
    result = QuantizedModel(
        with_parts(whole, converted), "static", left, before, {piece.name: piece.call for piece in pieces}
    )
    for parameter in result.parameters():
        parameter.requires_grad_(False)
    _tell_fixed(pieces)
    return result


def _observed(
    model: nn.Module, calls: list[Call], left: dict[str, str]
) -> tuple[nn.Module, list[Piece], dict[str, Any]]:
    """The model with observers that have seen all batches, the parts that were exported, and their graphs."""
    draws = random_state_with_gpu()
    expected = model(*calls[0][0], **calls[0][1])
    pieces = exportable(model, calls[0], left)
    graphs = {piece.name: exported.prepare(piece.program.module(), training=False) for piece in pieces}
    whole = with_parts(model, graphs)
    set_random_state_with_gpu(draws)  # a model that draws gives the same for the same numbers alone
    if not _close(whole(*calls[0][0], **calls[0][1]), expected):
        raise RuntimeError("amp.quantize exported a model that computes something else: use 'dynamic'")
    for args, kwargs in calls[1:]:
        whole(*args, **kwargs)
    return whole, pieces, graphs


def _prepared(model: nn.Module, call: Call) -> PreparedModel:
    before = size_of(model)
    draws = random_state_with_gpu()
    with torch.no_grad():
        expected = model(*call[0], **call[1])
    names = list(model.state_dict())
    model.train()
    try:
        program = exported.export(model, call)
    except Exception as error:
        raise RuntimeError(
            f"amp.quantize cannot export the model, which 'qat' needs ({type(error).__name__}: {error}); use 'dynamic'"
        ) from error
    result = PreparedModel(exported.prepare(program.module(), training=True), call, before, names)
    exported.fake(result.model, False)
    set_random_state_with_gpu(draws)
    with torch.no_grad():
        same = _close(result.eval()(*call[0], **call[1]), expected)
    if not same:
        raise RuntimeError("amp.quantize exported a model that evaluates in another way than it trains: use 'static'")
    exported.fake(result.model, True)
    _tell_fixed([Piece("", program, call)])
    return result.train()


def with_parts(model: nn.Module, parts: dict[str, nn.Module]) -> nn.Module:
    """The model with these modules in their places."""
    for name, module in parts.items():
        if not name:
            return module
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, module)
    return model


def _constants(graph: nn.Module) -> list[torch.Tensor]:
    return [*graph.parameters(), *graph.buffers()]


def _left_in(graph: Any, name: str) -> dict[str, str]:
    """The float weights that a converted graph still reads."""
    prefix = f"{name}." if name else ""
    read = [node.target for node in graph.graph.nodes if node.op == "get_attr"]
    tensors = {**dict(graph.named_parameters()), **dict(graph.named_buffers())}
    return {
        prefix + target: _NO_STATIC_KERNEL
        for target in read
        if target in tensors and tensors[target].is_floating_point() and tensors[target].dim() > 1
    }


def _close(found: Any, expected: Any) -> bool:
    """Whether a graph with observers computes what the model does, but for the rounding of folded batch norm."""
    mine, others = list(tensors_in(found)), list(tensors_in(expected))
    return len(mine) == len(others) and all(
        not a.is_floating_point()
        or torch.allclose(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()) if b.numel() else 0.0, equal_nan=True)
        for a, b in zip(mine, others, strict=True)
    )


def _agree(graphs: list[Any]) -> None:
    """Gives every rank the ranges that the main process found: the batches of each are other ones."""
    if not context.distributed:
        return
    for graph in graphs:
        own = {name: tensor.cpu() for name, tensor in graph.state_dict().items()} if is_main_process() else {}
        told = from_main_process(own)
        for name, buffer in dict(graph.named_buffers()).items():
            if name in told:
                owner, _, leaf = name.rpartition(".")
                setattr(graph.get_submodule(owner), leaf, told[name].to(buffer.device))


def _tell(model: QuantizedModel) -> None:
    if is_main_process():
        print(f"amp: {model.describe()}")


def _tell_fixed(pieces: list[Piece]) -> None:
    fixed = {piece.name or "the model": length for piece in pieces if (length := batch_of(piece)) is not None}
    if fixed and is_main_process():
        print(f"amp: int8 takes batches of one size alone: {', '.join(f'{n}: {k}' for n, k in fixed.items())}")
