"""Where types meet: what is half or float32 for certain, where a float32 came from, which operations refuse both."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amp_rules.lattice import torch_operations as ops
from amp_rules.lattice.abstract_values import BOOL, F32, F64, FLOATS, INT, LOW, NUM, Value, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.operation_names import FACTORIES

MATRIX_PRODUCTS = frozenset("matmul mm bmm mv addmm addmv addbmm baddbmm einsum".split())
"""Operations that sum products of their operands; ``einsum`` has its equation first, that of einops last."""

LAYERS = frozenset(
    """
    linear bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d prelu lstm gru rnn
    lstm_cell gru_cell rnn_tanh_cell
    """.split()
)
"""Layers that refuse an input of another type than their weights."""

RECURRENT = frozenset("lstm gru rnn lstm_cell gru_cell rnn_tanh_cell".split())
"""Layers that refuse a state of another type, too."""

NORMS = frozenset({"layer_norm", "group_norm"})
"""Functions that refuse weights of a narrower type than their input."""

REFUSING = (
    MATRIX_PRODUCTS | LAYERS | NORMS | {"dot", "tensordot", "cdist", "scaled_dot_product_attention", "grid_sample"}
)
"""Operations that refuse operands of different floating-point types outside of autocast."""


def float_type(value: Value, frame: Frame) -> int:
    """The floating-point type that a tensor has for certain: ``LOW``, ``F32``, or 0 where it may be anything else."""
    if not value.tensor or value.op in ("tuple", "list"):
        return 0
    kind = LOW if value.dtypes == LOW else F32 if value.dtypes & ~(F32 | F64) == 0 else 0
    return kind if kind and frame.is_tensor(value) else 0


def operands(op: Value) -> Iterator[Value]:
    """Yield the tensors that an operation wants to be of one type."""
    items = op.args
    if op.op == "einsum":
        items = tuple(item for item in items if not isinstance(item.const, str))
    elif op.op == "scaled_dot_product_attention":
        items = items[:3]
    elif op.op in NORMS:
        yield from items[:1]
        for position, name in ((2, "weight"), (3, "bias")):
            found = op.arg(position, name)
            if found is not None and isinstance(found.const, type(None)) and not found.is_const:
                yield found
        return
    for item in items:
        if item.op in ("tuple", "list"):
            yield from item.args
        else:
            yield item


def held_layer(op: Value) -> Value | None:
    """The layer whose call an operation is."""
    data = op.data
    return data if isinstance(data, Value) and data.op == "layer" else None


def is_outer(op: Value) -> bool:
    """Whether an ``einsum`` sums over nothing: then it is a multiplication, which promotes."""
    equations = [item.const for item in op.args if isinstance(item.const, str)] if op.op == "einsum" else []
    if len(equations) != 1 or "->" not in equations[0]:
        return False
    inputs, _, output = equations[0].partition("->")
    words = op.args[0].const is not equations[0]
    return not (_indices(inputs, words) - _indices(output, words))


def _indices(text: str, words: bool) -> set[str]:
    """The dimensions in a part of an equation; to einops they are words."""
    return set(re.findall(r"\w+", text)) if words else {item for item in text if item.isalpha()}


def float32_origin(value: Value, depth: int = 10) -> Value | None:
    """The nearest operation behind a float32 value that made it float32, instead of keeping the type it was given."""
    level, seen = [value], {id(value)}
    for _ in range(depth):
        following: list[Value] = []
        for item in level:
            if makes_float32(item):
                return item
            for argument in _parts(item):
                if argument.tensor and argument.dtypes & ~(F32 | F64) == 0 and id(argument) not in seen:
                    seen.add(id(argument))
                    following.append(argument)
        level = following
    return None


def _parts(value: Value) -> Iterator[Value]:
    """What an operation was given, and what the lists among that hold."""
    for item in value.args:
        if item.op in ("tuple", "list"):
            yield from item.args
        else:
            yield item


def makes_float32(value: Value) -> bool:
    """Whether a value is float32 because its author said so, or said nothing to a factory."""
    return is_plain_factory(value) or is_cast(value)


def is_plain_factory(value: Value) -> bool:
    """Whether a value was made by a factory without a type."""
    return value.op in FACTORIES and value.op not in ("from_numpy", "normal") and not _has_type(value)


def _has_type(value: Value) -> bool:
    if ops.explicit_dtype(value) is not None:
        return True
    if value.op in ("tensor", "as_tensor", "Tensor", "FloatTensor"):
        return bool(value.args and (value.args[0].tensor or value.args[0].op in ("attr", "param", "element", "call")))
    return False


def is_cast(value: Value) -> bool:
    """Whether a value was converted to float32 by name."""
    if value.op in ("float", "double"):
        return True
    if value.op in ("to", "type"):
        given = [*value.args[1:], *((value.kwargs or {}).get(name) for name in ("dtype",))]
        return any(item is not None and item.sym is not None and ops.dtype_named(item) == F32 for item in given)
    given_dtype = ops.explicit_dtype(value)
    return given_dtype is not None and given_dtype.sym is not None and ops.dtype_named(given_dtype) in (F32, F64)


def is_mask(value: Value) -> bool:
    """Whether a value holds truth values or whole numbers for certain."""
    if value.tensor and value.dtypes & (BOOL | INT) and not value.dtypes & (FLOATS | NUM):
        return True
    held = source_of(value)
    return held.op in ("param", "element") and isinstance(held.data, str) and held.data.endswith("mask")


def place(frame: Frame, value: Value, otherwise: ast.AST) -> ast.AST:
    """Where a value was made, if that is in this file, else ``otherwise``."""
    node = value.node
    return node if node is not None and node in frame.module.module.parents else otherwise


def owner_keeps_float32(frame: Frame) -> bool:
    """Whether the class says that some of its modules stay float32."""
    cls = frame.function.cls if frame.function else None
    return cls is not None and any(
        isinstance(item, (ast.Assign, ast.AnnAssign)) and "keep_in_fp32" in frame.module.module.text(item)
        for owner in cls.lineage
        for item in owner.node.body
        if owner.module is frame.module
    )


_CLOSED = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)


def whole_text(frame: Frame, node: ast.AST | None) -> str | None:
    """The whole text of an expression of this file, in parentheses where a method could not be called on it."""
    if node is None or not isinstance(node, ast.expr) or node not in frame.module.module.parents:
        return None
    text = ast.get_source_segment(frame.module.module.source.text, node)
    if text is None or "\n" in text:
        return None
    return text if isinstance(node, _CLOSED) else f"({text})"


def at_construction(frame: Frame) -> bool:
    """Whether a function makes parameters or buffers: it runs before training, outside of autocast."""
    function = frame.function
    if function is None or function.name in ("__init__", "reset_parameters"):
        return True
    return function.registers


def only_constructs(frame: Frame, function: ast.FunctionDef | ast.AsyncFunctionDef, depth: int = 3) -> bool:
    """Whether a function is a constructor, or called by nothing but constructors of its file."""
    if function.name == "__init__":
        return True
    if not function.name.startswith("_") or depth == 0:
        return False
    index = frame.module.index
    callers = [index.scope(call) for call in index.callers(function)]
    return bool(callers) and all(
        isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) and only_constructs(frame, item, depth - 1)
        for item in callers
    )


def refused(op: Value, frame: Frame) -> tuple[Value, Value] | None:
    """The float32 operand and the half one (a layer for its weights) that an operation refuses to take together."""
    given = [item for item in operands(op) if item.tensor]
    wide = next((item for item in given if float_type(item, frame) == F32 and item.number is None), None)
    low = half_beside(op, wide, frame) if wide is not None else None
    return (wide, low) if wide is not None and low is not None else None


def half_beside(op: Value, wide: Value, frame: Frame) -> Value | None:
    """What of an operation is half (a layer for its weights) and refuses ``wide``, should that be float32."""
    if frame.autocast or is_outer(op) or (frame.function is not None and frame.function.name == "__init__"):
        return None
    given = [item for item in operands(op) if item.tensor]
    layer, first = held_layer(op), bool(given) and given[0] is wide
    if layer is not None and op.op in LAYERS and not frame.mode.autocast:
        low = layer if (first or op.op in RECURRENT) and not _is_new(layer, frame) else None
    elif layer is not None and op.op in NORMS and not frame.mode.autocast:
        low = layer if first and not _is_plain_norm(layer) else None
    else:
        low = next((item for item in given if item is not wide and float_type(item, frame) == LOW), None)
        if op.op in NORMS and low is not None and low is given[0]:
            return None
    if low is None or op.node is None:
        return None
    if not _of_module(frame) and "param" in (source_of(low).op, source_of(wide).op):
        return None  # A function that anyone may call with anything.
    return low


def _is_plain_norm(layer: Value) -> bool:
    """Whether a norm has no weights that could be half."""
    given = [(layer.kwargs or {}).get(name) for name in ("affine", "elementwise_affine")]
    return len(layer.args) > 2 or any(item is not None and item.const is not True for item in given)


def _is_new(layer: Value, frame: Frame) -> bool:
    """Whether a layer is made by the very function that calls it, in float32."""
    return layer.node is not None and frame.function is not None and layer.node in frame.function.nodes


def _of_module(frame: Frame) -> bool:
    cls = frame.function.cls if frame.function is not None else None
    return cls is not None and (cls.is_module or cls.is_autograd_function)


def called(frame: Frame, value: Value) -> str:
    """How the author calls a value: the text of its expression, or the name of its buffer."""
    return f"self.{value.data}" if value.op == "buffer" and isinstance(value.data, str) else frame.text(value.node)


def written(frame: Frame, op: Value, position: int, name: str = "") -> ast.expr | None:
    """The expression that stands for an argument in the text of an operation, the receiver of a method first."""
    node = op.node
    if isinstance(node, ast.Subscript):
        parent = frame.module.module.parents.get(node)
        return node.value if position == 0 else parent.value if isinstance(parent, ast.Assign) else None
    if isinstance(node, ast.BinOp):
        return (node.left, node.right)[position] if position < 2 else None
    if not isinstance(node, ast.Call):
        return None
    for item in node.keywords:
        if item.arg == name and name:
            return item.value
    items: list[ast.expr] = list(node.args)
    if len(op.args) == len(items) + 1 and isinstance(node.func, ast.Attribute):
        if (frame.module.dotted(node.func) or "").startswith("torch."):
            return None  # A function, whose arguments have names: what stands before its own name is none.
        items.insert(0, node.func.value)
    return items[position] if position < len(items) == len(op.args) else None
