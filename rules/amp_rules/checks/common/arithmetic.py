"""Shapes of arithmetic that several rules look for, and the text that their fixes are made of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amp_rules.lattice.abstract_values import (
    ASSUMED,
    CAST,
    F32,
    IN_A_FUNCTION,
    IN_ONE_EXPRESSION,
    IN_ONE_FORMULA,
    INF,
    LOW,
    MAX_SUBTRACTED,
    NUM,
    OTHER,
    PASSING,
    Value,
    alternatives,
    same,
    source_of,
)  # fmt: skip
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.intervals import clamp_bounds
from amp_rules.source.index import keyword
from amp_rules.torch.gradients import RECORDS_NOTHING
from amp_rules.torch.idioms import EPSILON, NAMED_LOSS

CALLS_OF_NORM = ("vector_norm(", re.compile(r"norm\((?<=[.( =]norm\()(?<!self\.norm\()"))
"""Triggers of rules about norms that are taken: ``self.norm(x)`` is a layer."""
_CALLED = PASSING | {"result"}
_PRODUCTS = frozenset({"mul", "div", "neg"})
_DISTANCES = frozenset({"norm", "vector_norm", "cdist", "pairwise_distance", "dist"})
_UNTYPED = frozenset({"method", "call", "name", "attr", "element", "grad"})
_OF_FIRST = PASSING | {"masked_fill", "pad", "softmax", "log_softmax", "clamp"}
_SCALED = frozenset({"mul", "div", "add", "masked_fill", "where", "clamp"})


# ---- values ------------------------------------------------------------------------------------------------------

_JOIN_COST = 3
"""How many steps back through operations a join of branches counts for: each of its ways is followed."""


def is_gradient(value: Value) -> bool:
    """Whether a value is made of gradients."""
    return any(item.op == "grad" for item in value.behind(IN_ONE_FORMULA))


def ways(value: Value) -> Iterator[Value]:
    """What a value may be, behind views, casts, branches and calls of the project's functions."""
    for item in alternatives(_inside(value)):
        yield _inside(item)


def _inside(value: Value) -> Value:
    return value.through(_CALLED)


def is_epsilon(value: Value) -> bool:
    """Whether a value is there to keep another one from 0."""
    number = value.number
    if number is not None:
        return 0 < number < 0.5
    return value.op.startswith("finfo_") or (isinstance(value.data, str) and EPSILON in value.data.lower())


def unguarded(value: Value) -> tuple[Value, Value | None]:
    """What an epsilon was added to, or what was clamped from below, and that epsilon."""
    value = source_of(value)
    if value.op == "add" and len(value.args) == 2:
        left, right = value.args
        for epsilon, other in ((left, right), (right, left)):
            if is_epsilon(epsilon):
                return source_of(other), epsilon
    if value.op in ("clamp", "clamp_min") and value.args:
        least, _ = clamp_bounds(value)
        if least is not None:
            return source_of(value.args[0]), least
    if value.op in ("maximum", "max") and len(value.args) == 2 and value.args[1].number is not None:
        return source_of(value.args[0]), value.args[1]
    return value, None


def complement(value: Value) -> Value | None:
    """``p`` of ``1 - p``."""
    value = source_of(value)
    if value.op == "sub" and len(value.args) == 2:
        number = value.args[0].number
        return value.args[1] if number is not None and abs(number - 1.0) < 0.1 else None
    if value.op == "add" and len(value.args) == 2:
        for one, other in (value.args, value.args[::-1]):
            if one.number == 1.0 and source_of(other).op == "neg":
                return source_of(other).args[0]
    return None


def squared(value: Value) -> Value | None:
    """``x`` of ``x ** 2``, ``x * x``, ``x.square()``."""
    value = source_of(value)
    if value.op == "square" and value.args:
        return value.args[0]
    if value.op == "pow" and len(value.args) == 2 and value.args[1].number == 2.0:
        return value.args[0]
    if value.op == "mul" and len(value.args) == 2 and value.args[0].tensor and same(*value.args):
        return value.args[0]
    return None


def factors(value: Value, depth: int = IN_ONE_EXPRESSION) -> Iterator[Value]:
    """The factors of a product; a divisor counts as one."""
    value = source_of(value)
    if depth and value.op in _PRODUCTS:
        for item in value.args:
            yield from factors(item, depth - 1)
    else:
        yield value


def terms(value: Value, sign: float = 1.0, depth: int = IN_ONE_FORMULA) -> Iterator[tuple[float, Value]]:
    """The terms of a sum, each with the number that it is multiplied by."""
    value = source_of(value)
    if depth == 0:
        yield sign, value
    elif value.op in ("add", "sub") and len(value.args) == 2:
        yield from terms(value.args[0], sign, depth - 1)
        yield from terms(value.args[1], -sign if value.op == "sub" else sign, depth - 1)
    elif value.op == "neg" and value.args:
        yield from terms(value.args[0], -sign, depth - 1)
    elif value.op == "mul" and len(value.args) == 2 and any(item.number is not None for item in value.args):
        left, right = value.args
        if left.number is not None:
            yield from terms(right, sign * left.number, depth - 1)
        else:
            yield from terms(left, sign * (right.number or 0.0), depth - 1)
    else:
        yield sign, value


def is_shifted(value: Value, depth: int = IN_ONE_FORMULA - 1) -> bool:
    """Whether a maximum was subtracted before a value was scaled, masked or moved."""
    value = source_of(value)
    if value.bits & MAX_SUBTRACTED:
        return True
    if depth == 0:
        return False
    if value.op == "join":
        return any(is_shifted(item, depth - 1) for item in value.args)
    if value.op == "sub" and len(value.args) == 2:
        return any("max" in word or "lse" in word or "logsumexp" in word for word in _words(value.args[1], value.node))
    if value.op in _SCALED:
        return any(is_shifted(item, depth - 1) for item in value.args if item.tensor)
    return False


def _words(value: Value, node: ast.AST | None) -> Iterator[str]:
    """How the author calls the right side of a subtraction."""
    written = node.right if isinstance(node, ast.BinOp) else node.value if isinstance(node, ast.AugAssign) else None
    if written is None and isinstance(node, ast.Call) and node.args:
        written = node.args[-1]
    for item in ast.walk(written) if written is not None else ():
        if isinstance(item, ast.Name):
            yield item.id.lower()
        elif isinstance(item, ast.Attribute):
            yield item.attr.lower()
    for found in value.behind(IN_ONE_EXPRESSION):
        yield found.op


_BELOW = (ast.Lt, ast.LtE)
_ORDERS = (*_BELOW, ast.Gt, ast.GtE)


def is_ordered(value: Value, frame: Frame) -> bool:
    """Whether a difference is computed under a test that says that it is not positive: ``if a >= b: exp(b - a)``."""
    node = source_of(value).node
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub) or node not in frame.module.module.parents:
        return False
    sides = ast.unparse(node.left), ast.unparse(node.right)
    for test, holds in frame.module.index.branches(node):
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], _ORDERS):
            given = ast.unparse(test.left), ast.unparse(test.comparators[0])
            below = isinstance(test.ops[0], _BELOW) is holds
            if sides == (given if below else given[::-1]):
                return True
    return False


def bounded_above(value: Value, limit: float) -> bool:
    """Whether no element can be larger than ``limit``: by its interval, or because a maximum was subtracted."""
    return value.hi <= limit or is_shifted(value)


def is_gaussian(value: Value) -> bool:
    """Whether it is a multiple of a square or of a distance: the author means it to be negative."""
    return any(squared(item) is not None or item.op in _DISTANCES for item in factors(value))


def is_bounded(value: Value, limit: float) -> bool:
    """Whether no element can be larger than ``limit`` in size."""
    return -limit <= value.lo and value.hi <= limit and value.hi < INF


# ---- places ------------------------------------------------------------------------------------------------------


def is_here(value: Value, frame: Frame) -> bool:
    """Whether a value was made in the very function that runs."""
    node, function = value.node, frame.function
    if node is None or function is None:
        return node is not None
    return node in function.nodes


def without_gradient(frame: Frame) -> bool:
    """Whether nothing is recorded here, so that no gradient can be infinite."""
    function = frame.function
    decorated = [name for name, _ in function.decorators] if function is not None else []
    entered = [item.node.func for item in frame.contexts if isinstance(item.node, ast.Call)]
    names = [*decorated, *(frame.module.dotted(item) or "" for item in entered)]
    return any(name.startswith("torch.") and name.rpartition(".")[2] in RECORDS_NOTHING for name in names)


def is_loss(frame: Frame) -> bool:
    """Whether the function computes a loss, by its name or that of its class."""
    function = frame.function
    if function is None:
        return False
    names = (function.name, function.cls.name if function.cls else "")
    return any(word in name.lower() for name in names for word in NAMED_LOSS)


def likely_half(value: Value, frame: Frame) -> bool:
    """Whether a value is half for certain, or the mode makes it half and nothing is known that says otherwise."""
    if value.low:
        return True
    if frame.mode.autocast or not value.maybe_low:
        return False
    return _is_untyped(value)


def _is_untyped(value: Value, depth: int = IN_A_FUNCTION) -> bool:
    """Whether a value comes from a call or object that nothing is known of, and nobody converted it."""
    unknown = LOW | F32 | NUM | OTHER
    if value.low or value.op in _UNTYPED or value.dtypes & unknown == unknown:
        return True
    if depth == 0 or not value.args or not value.maybe_low or value.bits & CAST:
        return False
    if value.op == "join":
        return depth > _JOIN_COST and all(_is_untyped(item, depth - _JOIN_COST) for item in value.args)
    given = value.args[:1] if value.op in _OF_FIRST else [item for item in value.args if item.tensor]
    return bool(given) and all(_is_untyped(item, depth - 1) for item in given[:2])


def is_tensor(value: Value, frame: Frame) -> bool:
    """Whether something says that a value is a tensor; what a module's forward computes with is one, if it may be."""
    if frame.is_tensor(value):
        return True
    forward = frame.function is not None and frame.function.is_forward
    for item in value.behind(IN_ONE_FORMULA) if value.tensor else ():
        if item.bits & CAST or (item.kwargs and ("dim" in item.kwargs or "keepdim" in item.kwargs)):
            return True
        if forward and item.op == "param" and item.tensor and not item.dtypes & NUM:
            return True
    return False


def runs_in_half(value: Value, frame: Frame) -> bool:
    """Whether something besides the mode says that a value is in half precision.

    The mode makes models half; geometry, schedules and metrics beside them need not be.
    """
    if not value.bits & ASSUMED or frame.autocast or in_training(frame):
        return True
    return is_gradient(value)


def in_training(frame: Frame) -> bool:
    """Whether a function is part of a module, a loss or an optimizer."""
    function = frame.function
    while function is not None:
        if function.cls is not None and (function.cls.is_module or function.cls.is_optimizer):
            return True
        function = function.outer
    return is_loss(frame)


# ---- text --------------------------------------------------------------------------------------------------------


def source(frame: Frame, node: ast.AST) -> str:
    """The whole text of a node on one line."""
    module = frame.module.module
    (line, column), (end_line, end_column) = module.start(node), module.end(node)
    return module.lines[line - 1][column:end_column] if line == end_line else ast.unparse(node)


def operand(value: Value) -> ast.expr | None:
    """The expression of what an operation is about: the receiver of a method, the first argument of a function."""
    node = value.node
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and value.args and len(value.args) == len(node.args) + 1:
        return next((item.value for item in node.keywords if item.arg == "input"), node.func.value)
    return node.args[0] if node.args and not isinstance(node.args[0], ast.Starred) else None


def described(frame: Frame, value: Value) -> str:
    """What an operation is about in the user's words."""
    node = operand(value)
    return frame.text(node if node is not None else value.node)


def spelled(frame: Frame, dotted: str) -> str | None:
    """How the file can call a function of torch with the imports that it has."""
    names = {name: where for name, where in frame.module.imports.items() if name not in frame.variables}
    for name, where in sorted(names.items(), key=lambda item: -len(item[1])):
        if dotted.startswith(where + ".") and where.split(".")[0] == "torch":
            return name + dotted[len(where) :]
    return None


def with_keyword(frame: Frame, node: ast.Call, text: str) -> str | None:
    """The call with one more keyword argument; None where its text does not allow that."""
    written = source(frame, node)
    if not written.endswith(")") or any(item.arg is None for item in node.keywords):
        return None
    head = written[:-1].rstrip()
    if head.endswith(","):
        return f"{head} {text})"
    return f"{head}{text})" if not (node.args or node.keywords) else f"{head}, {text})"


def in_float32(frame: Frame, node: ast.AST | None) -> str | None:
    """The call with ``dtype=torch.float32``."""
    if not isinstance(node, ast.Call) or keyword(node, "dtype") is not None or keyword(node, "out") is not None:
        return None
    float32 = spelled(frame, "torch.float32")
    return with_keyword(frame, node, f"dtype={float32}") if float32 else None
