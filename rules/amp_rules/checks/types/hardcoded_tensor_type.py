"""Legacy tensor types that fix device and precision."""

from __future__ import annotations

import ast

from amp_rules.lattice import torch_operations as ops
from amp_rules.lattice.abstract_values import LOW, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check

_FLOATING = ("FloatTensor", "HalfTensor", "BFloat16Tensor")
_NUMBERS = frozenset({"float", "int", "sum", "len", "min", "max"})
_CONVERSIONS = frozenset("to type type_as half float double bfloat16 long int bool byte".split())


class HardcodedTensorType(Check):
    """Legacy tensor types that fix device and precision.

    ## What it does

    Looks for `torch.cuda.FloatTensor(...)`, `torch.cuda.HalfTensor(...)`, `torch.FloatTensor(...)` in the forward or
    backward pass or moved to a tensor's device, and for `x.type(torch.cuda.FloatTensor)` and its spellings as text.

    ## Why

    Such a tensor is float32 (or float16) whatever its neighbours are. As the output buffer of an extension kernel it
    no longer matches an input that autocast or `.half()` made half: the kernel reads 4 bytes where there are 2, or
    refuses. In arithmetic it makes the result float32: `torch.FloatTensor([0.5]) * torch.ones(1).half()` is float32.
    The constructors have been deprecated since PyTorch 0.4.

    ## Example

        def forward(ctx, features, index):
            output = torch.cuda.FloatTensor(index.size(0), features.size(1)).zero_()

    ## Use instead

        def forward(ctx, features, index):
            output = features.new_zeros(index.size(0), features.size(1))

    ## When it is silent

    On integer and boolean types, on `torch.FloatTensor` outside of a forward or backward pass that stays where it is,
    for numbers that Python computed, `[float(norm)]`, where the very next operation converts to a type that does not
    depend on the constructor, and after a test of another tensor's type. Under autocast outside of an
    `autograd.Function`: arithmetic takes both types there.

    ## Source

    https://docs.pytorch.org/docs/stable/tensors.html
    """

    code = "AMP754"
    name = "hardcoded-tensor-type"
    severity = "warning"
    message = "A legacy tensor type fixes device and precision."
    advice = "Make the tensor with `x.new_zeros(...)` or `x.new_tensor(...)`, or pass `dtype=x.dtype, device=x.device`."
    triggers = ("FloatTensor", "HalfTensor", "Float16Tensor")
    operations = ("typed_tensor", "FloatTensor", "to", "cuda", "type")

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a constructor, its move to a device, or a conversion by name."""
        if op.node is None:
            return
        if op.op == "type":
            self._conversion(op, frame)
        elif _named(op):
            if _holds_numbers(op):
                return
            if _is_of_kernel(frame) or (not frame.mode.autocast and (_is_of_cuda(op) or _in_pass(frame))):
                self._report(op, frame)
        elif frame.mode.autocast or _holds_data(op.args[0] if op.args else op):
            return
        elif op.op in ("to", "cuda") and op.args and _named(op.args[0]) and ops.explicit_dtype(op) is None:
            follows = op.args[1].op if len(op.args) > 1 else ""
            if op.op == "cuda" or (follows == "fact" and op.args[1].args and frame.is_tensor(op.args[1].args[0])):
                self._report(op.args[0], frame)

    def _conversion(self, op: Value, frame: Frame) -> None:
        given = op.args[1] if len(op.args) > 1 else None
        name = (given.sym or given.const if given is not None else None) or ""
        if not isinstance(name, str) or not name.startswith("torch.") or not name.endswith(_FLOATING):
            return
        if frame.mode.autocast and not _is_of_kernel(frame):
            return
        if name.startswith("torch.cuda.") or (_in_pass(frame) and op.args[0].maybe_low):
            message = f"`{frame.text(op.args[0].node)}` becomes a `{name}` whatever the precision and device are"
            self.report(frame, op.node, message, culprit=given)  # type: ignore[arg-type]

    def _report(self, made: Value, frame: Frame) -> None:
        node = made.node
        if node is None or node not in frame.module.module.parents or _is_converted(frame, node):
            return
        if _is_after_a_test(frame, node):
            return
        kind = "half" if made.dtypes == LOW else "float32"
        self.report(frame, node, f"`{_name(made)}` is {kind} whatever the tensors that it meets are")


def _name(value: Value) -> str:
    return str(value.data) if isinstance(value.data, str) else ""


def _named(value: Value) -> bool:
    return value.op in ("typed_tensor", "FloatTensor") and _name(value).endswith(_FLOATING)


def _is_of_cuda(value: Value) -> bool:
    return _name(value).startswith("torch.cuda.")


def _in_pass(frame: Frame) -> bool:
    """Whether the function is a forward or backward pass."""
    function = frame.function
    if function is None or function.cls is None:
        return False
    return function.is_forward or (function.cls.is_autograd_function and function.name in ("forward", "backward"))


def _is_of_kernel(frame: Frame) -> bool:
    """Whether the function is a pass of an ``autograd.Function``, which hands its tensors to a kernel."""
    function = frame.function
    return _in_pass(frame) and function is not None and function.cls is not None and function.cls.is_autograd_function


def _holds_data(made: Value) -> bool:
    """Whether a tensor is made of a list that has a name: numbers that were collected, no buffer and no constant."""
    node = made.node
    given = node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 else None
    return isinstance(given, ast.Name) and any(item.op == "list" for item in made.args)


def _holds_numbers(made: Value) -> bool:
    """Whether a tensor is made of numbers that Python computed, ``[float(norm)]``: a result, which meets no tensor."""
    node = made.node
    given = node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 else None
    elements = given.elts if isinstance(given, (ast.List, ast.Tuple)) else []
    return bool(elements) and all(
        isinstance(item, ast.Call) and isinstance(item.func, ast.Name) and item.func.id in _NUMBERS for item in elements
    )


def _is_after_a_test(frame: Frame, node: ast.AST) -> bool:
    """Whether a test of another tensor's type decides that this one is made."""
    for item in frame.module.index.ancestors(node):
        if isinstance(item, (ast.If, ast.IfExp)):
            asked = [part.attr for part in ast.walk(item.test) if isinstance(part, ast.Attribute)]
            if "dtype" in asked or "type" in asked:
                return True
    return False


def _is_converted(frame: Frame, node: ast.AST) -> bool:
    """Whether the next method that is called on a tensor converts it to a type of its own."""
    parents = frame.module.module.parents
    attribute = parents.get(node)
    call = parents.get(attribute) if isinstance(attribute, ast.Attribute) and attribute.value is node else None
    if not isinstance(call, ast.Call) or not isinstance(attribute, ast.Attribute):
        return False
    if attribute.attr in ("zero_", "cuda", "fill_", "unsqueeze", "view"):
        return _is_converted(frame, call)
    if attribute.attr != "to":
        return attribute.attr in _CONVERSIONS
    given = [*call.args, *(item.value for item in call.keywords)]
    return any(not _is_place(item) for item in given)


def _is_place(node: ast.expr) -> bool:
    """Whether an argument of ``to`` is a device: the type stays."""
    if isinstance(node, ast.Constant):
        return True
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    called = node.func if isinstance(node, ast.Call) else None
    return "device" in name or (isinstance(called, ast.Attribute) and called.attr in ("device", "get_device"))
