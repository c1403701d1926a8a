"""Softmax, log-softmax and logsumexp written out."""

from __future__ import annotations

import ast
import math

from amp_rules.checks.common.arithmetic import (
    bounded_above,
    factors,
    is_gaussian,
    is_here,
    is_loss,
    operand,
    source,
    spelled,
    unguarded,
    ways,
)
from amp_rules.lattice.abstract_values import (
    IN_ONE_EXPRESSION,
    IN_ONE_FORMULA,
    LOW,
    PARAMETER,
    PASSING,
    Value,
    same,
    source_of,
)
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import keyword

_LARGEST_EXPONENT = 80.0
_PRODUCTS = frozenset({"matmul", "mm", "bmm", "einsum", "linear"})
_LOSSES_OF_LOGARITHMS = ("nll_loss", "kl_div")
"""Losses whose first argument is a logarithm."""


class HandrolledSoftmax(Check):
    """Softmax, log-softmax or logsumexp written out by hand.

    ## What it does
    Finds ``exp(x) / exp(x).sum(d)`` and ``log(exp(x).sum(d))`` where nothing bounds ``x`` and its maximum was not
    subtracted, and ``log(softmax(x))``, also over several statements.

    ## Why
    ``exp(x)`` is infinite above 11.09 in float16 and above 88.7 in float32 and bfloat16, so one score of 20 (of 100)
    makes the quotient NaN. Autocast computes ``exp`` in float32 on CUDA, which moves the limit and does not remove it.
    ``softmax`` rounds a probability below ``exp(-104)`` in float32, below ``exp(-17)`` in float16, to 0, and the
    logarithm of 0 is ``-inf``: ``log(softmax([0., -120.]))`` holds ``-inf`` where ``log_softmax`` holds -120. An
    epsilon in between caps the result: with ``+ 1e-10`` it is -23 whatever the score, its gradient is 0, and in
    float16 1e-10 is 0 itself.

    ## Example
        weights = scores.exp() / scores.exp().sum(dim=-1, keepdim=True)
        logp = torch.log(torch.softmax(logits, dim=-1))

    ## Use instead
        weights = torch.softmax(scores, dim=-1)
        logp = torch.log_softmax(logits, dim=-1)

    ## When it is silent
    The maximum was subtracted, or the argument of ``exp`` cannot be large (a negative square, the result of ``tanh``, a
    clamped value), or is a product with normalized vectors. ``log(p + eps)`` is left alone where the logarithm is
    multiplied by ``p`` itself (an entropy), because the term is 0 where the logarithm is wrong. ``log(softmax(x))``
    that no loss is given is left alone where the softmax is float32, as under autocast on CUDA: scores and metrics
    survive a ``-inf`` at one part in ``exp(104)``.

    ## Source
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.log_softmax.html says that doing the two
    operations separately is slower and numerically unstable.
    """

    code = "AMP704"
    name = "handrolled-softmax"
    severity = "error"
    message = "A softmax, log-softmax or logsumexp is written out, which overflows."
    advice = "Use torch.softmax, torch.log_softmax or torch.logsumexp, which subtract the maximum first."
    fix_title = "use the operation of torch"
    fix_safety = "safe"
    triggers = ("softmax", "exp(", "Softmax")
    operations = ("div", "log", "log2", "log10", "mul", *_LOSSES_OF_LOGARITHMS)

    def __init__(self) -> None:
        self._waiting: list[tuple[Value, Value, Frame]] = []

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a quotient or a logarithm."""
        if op.op == "div":
            self._quotient(op, frame)
        elif op.op == "mul":
            self._settle(op)
        elif op.op in _LOSSES_OF_LOGARITHMS:
            self._loss(op, frame)
        elif op.args:
            for inner in ways(op.args[0]):
                if self._logarithm(op, inner, frame):
                    return

    def visit_function(self, function: FunctionFacts | None, frame: Frame) -> None:
        """Report the logarithms of probabilities that turned out not to be part of an entropy."""
        waiting, self._waiting = self._waiting, []
        for op, softmax, where in waiting:
            assert op.node is not None
            message = f"`{where.text(op.node)}` is a logarithm of a softmax, capped by its epsilon"
            self.report(where, op.node, message, culprit=softmax, severity="warning")

    # ---- exp(x) / exp(x).sum() -----------------------------------------------------------------------------------

    def _quotient(self, op: Value, frame: Frame) -> None:
        above, (below, _) = source_of(op.args[0]), unguarded(op.args[1])
        if below.op not in ("sum", "nansum") or not below.args or not _same_numbers(above, source_of(below.args[0])):
            return
        for item in factors(above):
            if item.op == "exp" and _can_overflow(item):
                if any(inner.op == "div" and inner.inplace for inner in above.behind(IN_ONE_FORMULA)):
                    return  # It was divided by its sum before, as the steps of Sinkhorn's iteration are.
                message = f"`{frame.text(op.node)}` is a softmax without its maximum subtracted"
                self.report(frame, op.node, message, fix=_softmax(op, above, below, frame))  # type: ignore[arg-type]
                return

    # ---- log(softmax(x)), log(exp(x).sum()) ----------------------------------------------------------------------

    def _logarithm(self, op: Value, inner: Value, frame: Frame) -> bool:
        plain, epsilon = unguarded(inner)
        for softmax in ways(plain):
            if softmax.op != "softmax":
                continue
            if epsilon is None:
                if softmax.float32 and not is_loss(frame):
                    continue  # Only a gap of 104 makes it -inf, and no gradient makes that NaN.
                message = f"`{frame.text(op.node)}` is -inf where a probability rounds to 0"
                self.report(frame, op.node, message, fix=_log_softmax(op, softmax, frame))  # type: ignore[arg-type]
                return True
            if _survives(epsilon, softmax, frame):
                if softmax.float32:
                    return True  # The epsilon caps what lies below it, which no gradient of float32 notices.
                self._waiting.append((op, softmax, frame))
                return True
            message = f"`{frame.text(op.node)}` is -inf where a probability rounds to 0, as its epsilon does"
            self.report(frame, op.node, message)  # type: ignore[arg-type]
            return True
        return self._of_sum(op, inner, frame) if epsilon is None else False

    def _loss(self, op: Value, frame: Frame) -> None:
        """A loss is given the logarithm of a softmax in float32: its gradient is NaN there, whatever the function."""
        if is_loss(frame):
            return
        for log in ways(op.args[0]) if op.args else ():
            inner, epsilon = unguarded(log.args[0]) if log.op == "log" and log.args else (log, None)
            if log.op != "log" or epsilon is not None or log.node is None or not is_here(log, frame):
                continue
            if any(item.op == "softmax" and item.float32 for item in ways(inner)):
                message = f"`{frame.text(log.node)}` is -inf where a probability rounds to 0"
                self.report(frame, log.node, message, fix=_log_softmax(log, inner, frame))

    def _of_sum(self, op: Value, inner: Value, frame: Frame) -> bool:
        if inner.op not in ("sum", "nansum") or not inner.args:
            return False
        terms = list(factors(inner.args[0]))
        exp = next((item for item in terms if item.op == "exp" and _can_overflow(item)), None)
        if exp is None:
            return False
        if len(terms) > 1 and exp.args[0].bits & PARAMETER:
            return False  # A weighted mean, with learned weights that are kept as logarithms.
        message = f"`{frame.text(op.node)}` is a logsumexp without its maximum subtracted"
        fix = _logsumexp(op, inner, exp, frame) if len(terms) == 1 else None
        self.report(frame, op.node, message, fix=fix)  # type: ignore[arg-type]
        return True

    def _settle(self, op: Value) -> None:
        """Forget a logarithm that is multiplied by its own probability."""
        if not self._waiting:
            return
        sides = [{id(item) for item in side.behind(IN_ONE_FORMULA)} for side in op.args]
        self._waiting = [
            (log, softmax, frame)
            for log, softmax, frame in self._waiting
            if not any(
                id(log) in one and _holds(other, softmax) for one, other in zip(sides, op.args[::-1], strict=True)
            )
        ]


def _can_overflow(exp: Value) -> bool:
    given = exp.args[0] if exp.args else None
    if given is not None and source_of(given).op in ("linspace", "logspace"):
        return False  # The author wrote both ends.
    if given is not None and any(_is_of_directions(item) for item in factors(given)):
        return False  # A cosine over a temperature, which would have to be below 0.0125.
    return given is not None and not bounded_above(given, _LARGEST_EXPONENT) and not is_gaussian(given)


def _is_of_directions(value: Value) -> bool:
    """Whether it is a product of vectors of length one."""
    return value.op in _PRODUCTS and any(item.through(PASSING).op == "normalize" for item in value.args)


def _holds(value: Value, softmax: Value) -> bool:
    return any(item is softmax for factor in factors(value) for item in factor.behind(IN_ONE_EXPRESSION))


def _same_numbers(a: Value, b: Value) -> bool:
    return a is b or same(a, b) or (a.op == b.op == "exp" and bool(a.args and b.args) and same(a.args[0], b.args[0]))


def _survives(epsilon: Value, softmax: Value, frame: Frame) -> bool:
    """Whether an epsilon is more than 0 in the type of what it is added to."""
    number = epsilon.number
    if number is None:
        return True
    return number > (frame.mode.rounds_to_zero if softmax.dtypes == LOW else 1e-45) and math.isfinite(number)


# ---- fixes -------------------------------------------------------------------------------------------------------


def _log_softmax(op: Value, softmax: Value, frame: Frame) -> Fix | None:
    call = operand(op)
    if op.op != "log" or call is None or call is not softmax.node or not isinstance(call, ast.Call) or op.inplace:
        return None
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr != "softmax" or isinstance(softmax.data, Value):
        return None
    if len(op.args) != 1 or op.kwargs:
        return None
    text, held = source(frame, call), source(frame, function)
    if not text.startswith(held) or not held.endswith("softmax"):
        return None
    new = held[: -len("softmax")] + "log_softmax" + text[len(held) :]
    return replacement(frame, "use log_softmax", "safe", (op.node, new)) if op.node is not None else None


def _softmax(op: Value, above: Value, below: Value, frame: Frame) -> Fix | None:
    node, call, exp = op.node, below.node, above.node
    if not isinstance(node, ast.BinOp) or node.right is not call or above.op != "exp" or op.inplace:
        return None
    written = operand(above) if node.left is exp else None
    if not isinstance(call, ast.Call) or written is None or not isinstance(written, (ast.Name, ast.Attribute)):
        return None
    inner = source_of(below.args[0]).node
    kept = keyword(call, "keepdim")
    if not (isinstance(kept, ast.Constant) and kept.value is True) or operand(below) is not inner:
        return None
    dim, softmax = _dimension(call, below), spelled(frame, "torch.softmax")
    if dim is None or softmax is None or isinstance(dim, (ast.Tuple, ast.List)) or above.kwargs:
        return None
    text = f"{softmax}({source(frame, written)}, dim={source(frame, dim)})"
    return replacement(frame, "use torch.softmax", "safe", (node, text))


def _logsumexp(op: Value, total: Value, exp: Value, frame: Frame) -> Fix | None:
    call, written = total.node, operand(exp)
    if operand(op) is not call or not isinstance(call, ast.Call) or operand(total) is not exp.node or written is None:
        return None
    dim, logsumexp = _dimension(call, total), spelled(frame, "torch.logsumexp")
    if op.op != "log" or dim is None or logsumexp is None or op.inplace:
        return None
    kept = keyword(call, "keepdim")
    more = f", keepdim={source(frame, kept)}" if kept is not None else ""
    text = f"{logsumexp}({source(frame, written)}, dim={source(frame, dim)}{more})"
    return replacement(frame, "use torch.logsumexp", "safe", (op.node, text)) if op.node is not None else None


def _dimension(call: ast.Call, value: Value) -> ast.expr | None:
    """The dimension of a sum, if that is its only other positional argument."""
    if any(item.arg not in ("dim", "keepdim") for item in call.keywords):
        return None
    given = keyword(call, "dim")
    rest = call.args[len(call.args) - len(value.args) + 1 :] if len(value.args) > 1 else []
    if given is not None:
        return given if not rest else None
    return rest[0] if len(rest) == 1 and not isinstance(rest[0], ast.Starred) else None
