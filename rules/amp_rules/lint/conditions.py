"""What a test says about types: ``x.dtype == torch.float16`` holds in one branch and not in the other."""

from __future__ import annotations

import ast

from amp_rules.lint import operations as ops
from amp_rules.lint.evaluation import evaluate
from amp_rules.lint.frame import Frame
from amp_rules.lint.values import ASSUMED, CAST, FLOATS, LOW, TENSORS, Value

Narrowing = dict[str, Value]
Branches = tuple[Narrowing, Narrowing]

_NEITHER: Branches = ({}, {})
_ANY_HALF = frozenset({"torch.float16", "torch.half", "torch.bfloat16"})


def narrowed(frame: Frame, test: ast.expr) -> Branches:
    """The variables whose types a test narrows, where it holds and where it does not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yes, no = narrowed(frame, test.operand)
        return no, yes
    if isinstance(test, ast.BoolOp):
        parts = [narrowed(frame, item) for item in test.values]
        both: Narrowing = {}
        if isinstance(test.op, ast.And):
            for yes, _ in parts:
                both.update(yes)
            return both, {}
        for _, no in parts:
            both.update(no)
        return {}, both
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _comparison(frame, test)
    if isinstance(test, ast.Call):
        return _call(frame, test)
    return _NEITHER


def _comparison(frame: Frame, test: ast.Compare) -> Branches:
    operator, left, right = test.ops[0], test.left, test.comparators[0]
    if not isinstance(operator, (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)):
        return _NEITHER
    subject = _subject(left) or _subject(right)
    if subject is None:
        return _NEITHER
    other = right if _subject(left) else left
    if isinstance(operator, (ast.In, ast.NotIn)):
        if not isinstance(other, (ast.Tuple, ast.List, ast.Set)):
            return _NEITHER
        types = [evaluate(frame, item) for item in other.elts]
    else:
        types = [evaluate(frame, other)]
    masks = [ops.dtype_named(item) for item in types]
    if 0 in masks or _only_the_other_half(frame, types):
        return _NEITHER
    mask = 0
    for item in masks:
        mask |= item
    branches = _with(frame, subject, mask)
    return (branches[1], branches[0]) if isinstance(operator, (ast.NotEq, ast.IsNot, ast.NotIn)) else branches


def _only_the_other_half(frame: Frame, types: list[Value]) -> bool:
    """Whether the half type among ``types`` is not the one that values have in this mode."""
    half = {item.sym for item in types if item.sym in _ANY_HALF}
    own = {"torch.float16", "torch.half"} if frame.mode.fp16 else {"torch.bfloat16"}
    return bool(half) and not half & own


def _subject(node: ast.expr) -> ast.Name | None:
    """``x`` of ``x.dtype``."""
    if isinstance(node, ast.Attribute) and node.attr == "dtype" and isinstance(node.value, ast.Name):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "type":
        if isinstance(node.func.value, ast.Name) and not node.args:
            return node.func.value
    return None


def _call(frame: Frame, test: ast.Call) -> Branches:
    function = test.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        if function.attr == "is_floating_point":
            return _with(frame, function.value, FLOATS)
    name = frame.module.dotted(function)
    if name == "torch.is_floating_point" and test.args and isinstance(test.args[0], ast.Name):
        return _with(frame, test.args[0], FLOATS)
    return _NEITHER


def _with(frame: Frame, name: ast.Name, mask: int) -> Branches:
    value = frame.variables.get(name.id)
    if value is None or not value.dtypes & TENSORS:
        return _NEITHER
    yes = _typed(value, value.dtypes & mask or mask)
    rest = value.dtypes & ~mask
    if mask & LOW and rest == 0:
        # Only the mode says that it is half: where the test fails, it is another type.
        rest = TENSORS & ~mask & ~LOW
    return {name.id: yes}, {name.id: _typed(value, rest)} if rest else {}


def _typed(value: Value, dtypes: int) -> Value:
    made = Value("alias", value.node, (value,), dtypes, max(value.tensor, 1), (value.bits & ~ASSUMED) | CAST)
    made.lo, made.hi, made.data = value.lo, value.hi, value.data
    return made
