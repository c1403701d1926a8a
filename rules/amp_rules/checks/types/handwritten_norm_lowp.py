"""Normalization by hand in half precision."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.arithmetic import factors, is_bounded, is_here, is_tensor, squared, unguarded, ways
from amp_rules.lattice.abstract_values import IN_A_FEW_LINES, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check
from amp_rules.source.facts import FunctionFacts

_SCALING = frozenset({"mul", "div"})
_SMALLEST_EPSILON = 3.9e-4
"""The gradient of ``rsqrt`` at 0 plus this is 65504."""


class HandwrittenNormLowp(Check):
    """A layer norm, RMS norm or standardization by hand whose variance is in float16.

    ## What it does
    Finds ``(var + eps).sqrt()`` and ``torch.rsqrt(var + eps)`` where ``var`` is ``x.var(...)`` or a mean of squares
    that is computed in float16.

    ## Why
    The squares overflow where ``x`` is 256 away from its mean, which makes the result 0, and vanish below 1.7e-4.
    Where they vanish, ``eps`` alone is left, and the gradient of ``rsqrt`` is ``0.5 * eps ** -1.5``: with 1e-5 that is
    1.6e7, infinite in float16. ``var`` is on no list of autocast, so that it stays in float16 there too; ``pow`` and
    ``norm`` are on one on CUDA. The norms of torch compute in float32 whatever they are given.

    ## Example
        var = torch.var(x, dim=1, unbiased=False, keepdim=True)
        y = (x - mean) * (var + 1e-5).rsqrt()

    ## Use instead
        var = torch.var(x.float(), dim=1, unbiased=False, keepdim=True)
        y = ((x - mean) * (var + 1e-5).rsqrt()).to(x.dtype)

    ## When it is silent
    The variance is computed in float32, ``eps`` is 3.9e-4 or more, or it depends on something, as on the type of ``x``.
    In bfloat16, whose range is that of float32. Where the root scales something else than ``x``. ``var`` outside of
    modules, which accumulates in float32 and overflows only for a deviation of 256.

    ## Source
    https://github.com/lucidrains/denoising-diffusion-pytorch raises the epsilon of its LayerNorm where the input is
    half; https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32 lists ``layer_norm``.
    """

    code = "AMP718"
    name = "handwritten-norm-lowp"
    severity = "error"
    message = "A normalization by hand computes its variance in float16."
    advice = "Convert the input to float32 first, or use the norm of torch.nn.functional."
    triggers = ("sqrt(", "sqrt_(", "** 0.5", "**0.5", "** -0.5", "**-0.5", "pow(")
    operations = ("sqrt", "rsqrt", "pow", "mul", "div")

    def __init__(self) -> None:
        self._waiting: list[tuple[Value, Value, str]] = []

    def applies(self, mode: Mode) -> bool:
        """Only float16 overflows."""
        return mode.fp16

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a root."""
        if op.op in _SCALING:
            if self._waiting:
                self._settle(op, frame)
            return
        if not op.args or op.node is None or not is_tensor(op, frame):
            return
        if op.op == "pow" and not (len(op.args) == 2 and op.args[1].number in (0.5, -0.5)):
            return
        for item in ways(op.args[0]):
            guarded, epsilon = unguarded(item)
            number = epsilon.number if epsilon is not None else None
            if number is None or number >= _SMALLEST_EPSILON:
                continue
            for variance in ways(guarded):
                if _is_low_variance(variance, frame):
                    text, made = frame.text(op.node), frame.text(variance.node)
                    self._waiting.append((op, variance, f"`{text}` normalizes by `{made}`, which is in fp16"))
                    return

    def visit_function(self, function: FunctionFacts | None, frame: Frame) -> None:
        """Forget the roots that turned out to normalize nothing."""
        self._waiting = []

    def _settle(self, op: Value, frame: Frame) -> None:
        """Report the roots that what they were made of is divided by."""
        for waiting in list(self._waiting):
            root, variance, message = waiting
            sides = op.args[:2] if len(op.args) == 2 else ()
            for scale, scaled in zip(sides, sides[::-1], strict=True):
                if _is_root(scale, root) and root.node is not None and _holds(scaled, variance):
                    self._waiting.remove(waiting)
                    self.report(frame, root.node if is_here(root, frame) else op.node or root.node, message)
                    break


def _is_root(scale: Value, root: Value) -> bool:
    return any(part is root for item in factors(scale) for way in ways(item) for part in (way, unguarded(way)[0]))


def _holds(scaled: Value, variance: Value) -> bool:
    """Whether a value is, or is the deviation from a mean of, what a variance was computed of."""
    measured = {id(item) for root in ways(variance.args[0]) for item in _measured(root)}
    return any(id(item) in measured for item in scaled.behind(IN_A_FEW_LINES))


def _measured(value: Value) -> Iterator[Value]:
    base = squared(value)
    for item in ways(base if base is not None else value):
        yield item
        if item.op == "sub":
            yield from ways(item.args[0])


def _is_low_variance(value: Value, frame: Frame) -> bool:
    given = value.args[0] if value.args else None
    if given is None:
        return False
    if value.op == "var":
        if not _is_activation(frame) or is_bounded(given, 255.9):
            return False
        # Autocast leaves it in the type of an activation, which is half more often than not. What a model does to its
        # own input, before its layers, it does to the batch, which is float32.
        return value.low or (frame.autocast and value.maybe_low and not _holds_layers(frame))
    if value.op != "mean" or not value.low:
        return False
    roots = [squared(item) for item in ways(given)]
    return any(x is not None and not is_bounded(x, 255.9) for x in roots)


def _holds_layers(frame: Frame) -> bool:
    """Whether the class that runs is made of other modules, rather than being a layer itself."""
    cls = frame.function.cls if frame.function is not None else None
    for item in cls.lineage if cls is not None else ():
        init = item.methods.get("__init__")
        for node in init.nodes if init is not None else ():
            if not isinstance(node, ast.Call):
                continue
            made, name = item.module.class_named(node.func), item.module.dotted(node.func) or ""
            is_torchs = name.startswith("torch.nn.") and name.rpartition(".")[2][:1].isupper()
            if (made is not None and made.is_module) or (is_torchs and not name.endswith(".Parameter")):
                return True
    return False


def _is_activation(frame: Frame) -> bool:
    function = frame.function
    return function is not None and function.cls is not None and function.cls.is_module
