"""Sums and norms in half precision."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.arithmetic import (
    CALLS_OF_NORM,
    factors,
    in_float32,
    is_bounded,
    is_gradient,
    is_loss,
    is_tensor,
    likely_half,
    runs_in_half,
    squared,
    terms,
    unguarded,
    ways,
)
from amp_rules.lattice.abstract_values import BOOL, IN_AN_OPERAND, PARAMETER, ZERO_DIM, Value, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import literal

_UNKNOWN = frozenset({"module", "call", "method", "attr", "name", "param"})
_SUMS = frozenset({"sum", "nansum"})
_SCALING = frozenset({"mul", "div"})
_MAPS = frozenset(
    """
    conv2d conv3d conv_transpose2d conv_transpose3d interpolate grid_sample max_pool2d max_pool3d avg_pool2d avg_pool3d
    unfold fold pixel_shuffle cdist
    """.split()
)
"""Operations whose results have an element for every place of an image, or for every pair."""
_HOLDERS = frozenset({"tuple", "list", "result", "join"})
_FEWER = frozenset("sum mean nansum nanmean amax amin max min norm vector_norm var std prod logsumexp".split())


class LowpReduction(Check):
    """A sum over everything, or a norm of gradients, that half precision cannot hold.

    ## What it does
    Finds, in models and losses, ``x.sum()`` over all elements of a half tensor where it is divided, or divides, as a
    mean by hand is; where elements are counted; and where the elements are those of maps or of distances between
    all pairs. Finds ``norm`` and the sum over everything of half gradients.

    ## Why
    The sum is accumulated in float32 but handed back in half precision: a sum of 70000 ones is infinite in float16,
    one of 2049 is 2048, and one of 257 is 256 in bfloat16. A loss over 512 x 512 pixels is such a sum, and so is the
    number of elements in a mask of floats; the mean that the author is after is small, and lost for nothing. Norms of
    gradients are needed exactly where they are large, and before the loss scale is taken off them. ``mean`` divides
    before it rounds, and is safe.

    ## Example
        loss = torch.sum(losses) / batch_size

    ## Use instead
        loss = torch.sum(losses, dtype=torch.float32) / batch_size

    ## When it is silent
    Under autocast on CUDA, which computes sums and norms in float32. Where a dimension is named: rows are seldom long
    enough. Where the sum itself is what is wanted and nothing says that it has many terms. Inside the step of an
    optimizer, whose gradients have their size back. Where ``dtype=`` is given, where the tensor may be float32 or whole
    numbers, outside of modules, losses and optimizers, where nothing but the mode says that values are half. For
    squares, which are AMP701.

    ## Source
    https://docs.pytorch.org/docs/stable/generated/torch.sum.html: ``dtype`` is useful for preventing data type
    overflows.
    """

    code = "AMP702"
    name = "lowp-reduction"
    severity = "warning"
    message = "A sum over all elements, or a norm of gradients, is rounded to half precision."
    advice = "Give it dtype=torch.float32."
    fix_title = "compute in float32"
    fix_safety = "safe"
    triggers = ("sum(", *CALLS_OF_NORM)
    operations = ("sum", "nansum", "norm", "vector_norm", "div", "mul")

    def __init__(self) -> None:
        self._waiting: list[tuple[Value, Frame]] = []

    def applies(self, mode: Mode) -> bool:
        """Autocast on CUDA computes sums and norms in float32."""
        return not mode.autocast or mode.device == "cpu"

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a sum or norm."""
        if op.op in _SCALING:
            if self._waiting:
                self._settle(op)
            return
        if not op.args or op.node is None or not is_tensor(op.args[0], frame):
            return
        if op.op in _SUMS:
            if likely_half(op, frame) and op.bits & ZERO_DIM and op.args[0].op == "grad" and not _in_step(frame):
                message = f"`{frame.text(op.node)}` is a sum of gradients in {frame.mode.dtype}"
                self.report(frame, op.node, message, fix=_in_float32(op, frame))
            elif op.low:
                self._sum(op, frame)
        elif likely_half(op, frame) and is_gradient(op.args[0]) and not _in_step(frame):
            message = f"`{frame.text(op.node)}` is a norm of gradients in {frame.mode.dtype}"
            self.report(frame, op.node, message, fix=_in_float32(op, frame))

    def _sum(self, op: Value, frame: Frame) -> None:
        given = op.args[0]
        if not op.bits & ZERO_DIM or given.bits & ZERO_DIM or not runs_in_half(given, frame):
            return
        if given.bits & PARAMETER or (not is_loss(frame) and all(item.op in _UNKNOWN for item in ways(given))):
            return
        if _is_collected(given):
            return
        if is_bounded(given, 0.0) or _is_nothing(given) or any(squared(item) is not None for item in ways(given)):
            return
        if _has_many(given, _maps_in(frame)) or _is_count(given):
            self._report(op, frame)
        else:
            self._waiting.append((op, frame))

    def visit_function(self, function: FunctionFacts | None, frame: Frame) -> None:
        """Forget the sums that are part of no quotient."""
        self._waiting = []

    def _settle(self, op: Value) -> None:
        """Report the sums that are divided or divide."""
        parts = {id(item) for side in op.args for item in _dividing(side)}
        if op.op == "mul" and not any(item.op == "div" for side in op.args for item in side.behind(1)):
            return
        for waiting in list(self._waiting):
            if id(waiting[0]) in parts:
                self._waiting.remove(waiting)
                self._report(*waiting)

    def _report(self, op: Value, frame: Frame) -> None:
        assert op.node is not None
        text = frame.text(op.node)
        if frame.mode.fp16:
            message = f"`{text}` of more than a few thousand elements is inexact, then infinite, in fp16"
        else:
            message = f"`{text}` keeps 8 significant bits in bf16"
        self.report(frame, op.node, message, fix=_in_float32(op, frame))


def _dividing(side: Value) -> Iterator[Value]:
    """What one side of a quotient is, but for what is there to keep it from 0, and the terms of a sum."""
    for item in factors(side):
        for way in ways(item):
            plain, _ = unguarded(way)
            yield plain
            for _, term in terms(plain):
                for part in factors(term):
                    yield from ways(part.args[0]) if part.op == "item" and part.args else (part,)


def _has_many(value: Value, maps: frozenset[str]) -> bool:
    """Whether elements are those of maps or of pairs, not reduced since; ``maps`` are arguments that are maps."""
    level, seen = [value], {id(value)}
    for _ in range(14):
        following: list[Value] = []
        for item in level:
            if item.op in _MAPS or (item.op == "param" and item.data in maps):
                return True
            for given in item.args if item.op not in _FEWER else ():
                if id(given) not in seen and (given.tensor or given.op in _HOLDERS):
                    seen.add(id(given))
                    following.append(given)
        level = following
    return False


def _maps_in(frame: Frame) -> frozenset[str]:
    """The arguments of a function of whose shape it asks for more than two dimensions."""
    function = frame.function
    found = set()
    for item in function.nodes if function is not None else ():
        if isinstance(item, ast.Subscript) and _position(item.slice) >= 2:
            found.add(_of_shape(item.value))
        elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Tuple) and len(item.targets[0].elts) > 2:
            called = isinstance(item.value, ast.Call) and not item.value.args
            found.add(_of_shape(item.value.func if called else item.value))  # type: ignore[attr-defined]
    return frozenset(found - {""})


def _of_shape(node: ast.AST) -> str:
    """The variable whose shape a node is."""
    is_shape = isinstance(node, ast.Attribute) and node.attr in ("shape", "size")
    return node.value.id if is_shape and isinstance(node.value, ast.Name) else ""  # type: ignore[attr-defined]


def _position(index: ast.expr) -> int:
    """The index, or where a slice begins; -1 where that is not written as a number."""
    found = literal(index.lower if isinstance(index, ast.Slice) else index)
    return found if isinstance(found, int) else -1


def _is_collected(value: Value) -> bool:
    """Whether results of steps were put together by name, ``torch.stack([x["loss"] for x in outputs])``: a few each."""
    node = source_of(value).node
    given = node.args[0] if isinstance(node, ast.Call) and node.args else None
    if source_of(value).op not in ("stack", "cat") or not isinstance(given, (ast.ListComp, ast.GeneratorExp)):
        return False
    key = given.elt.slice if isinstance(given.elt, ast.Subscript) else None
    return isinstance(key, ast.JoinedStr) or (isinstance(key, ast.Constant) and isinstance(key.value, str))


def _is_count(value: Value) -> bool:
    """Whether truth values are counted as floats."""
    held = source_of(value)
    return bool(held.tensor) and held.dtypes == BOOL


def _in_step(frame: Frame) -> bool:
    """Whether it is the step of an optimizer or a helper of it: gradients were unscaled before."""
    function = frame.function
    if function is None or function.cls is None or not function.cls.is_optimizer:
        return False
    return function.name == "step" or function.name.startswith("_")


def _is_nothing(value: Value) -> bool:
    """Whether it is ``x[:0]``, ``x * 0`` or so, summed to keep a graph."""
    if any(item.number == 0 for item in factors(value)):
        return True
    for item in value.behind(IN_AN_OPERAND):
        for index in item.args[1:] if item.op == "getitem" else ():
            for part in (index, *index.args):
                upper = part.node.upper if isinstance(part.node, ast.Slice) else None
                if isinstance(upper, ast.Constant) and upper.value in (0, 1):
                    return True
    return False


def _in_float32(op: Value, frame: Frame) -> Fix | None:
    text = in_float32(frame, op.node) if not op.inplace else None
    return replacement(frame, "compute in float32", "safe", (op.node, text)) if text and op.node is not None else None
