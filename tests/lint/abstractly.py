"""Runs a function as the linter does, and as torch does, so that the two can be compared."""

from __future__ import annotations

import ast
import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from amp_rules.lattice.abstract_values import BOOL, F32, F64, INT, LOW, NUM, OTHER, Value, join
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.machine import Machine
from amp_rules.lint import Mode
from amp_rules.source.project_facts import ProjectFacts
from amp_rules.source.text import SourceFile, source_from_bytes
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

IMPORTS = """
import math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
"""
CUDA = Mode("O1", "fp16", "cuda")
CPU = Mode("O1", "bf16", "cpu")
HALF = Mode("O3", "fp16", "cuda")

_BITS = {
    torch.float16: LOW,
    torch.bfloat16: LOW,
    torch.float32: F32,
    torch.float64: F64,
    torch.bool: BOOL,
    **dict.fromkeys([torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], INT),
}


def source(text: str, path: str = "/nowhere/module.py") -> SourceFile:
    return source_from_bytes(text.encode(), Path(path))


def frame_of(text: str, mode: Mode, name: str = "f") -> Frame:
    """The frame after the function ``name`` (``f`` or ``Class.method``) of a text was run."""
    library = ProjectFacts()
    module = library.start(source(text))
    return _judged(Machine(mode, library, []), module, name)


def frame_in(path: Path, mode: Mode, name: str = "f") -> Frame:
    """The same for a function of a file."""
    library = ProjectFacts()
    module = library.start(source_from_bytes(path.read_bytes(), path))
    return _judged(Machine(mode, library, []), module, name)


def _judged(machine: Machine, module: Any, name: str) -> Frame:
    cls, _, method = name.rpartition(".")
    function = module.classes[cls].methods[method] if cls else module.functions[method]
    return machine.judge(function)


def returned(frame: Frame) -> Value:
    """What the function gives back by any of its ``return``."""
    result: Value | None = None
    for value in frame.returned:
        result = value if result is None else join(result, value)
    assert result is not None
    return result


def abstractly(text: str, mode: Mode = CUDA, name: str = "f") -> Value:
    return returned(frame_of(IMPORTS + text, mode, name))


def dtype_bit(value: Any) -> int:
    """The bit of a value's type."""
    if isinstance(value, torch.Tensor):
        return _BITS.get(value.dtype, OTHER)
    return NUM if isinstance(value, (bool, int, float)) else OTHER


class _WithoutGuards(TorchFunctionMode):
    """Does by other means what would ask the driver for the device that is made up."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            return _part(*args)
        if func is torch.Tensor.__invert__:
            return torch.bitwise_not(args[0])
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        if func in (torch.Tensor.copy_, torch.Tensor.__setitem__):
            return args[0]
        return func(*args, **(kwargs or {}))


_parameter = torch.nn.Parameter.__new__


def _constant(cls: type, data: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
    """A weight that is not trained: gradients would ask the driver, too."""
    return _parameter(cls, data, False)


def _part(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    axis = 0
    for item in index if isinstance(index, tuple) else (index,):
        if item is Ellipsis:
            axis = tensor.dim()
        elif item is None:
            tensor, axis = tensor.unsqueeze(axis), axis + 1
        elif isinstance(item, slice):
            start, stop, _ = item.indices(tensor.size(axis))
            tensor, axis = tensor.narrow(axis, start, stop - start), axis + 1
        elif isinstance(item, int):
            tensor = tensor.select(axis, item)
        elif item.dtype == torch.bool:
            tensor = tensor.masked_select(item)
        else:
            tensor = torch.index_select(tensor, axis, item)
    return tensor


@contextlib.contextmanager
def torch_in(mode: Mode) -> Iterator[None]:
    """Torch as it is in a mode: its CPU, or a CUDA device that is made up."""
    half = torch.float16 if mode.dtype == "fp16" else torch.bfloat16
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if mode.device == "cuda":
            stack.enter_context(torch.no_grad())
            stack.enter_context(FakeTensorMode())
            stack.enter_context(_WithoutGuards())
            stack.enter_context(mock.patch.object(torch.nn.Parameter, "__new__", _constant))
            stack.enter_context(torch.device("cuda"))
        if mode.autocast:
            # ``torch.autocast("cuda")`` turns itself off where there is no GPU.
            before = torch.get_autocast_dtype(mode.device)
            stack.callback(torch.set_autocast_dtype, mode.device, before)
            stack.callback(torch.set_autocast_enabled, mode.device, False)
            stack.callback(torch.clear_autocast_cache)
            torch.set_autocast_dtype(mode.device, half)
            torch.set_autocast_enabled(mode.device, True)
        yield


def run_for_real(text: str, mode: Mode, *arguments: Any) -> Any:
    """What ``f`` of a text gives in a mode."""
    space: dict[str, Any] = {}
    exec(compile(ast.parse(IMPORTS + text), "case", "exec"), space)
    with torch_in(mode):
        return space["f"](*[argument() if callable(argument) else argument for argument in arguments])
