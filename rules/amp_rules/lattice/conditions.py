"""What a test says about types: ``x.dtype == torch.float16`` holds in one branch and not in the other."""

from __future__ import annotations

import ast

from amp_rules.lattice import torch_operations as ops
from amp_rules.lattice.abstract_values import ASSUMED, CAST, FLOATS, LOW, TENSORS, Value
from amp_rules.lattice.frame import Frame, evaluate
from amp_rules.torch.dtypes import HALF_TYPES

Narrowing = dict[str, Value]
Branches = tuple[Narrowing, Narrowing]

_NEITHER: Branches = ({}, {})


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
    subjects = _subjects(frame, left) or _subjects(frame, right)
    if not subjects:
        return _NEITHER
    other = evaluate(frame, right if _subjects(frame, left) else left)
    types = [other]
    if isinstance(operator, (ast.In, ast.NotIn)):
        if other.op not in ("tuple", "list") or other.data is not None:
            return _NEITHER
        types = list(other.args)
    masks = [ops.dtype_named(item) for item in types]
    if 0 in masks or _only_the_other_half(frame, types):
        return _NEITHER
    mask = 0
    for item in masks:
        mask |= item
    branches: Branches = ({}, {})
    for subject in subjects:
        for found, more in zip(branches, _with(frame, subject, mask), strict=True):
            found.update(more)
    return (branches[1], branches[0]) if isinstance(operator, (ast.NotEq, ast.IsNot, ast.NotIn)) else branches


def asks_for_half(frame: Frame, test: ast.Compare, values: list[Value]) -> bool | None:
    """How ``get_dtype(model) == torch.float16`` comes out where the mode makes the model half.

    None where the test is no such question, or one about a variable: of those both answers are followed.
    """
    operator = test.ops[0]
    if frame.mode.autocast or not isinstance(operator, (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)):
        return None
    left, right = values
    for asked, other, node in ((left, right, test.left), (right, left, test.comparators[0])):
        if other.sym in HALF_TYPES and asked.sym is None and not asked.is_const and not _subjects(frame, node):
            if asked.op not in _GIVES_A_TYPE or (asked.op == "dtype" and not asked.args[0].low):
                return None
            equal = not _only_the_other_half(frame, [other])
            return equal if isinstance(operator, (ast.Eq, ast.Is)) else not equal
    return None


_GIVES_A_TYPE = frozenset({"dtype", "call", "result", "method"})


def _only_the_other_half(frame: Frame, types: list[Value]) -> bool:
    """Whether the half type among ``types`` is not the one that values have in this mode."""
    half = {item.sym for item in types if item.sym in HALF_TYPES}
    own = {"torch.float16", "torch.half"} if frame.mode.fp16 else {"torch.bfloat16"}
    return bool(half) and not half & own


def _subjects(frame: Frame, node: ast.expr) -> list[str]:
    """``x`` of ``x.dtype``, and of ``dtype`` after ``dtype = x.dtype``; of types that were united, all of them."""
    if isinstance(node, ast.Attribute) and node.attr == "dtype" and isinstance(node.value, ast.Name):
        return [node.value.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "type":
        if isinstance(node.func.value, ast.Name) and not node.args:
            return [node.func.value.id]
    if not isinstance(node, ast.Name):
        return []
    held = frame.variables.get(node.id)
    if held is None or held.op not in ("dtype", "promote_types"):
        return []
    of = [item.args[0] for item in ([held] if held.op == "dtype" else held.args) if item.op == "dtype" and item.args]
    names = [name for name, value in frame.variables.items() if any(value is item for item in of)]
    return [*names, node.id] if held.op == "dtype" else names


def _call(frame: Frame, test: ast.Call) -> Branches:
    function = test.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        if function.attr == "is_floating_point":
            return _with(frame, function.value.id, FLOATS)
    name = frame.module.dotted(function)
    if name == "torch.is_floating_point" and test.args and isinstance(test.args[0], ast.Name):
        return _with(frame, test.args[0].id, FLOATS)
    return _helper(frame, test)


def _helper(frame: Frame, test: ast.Call) -> Branches:
    """``is_half(x)``, where the file says what that asks of ``x``."""
    function = test.func
    facts = frame.module.functions.get(function.id) if isinstance(function, ast.Name) else None
    if facts is None or len(test.args) != 1 or test.keywords:
        return _NEITHER
    given, last = test.args[0], facts.body[-1]
    names = [*facts.node.args.posonlyargs, *facts.node.args.args]
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Compare) or not names:
        return _NEITHER
    if not isinstance(given, ast.Name) or given.id not in frame.variables or len(last.value.ops) != 1:
        return _NEITHER
    name = given.id
    kept, frame.variables = frame.variables, {names[0].arg: frame.variables[name]}
    found = _comparison(frame, last.value)
    frame.variables = kept
    yes, no = ({name: part[names[0].arg]} if names[0].arg in part else {} for part in found)
    return yes, no


def _with(frame: Frame, name: str, mask: int) -> Branches:
    value = frame.variables.get(name)
    if value is not None and value.op == "dtype" and value.args:
        yes, no = _split(value.args[0], mask)
        return {name: _type_of(value, yes)} if yes else {}, {name: _type_of(value, no)} if no else {}
    if value is None or not value.dtypes & TENSORS:
        return _NEITHER
    yes, no = _split(value, mask)
    return {name: yes} if yes else {}, {name: no} if no else {}


def _split(value: Value, mask: int) -> tuple[Value, Value | None]:
    """A tensor whose type is one of ``mask``, and where it is another."""
    rest = value.dtypes & ~mask
    if mask & LOW and rest == 0:
        # Only the mode says that it is half: where the test fails, it is another type.
        rest = TENSORS & ~mask & ~LOW
    return _typed(value, value.dtypes & mask or mask), _typed(value, rest) if rest else None


def _type_of(value: Value, tensor: Value) -> Value:
    return Value("dtype", value.node, (tensor,))


def _typed(value: Value, dtypes: int) -> Value:
    made = Value("alias", value.node, (value,), dtypes, max(value.tensor, 1), (value.bits & ~ASSUMED) | CAST)
    made.lo, made.hi, made.data = value.lo, value.hi, value.data
    return made
