"""``amp.save_quantized`` and ``amp.load_quantized``: int8 models whole, which a ``state_dict`` is not."""

from __future__ import annotations

import io
import os
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from amp_runtime._distributed.group import is_main_process
from amp_runtime._distributed.objects import bytes_of
from amp_runtime._prepare import unwrap
from amp_runtime._quantizing import exported
from amp_runtime._quantizing.library import part, quietly
from amp_runtime._quantizing.making import float_copy, with_parts
from amp_runtime._quantizing.models import QuantizedModel
from amp_runtime._saving.atomic import write_atomically

FORMAT = 2
"""The version of the file's layout: in the second one graphs are compressed."""
_MARK = "amp_quantized"


def save_quantized(model: Any, path: str | os.PathLike[str]) -> None:
    """Saves an int8 model whole; the main process writes. ``amp.load_quantized`` reads it.

    What was exported is in the file with its graph (``torch.export.save``); a dynamic model, and parts of a static
    one that could not be exported, are weights, for which loading needs the class.

    Args:
        model: what ``amp.quantize`` or ``amp.convert_quantized`` returned.
        path: the file. Missing folders are made; it is written whole or not at all.

    Raises:
        TypeError: the model is not in int8.
    """
    own = unwrap(model)
    if not isinstance(own, QuantizedModel):
        raise TypeError(
            f"amp.save_quantized got {type(own).__name__}; give what amp.quantize or amp.convert_quantized returned"
        )
    if not is_main_process():
        return
    graphs = {name: _written(own.model.get_submodule(name), call) for name, call in own.calls.items()}
    inside = tuple(f"{name}." for name in graphs)
    rest = {} if "" in graphs else {k: v for k, v in own.model.state_dict().items() if not k.startswith(inside)}
    contents = {
        _MARK: FORMAT,
        "kind": own.kind,
        "left_float": own.left_float,
        "float_bytes": own.float_bytes,
        "graphs": graphs,
        "weights": rest,
    }
    write_atomically(Path(path), lambda file: torch.save(contents, file))


def load_quantized(path: str | os.PathLike[str], model: nn.Module | None = None) -> QuantizedModel:
    """The int8 model of a file of ``amp.save_quantized``, on the device where it was saved or on the CPU.

    Needs torchao. Graphs are read by ``torch.export.load``: load files that you trust.

    Args:
        path: the file.
        model: a model of the class that was quantized, with any weights, for a dynamic model or one that could not be
            exported whole. It stays as it is.

    Returns:
        The model as it was saved.

    Raises:
        ValueError: the file is none of ``amp.save_quantized``, or of a later version; it needs ``model``.
        ImportError: torchao is not installed.
    """
    part("quantization")  # the classes of its tensors
    part("quantization.pt2e")  # and the operations of its graphs
    where = None if torch.cuda.is_available() else "cpu"
    with quietly():
        contents = torch.load(path, map_location=where, weights_only=True)
    if not isinstance(contents, dict) or contents.get(_MARK) != FORMAT:
        raise ValueError(f"{os.fspath(path)} is no int8 model that this version of amp.save_quantized wrote")
    graphs = {name: _read(data) for name, data in contents["graphs"].items()}
    if "" in graphs:
        graph, call = graphs[""]
        return QuantizedModel(graph, contents["kind"], contents["left_float"], contents["float_bytes"], {"": call})
    if model is None:
        raise ValueError(
            f"{os.fspath(path)} holds weights that need the model's class; give model=..., made as that one was"
        )
    own = float_copy(unwrap(model))
    with_parts(own, {name: graph for name, (graph, _) in graphs.items()})
    inside = tuple(f"{name}." for name in graphs)
    try:
        missing, unexpected = own.load_state_dict(contents["weights"], strict=False, assign=True)
    except RuntimeError as error:  # other shapes
        problem = str(error).strip().splitlines()[-1].strip()
    else:
        others = [*unexpected, *(name for name in missing if not name.startswith(inside or ("\0",)))]
        problem = ", ".join(others)
    if problem:
        raise ValueError(
            f"{os.fspath(path)} was saved from a model with other weights than {type(own).__name__} has: {problem}"
        )
    for parameter in own.parameters():
        parameter.requires_grad_(False)
    calls = {name: call for name, (_, call) in graphs.items()}
    return QuantizedModel(own, contents["kind"], contents["left_float"], contents["float_bytes"], calls)


def _written(graph: nn.Module, call: Any) -> torch.Tensor:
    with quietly(), torch.no_grad():
        program = exported.export(graph, call)
        file = io.BytesIO()
        torch.export.save(program, file)
    # Export notes of each node where it comes from, over and over: that is most of a small model, and packs well.
    return torch.frombuffer(bytearray(zlib.compress(file.getvalue())), dtype=torch.uint8)


def _read(data: torch.Tensor) -> tuple[nn.Module, Any]:
    with quietly():
        program = torch.export.load(io.BytesIO(zlib.decompress(bytes_of(data))))
    return program.module(), program.example_inputs
