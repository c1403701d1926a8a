"""Casts to a fixed type where the type of an activation is meant."""

from __future__ import annotations

import ast

from amp_rules.checks.common.arithmetic import is_loss, likely_half
from amp_rules.checks.common.mixed_types import REFUSING, at_construction, is_mask, place, refused
from amp_rules.lattice import torch_operations as ops
from amp_rules.lattice.abstract_values import F32, IN_A_FEW_LINES, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check

_OUTSIDE = frozenset({"to", "half", "type"})
_MAKING = frozenset("zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full".split())
_FLOAT16 = frozenset({"torch.float16", "torch.half"})
_PROMOTING = frozenset({"mul", "div"})
_VIEWS = frozenset(
    "view reshape unsqueeze squeeze expand transpose permute clamp sum getitem sub rsub expand_as join".split()
)


class HardcodedDtypeCast(Check):
    """Casts to a fixed type where the type of an activation is meant.

    ## What it does

    Looks for masks that `.float()` makes float32 and that are multiplied into half activations, where the model is
    half; and, in bfloat16 modes, for activations that are cast to `torch.float16` and tensors that are made of it.

    ## Why

    `half_tensor * mask.float()` is float32: the rest of the model runs in float32, or raises at the next layer, whose
    weights are half. `x.to(torch.float16)` in a bfloat16 model overflows above 65504 and mixes two half types, whose
    product is float32.

    ## Example

        hidden = hidden * mask.unsqueeze(-1).float()

    ## Use instead

        hidden = hidden * mask.unsqueeze(-1).to(hidden.dtype)

    ## When it is silent

    Under autocast, outside of `forward` and in losses, whose result may be float32; on products in place (which keep
    their type), on masks that meet float32, and where the result is converted at once.

    ## Source

    https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.dtype
    """

    code = "AMP755"
    name = "hardcoded-dtype-cast"
    severity = "warning"
    message = "A cast names a fixed type where the type of an activation is meant."
    advice = "Convert to the type of the activation, as in `mask.to(x.dtype)`."
    triggers = ("float()", "float32", "float16", ".half()", "dtype=torch.half")
    operations = (*sorted(_PROMOTING), *sorted(_OUTSIDE), *sorted(_MAKING), *sorted(REFUSING))

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a product with a mask, or a cast."""
        if op.op in _OUTSIDE:
            self._cast(op, frame)
        elif op.op in _MAKING:
            self._made(op, frame)
        elif op.inplace or isinstance(op.node, ast.AugAssign) or frame.mode.autocast or not _is_activation_path(frame):
            return
        elif op.op in _PROMOTING:
            for mask, other in ((op.args[1], op.args[0]), (op.args[0], op.args[1])):
                self._product(op, mask, other, frame)
        else:
            found = refused(op, frame)
            if found is not None and found[1].op != "layer":
                self._product(op, found[0], found[1], frame)

    def _product(self, op: Value, mask: Value, other: Value, frame: Frame) -> None:
        cast = _mask_cast(mask)
        if cast is None or not likely_half(other, frame) or not frame.is_tensor(other) or op.node is None:
            return
        if _is_converted(frame, op):
            return
        message = f"`{frame.text(cast.node)}` makes `{frame.text(other.node)}` float32"
        self.report(frame, place(frame, cast, op.node), message)

    def _made(self, op: Value, frame: Frame) -> None:
        given = ops.explicit_dtype(op)
        if given is not None and given.sym in _FLOAT16 and _of_bfloat16_model(frame) and op.node is not None:
            self.report(frame, op.node, f"`{frame.text(op.node)}` is float16 in a bfloat16 model")

    def _cast(self, op: Value, frame: Frame) -> None:
        if op.node is None or not _of_bfloat16_model(frame):
            return
        given = [*op.args[1:], *(op.kwargs or {}).values()]
        named = op.op == "half" or any(item.sym in _FLOAT16 for item in given)
        if named and op.args[0].tensor and op.args[0].maybe_low:
            self.report(frame, op.node, f"`{frame.text(op.args[0].node)}` becomes float16 in a bfloat16 model")


def _of_bfloat16_model(frame: Frame) -> bool:
    cls = frame.function.cls if frame.function is not None else None
    return not frame.mode.fp16 and cls is not None and (cls.is_module or cls.is_autograd_function)


def _is_activation_path(frame: Frame) -> bool:
    """Whether the function is the forward pass of a module whose result others go on with: that of a loss may widen."""
    function = frame.function
    if function is None or function.cls is None or not function.cls.is_module or at_construction(frame):
        return False
    return not frame.class_is("Loss", "Criterion") and not is_loss(frame)


def _mask_cast(value: Value) -> Value | None:
    """The cast to float32 of whole numbers or truth values that ``value`` is made of alone."""
    for _ in range(IN_A_FEW_LINES):
        if value.dtypes != F32 or not value.tensor:
            return None
        if value.op in ("float", "to", "type") and value.args and is_mask(value.args[0]):
            return value
        if value.op not in _VIEWS or not value.args:
            return None
        value = next((item for item in value.args if item.tensor and item.number is None), value.args[0])
    return None


def _is_converted(frame: Frame, op: Value) -> bool:
    """Whether the text around a product converts it at once."""
    parents = frame.module.module.parents
    parent = parents.get(op.node) if op.node is not None else None
    name = getattr(parent, "attr", "")
    return name in ("to", "type_as", "type", "half", "sum", "bool", "long", "int", "item")
