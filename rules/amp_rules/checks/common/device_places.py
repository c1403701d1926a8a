"""Where tensors are: autocast on CUDA leaves those on the CPU as they are."""

from __future__ import annotations

import ast

from amp_rules.checks.common.arithmetic import is_here
from amp_rules.checks.common.mixed_types import operands
from amp_rules.lattice import torch_operations as ops
from amp_rules.lattice.abstract_values import IN_A_FUNCTION, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.operation_names import FACTORIES


def is_on_cpu(value: Value, frame: Frame, depth: int = IN_A_FUNCTION) -> bool:
    """Whether a tensor is on the CPU: brought there, or computed by the running function without a device."""
    if depth == 0 or value.op == "cuda":
        return False
    if value.op == "cpu" or (value.op == "to" and any(item.const == "cpu" for item in value.args[1:])):
        return True
    if value.op == "to" and not _keeps_its_place(value):
        return False
    if value.kwargs and "device" in value.kwargs:
        return False
    if value.op in FACTORIES:
        # What a constructor makes moves with the module.
        return value.op not in ("from_numpy", "tensor", "as_tensor") and is_here(value, frame)
    parts = [
        part for item in value.args for part in (item.args if item.op in ("tuple", "list") else (item,)) if part.tensor
    ]
    return bool(parts) and all(is_on_cpu(part, frame, depth - 1) for part in parts)


def stays_as_it_is(op: Value, frame: Frame) -> bool:
    """Whether autocast leaves an operation that it would lower alone: where it runs, or because of ``out=``."""
    if op.kwargs and "out" in op.kwargs:
        return True
    return frame.mode.device == "cuda" and any(is_on_cpu(item, frame) for item in operands(op) if item.tensor)


def _keeps_its_place(value: Value) -> bool:
    """Whether ``to`` is given a type and nothing else."""
    node = value.node
    if not isinstance(node, ast.Call) or any(item.arg != "dtype" for item in node.keywords):
        return False
    return ops.explicit_dtype(value) is not None and len(value.args) <= 2
