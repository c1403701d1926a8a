"""bfloat16 tensors that are handed to NumPy."""

from __future__ import annotations

import ast

from amp_rules.checks.common.mixed_types import whole_text, written
from amp_rules.lattice.abstract_values import (
    BOOL,
    CAST,
    IN_A_FEW_LINES,
    IN_ONE_EXPRESSION,
    INT,
    LOW,
    PARAMETER,
    Value,
    alternatives,
    source_of,
)
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lattice.parameter_names import possible_types
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix
from amp_rules.torch.idioms import NAMED_NETWORK

_OF_A_MODEL = frozenset({"module", "parameter", "linear", "matmul", "einsum", "bmm", "softmax", "sigmoid"})
_METHODS = frozenset({"decode", "encode", "forward", "predict", "generate"})


class NumpyBf16(Check):
    """bfloat16 tensors that are handed to NumPy.

    ## What it does

    Looks for `.numpy()` on results of a model and on weights, when half precision is bfloat16.

    ## Why

    NumPy has no bfloat16: `torch.ones(2, dtype=torch.bfloat16).numpy()` raises "TypeError: Got unsupported ScalarType
    BFloat16". With float16 the same line works, so that it is found only when the precision is changed.

    ## Example

        scores = model(batch).detach().cpu().numpy()

    ## Use instead

        scores = model(batch).detach().float().cpu().numpy()

    ## When it is silent

    In float16 modes, when the tensor was converted or its type tested before, and where nothing shows that it comes
    from a model: a call of one, or a `.detach()` where the whole model is half.

    ## Source

    https://github.com/pytorch/pytorch/issues/90574
    """

    code = "AMP756"
    name = "numpy-bf16"
    severity = "error"
    message = "NumPy has no bfloat16."
    advice = "Convert with `.float()` before `.numpy()`."
    fix_title = "convert to float32 first"
    fix_safety = "safe"
    triggers = (".numpy(",)
    operations = ("numpy",)

    def applies(self, mode: Mode) -> bool:
        """NumPy has float16."""
        return not mode.fp16

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a tensor that becomes an array."""
        if op.node is None or not op.args or isinstance(op.data, str):
            return
        tensor = op.args[0]
        if not any(item.dtypes == LOW and item.tensor for item in alternatives(tensor)) and not _may_be(tensor, frame):
            return
        if not _is_of_a_model(tensor) and not _is_differentiated(tensor, frame):
            return
        node = written(frame, op, 0)
        name = frame.text(node or tensor.node)
        self.report(frame, op.node, f"`{name}` is bfloat16, which NumPy does not have", fix=self._fix(node, frame))

    def _fix(self, node: ast.expr | None, frame: Frame) -> Fix | None:
        text = whole_text(frame, node)
        if text is None or node is None:
            return None
        return replacement(frame, self.fix_title, "safe", (node, f"{text}.float()"))


def _may_be(tensor: Value, frame: Frame) -> bool:
    """Whether a tensor of unknown type is bfloat16 where the whole model is."""
    if not tensor.dtypes & LOW or not tensor.tensor:
        return False
    # Under autocast what a module gives is half more often than not.
    return not frame.mode.autocast or (frame.autocast and source_of(tensor).op == "module")


def _is_differentiated(tensor: Value, frame: Frame) -> bool:
    """Whether a tensor of a half model is taken out of a graph before: whole numbers and data are in none."""
    if frame.mode.autocast or tensor.dtypes & (INT | BOOL):
        return False
    behind = list(tensor.behind(IN_ONE_EXPRESSION))
    if any(isinstance(item.data, str) and possible_types(item.data) & (INT | BOOL) for item in behind):
        return False
    return any(item.op == "detach" for item in behind) and not any(item.bits & CAST for item in behind)


def _is_of_a_model(tensor: Value) -> bool:
    """Whether a tensor is a weight, or an activation of a model."""
    behind = list(tensor.behind(IN_A_FEW_LINES))
    if any(item.op in ("from_numpy", "numpy") for item in behind):
        return False
    for item in behind:
        if item.op in _OF_A_MODEL or item.bits & PARAMETER:
            return True
        if item.op == "method" and item.data in _METHODS:
            return True
        if item.op == "call" and item.args and _is_named_model(item.args[0]):
            return True
    return False


def _is_named_model(value: Value) -> bool:
    name = value.data if isinstance(value.data, str) else value.sym or ""
    return any(part in name.lower().rpartition(".")[2] for part in NAMED_NETWORK)
