"""New float32 tensors that meet half weights or activations."""

from __future__ import annotations

import ast

from amp_rules.checks.common.arithmetic import in_training
from amp_rules.checks.common.halved_models import float32_inputs
from amp_rules.checks.common.mixed_types import (
    REFUSING,
    float32_origin,
    float_type,
    half_beside,
    is_plain_factory,
    only_constructs,
    operands,
    owner_keeps_float32,
    place,
    refused,
)
from amp_rules.lattice.abstract_values import BOOL, F32, FLOATS, IN_A_FEW_LINES, LOW, ZERO_DIM, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check, LintedFile

_PROMOTING = frozenset({"mul", "add", "sub", "div", "cat", "maximum", "where"})


class Fp32TensorInForward(Check):
    """New float32 tensors that meet half weights or activations.

    ## What it does

    Looks, where the model is half and autocast is off, for tensors made without a type (`torch.zeros(n)`,
    `torch.linspace(...)`) that reach an operation which refuses mixed types (a layer, the first state of an LSTM, a
    matrix product, `grid_sample`), as they are or by making an activation float32 on the way, or that make float32 what
    a module's `forward` returns, what they are concatenated with, or what is written into them. The tensor may be made
    in another method of the class. In every mode, finds a model that a function makes half itself (`model.half()`) and
    then calls with a new float32 tensor.

    ## Why

    Factories make float32. `torch.linspace(-1, 1, 8)` concatenated with a half activation gives float32, and
    `torch.bmm` or `nn.Linear` with half weights then raises "expected scalar type Float but found Half". Where nothing
    raises, the rest of the model runs in float32, at half of the speed.

    ## Example

        grid = torch.linspace(-1, 1, x.shape[-1], device=x.device)
        x = self.project(torch.cat([x, grid.expand_as(x)], dim=1))

    ## Use instead

        grid = torch.linspace(-1, 1, x.shape[-1], device=x.device, dtype=x.dtype)
        x = self.project(torch.cat([x, grid.expand_as(x)], dim=1))

    ## When it is silent

    Under autocast, in what only constructors call (models are converted later), on float32 tensors that stay among
    themselves, are compared, or have no dimensions, and where the author converted to float32 by name (AMP753, AMP755).

    ## Source

    https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.dtype
    """

    code = "AMP752"
    name = "fp32-tensor-in-forward"
    severity = "error"
    message = "A new float32 tensor meets half weights or activations."
    advice = "Make the tensor with `dtype=x.dtype`, or with `x.new_zeros(...)`."
    triggers = (
        "def forward(",  # What its own methods make for it, as the first state of an LSTM.
        *(f"{name}(" for name in "zeros ones empty full rand randn linspace arange eye tensor hann_window".split()),
    )
    file_triggers = (".half()", ".bfloat16()", "torch.float16", "torch.bfloat16", "torch.half")
    operations = (*sorted(REFUSING), "return", "add", "mul", "cat", "stack", "module", "setitem")

    def sees_operations(self, mode: Mode) -> bool:
        """Autocast casts what reaches a matrix product."""
        return not mode.autocast

    def visit_module(self, file: LintedFile) -> None:
        """Look at the models that the file makes half itself, whatever the mode."""
        for call, made, halved in float32_inputs(file.module):
            text = file.module.module.text
            message = f"`{text(made)}` is float32 and enters `{text(call.func)}`, which `{text(halved)}` makes half"
            self.report_in(file, call, message)

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge an operation that refuses mixed types, or a result."""
        if op.op == "return":
            self._result(op, frame)
        elif op.op == "module":
            self._module(op, frame)
        elif op.op == "setitem":
            self._written(op, frame)
        elif op.op in ("add", "mul", "cat", "stack"):
            self._beside(op, frame)
        else:
            self._refused(op, frame)

    def _refused(self, op: Value, frame: Frame) -> None:
        found = refused(op, frame)
        if found is None:
            self._on_a_way(op, frame)
            return
        wide, low = found
        origin = float32_origin(wide)
        if origin is None or not is_plain_factory(origin) or owner_keeps_float32(frame) or op.node is None:
            return
        if not _is_made_in_passing(origin, frame):
            return
        what = "has half weights" if low.op == "layer" else f"also takes the half `{frame.text(low.node)}`"
        message = f"`{frame.text(origin.node)}` is float32 and reaches `{op.op}`, which {what}"
        self.report(frame, place(frame, origin, op.node), message)

    def _on_a_way(self, op: Value, frame: Frame) -> None:
        """``h = torch.zeros(n)`` where ``h`` was not given, and half elsewhere."""
        if frame.autocast or op.node is None or owner_keeps_float32(frame):
            return
        for given in operands(op):
            made = _made_on_a_way(given) if given.tensor else None
            low = half_beside(op, given, frame) if made is not None else None
            if made is not None and low is not None and _is_made_in_passing(made, frame):
                what = "has half weights" if low.op == "layer" else f"also takes the half `{frame.text(low.node)}`"
                message = f"`{frame.text(made.node)}` is float32 and may reach `{op.op}`, which {what}"
                self.report(frame, place(frame, made, op.node), message)
                return

    def _module(self, op: Value, frame: Frame) -> None:
        given = op.args[1] if len(op.args) > 1 else None
        if given is None or op.node is None or float_type(given, frame) != F32:
            return
        made = given.through(_MOVING)
        if is_plain_factory(made) and made.op in _NOISE:
            message = f"`{frame.text(made.node)}` is float32 and enters `{frame.text(op.node)}`, which has half weights"
            self.report(frame, place(frame, made, op.node), message)

    def _beside(self, op: Value, frame: Frame) -> None:
        parts = op.args[0].args if op.op in ("cat", "stack") and op.args else op.args
        if op.inplace or op.node is None:
            return
        low = next((item for item in parts if float_type(item, frame) == LOW and not item.bits & ZERO_DIM), None)
        if low is None:
            return
        for item in parts:
            if item.dtypes & FLOATS == LOW:
                continue  # It was converted on the way.
            made = item.through(_MOVING)
            if is_plain_factory(made) and made.dtypes == F32 and made.args and _shaped_like(made.args, low):
                message = f"`{frame.text(made.node)}` is float32, unlike `{frame.text(low.node)}`, whose shape it has"
                self.report(frame, place(frame, made, op.node), message, severity="warning")
                return
        if op.op in ("cat", "stack") and in_training(frame):
            self._joined(op.node, low, parts, frame)

    def _joined(self, node: ast.AST, low: Value, parts: tuple[Value, ...], frame: Frame) -> None:
        """``torch.cat([torch.ones(n) * weight, h])``, which makes all of it float32."""
        for item in parts:
            origin = float32_origin(item) if float_type(item, frame) == F32 else None
            if origin is not None and is_plain_factory(origin) and _is_made_in_passing(origin, frame):
                message = f"`{frame.text(origin.node)}` is float32 and makes what it is combined with float32, "
                message += f"which is half in `{frame.text(low.node)}`"
                self.report(frame, place(frame, origin, node), message, severity="warning")
                return

    def _written(self, op: Value, frame: Frame) -> None:
        """``out = torch.zeros(*x.shape); out[i] = x[i]``."""
        held, index, given = op.args
        made = held.through(_MOVING)
        if not is_plain_factory(made) or made.dtypes != F32 or float_type(given, frame) != LOW or op.node is None:
            return
        sized = any(item.op in ("size", "shape") for item in made.args)
        if sized and not (given.bits & ZERO_DIM or index.dtypes & BOOL) and _is_made_in_passing(made, frame):
            message = f"`{frame.text(made.node)}` is float32 and makes the half `{frame.text(given.node)}` float32"
            self.report(frame, place(frame, made, op.node), message, severity="warning")

    def _result(self, op: Value, frame: Frame) -> None:
        if frame.function is None or not frame.function.is_forward or frame.caller is not None:
            return
        items = op.args[0].args if op.args[0].op in ("tuple", "list") else op.args[:1]
        for item in items:
            if item.tensor != 2 or item.dtypes != F32 or item.bits & ZERO_DIM or op.node is None:
                continue
            mixed = _promotion(item)
            if mixed is not None and not frame.class_is("Loss") and "loss" not in frame.text(item.node):
                origin, low = mixed
                message = f"`{frame.text(origin.node)}` is float32 and makes `{frame.text(low.node)}` float32, "
                message += "which is returned"
                self.report(frame, place(frame, origin, op.node), message, severity="warning")


def _is_placeholder(made: Value) -> bool:
    """Whether it is ``torch.empty(0)``, which stands where there is nothing."""
    return len(made.args) == 1 and (made.args[0].number == 0 or made.args[0].op in ("tuple", "list"))


def _made_on_a_way(value: Value, depth: int = IN_A_FEW_LINES) -> Value | None:
    """The factory that makes a value float32 on one of the ways to here, where it is half on another."""
    value = value.through(_HANDED)
    if depth == 0 or not value.dtypes & F32:
        return None
    if value.op == "join":
        for item in value.args:
            made = item.through(_HANDED)
            if is_plain_factory(made) and made.dtypes == F32 and not made.bits & ZERO_DIM and not _is_placeholder(made):
                return made
    parts = value.args[0].args if value.op == "cat" and value.args else value.args
    if value.op in _KEEPING or value.op == "join":
        for item in parts:
            found = _made_on_a_way(item, depth - 1) if item.tensor else None
            if found is not None:
                return found
    return None


_MOVING = frozenset({"to", "cuda", "view", "reshape", "expand", "unsqueeze", "mul", "repeat"})
_HANDED = _MOVING | {"result"}
_NOISE = frozenset({"randn", "rand", "zeros"})


def _is_made_in_passing(origin: Value, frame: Frame) -> bool:
    """Whether a tensor is made in a function of this file that is no constructor: what that keeps is converted."""
    node = origin.node
    if node is None or node not in frame.module.module.parents:
        return True
    owner = next((item for item in frame.module.module.ancestors(node) if isinstance(item, ast.FunctionDef)), None)
    return owner is not None and not only_constructs(frame, owner)


def _shaped_like(sizes: tuple[Value, ...], low: Value | None) -> bool:
    """Whether a factory was given the very shape of a half tensor."""
    shape = sizes[0]
    held = shape.args[0] if shape.op in ("shape", "size") and shape.args else None
    return held is not None and low is not None and (held is low or held.root is low.root)


_KEEPING = frozenset(
    "view reshape transpose permute flatten contiguous add mul div dropout relu gelu silu tanh getitem cat".split()
)


def _promotion(value: Value, depth: int = IN_A_FEW_LINES) -> tuple[Value, Value] | None:
    """The factory and the half activation that were mixed to make ``value`` float32."""
    if depth == 0:
        return None
    parts = value.args[0].args if value.op == "cat" and value.args else value.args
    if value.op in _PROMOTING:
        low = next((item for item in parts if item.dtypes == LOW and item.tensor == 2), None)
        wide = next((item for item in parts if item.dtypes == F32 and item.tensor), None)
        origin = float32_origin(wide) if wide is not None else None
        if low is not None and origin is not None:
            return (origin, low) if is_plain_factory(origin) else None
    if value.op in _KEEPING:
        for item in parts:
            if item.dtypes == F32:
                found = _promotion(item, depth - 1)
                if found is not None:
                    return found
    return None
