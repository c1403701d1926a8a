"""Terms of losses that add up what is computed for each sample: ``loss = -(a - b).sigmoid().log().sum()``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from amp_rules.plan.definitions import Definitions
from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.origins import Kind
from amp_rules.roles.program import Program
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import called_name, walk

_MAX_DEPTH = 4
"""Variables and functions between a backward pass and a sum; scripts have one or two."""

_FOR_EACH_ELEMENT = frozenset(
    {
        "abs", "clamp", "clamp_min", "exp", "log", "log1p", "log_softmax", "logsigmoid", "mul", "neg", "pow", "relu",
        "sigmoid", "softplus", "sqrt", "square", "squeeze", "sub", "where",
    }
)  # fmt: skip
"""Functions and methods that give as many numbers as they are given."""


class SummedTerms:
    """Finds them in one program."""

    def __init__(self, program: Program, ranks: Ranks) -> None:
        self._program = program
        self._ranks = ranks
        self._definitions = Definitions(program)

    @cached_property
    def _found(self) -> dict[ast.Call, tuple[Scope, bool]]:
        """The sums, and whether each is one over what is left when the samples have become a mean."""
        found: dict[ast.Call, tuple[Scope, bool]] = {}
        for site in self._program.backwards:
            for call, scope in self._terms(site.loss, site.scope, _MAX_DEPTH):
                found.setdefault(call, (scope, self._is_of_mean(call, scope, _MAX_DEPTH)))
        return found

    def of_samples(self) -> Iterator[tuple[ast.Call, Scope]]:
        """Yield the sums over the samples of a batch."""
        yield from ((call, scope) for call, (scope, is_of_mean) in self._found.items() if not is_of_mean)

    def of_means(self) -> Iterator[tuple[ast.Call, Scope]]:
        """Yield sums of what is made of the mean of a batch: the entropy of ``p.mean(0)``."""
        yield from ((call, scope) for call, (scope, is_of_mean) in self._found.items() if is_of_mean)

    def _is_of_mean(self, node: ast.expr, scope: Scope, depth: int) -> bool:
        for part in walk(node):
            if isinstance(part, ast.Call) and called_name(part) == "mean" and (part.args or part.keywords):
                return True
            if isinstance(part, (ast.Name, ast.Attribute)) and depth:
                given = self._definitions.of(part, scope)
                if any(self._is_of_mean(item.value, item.scope, depth - 1) for item in given):
                    return True
        return False

    def _terms(self, node: ast.expr, scope: Scope, depth: int) -> Iterator[tuple[ast.Call, Scope]]:
        if isinstance(node, ast.UnaryOp):
            yield from self._terms(node.operand, scope, depth)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            yield from self._terms(node.left, scope, depth)
            yield from self._terms(node.right, scope, depth)
        elif isinstance(node, ast.Call):
            summed = _summed(node)
            if summed is not None:
                if self._is_of_samples(summed, scope):
                    yield node, scope
                return
            for info in self._program.flow.callees(node) if depth else ():
                for value in info.returns:
                    yield from self._terms(value, self._program.flow.scopes[info.node], depth - 1)
        elif isinstance(node, (ast.Name, ast.Attribute)) and depth:
            for item in self._definitions.of(node, scope):
                yield from self._terms(item.value, item.scope, depth - 1)

    def _is_of_samples(self, node: ast.expr, scope: Scope) -> bool:
        """Whether there is a number for each sample: made element by element, of what the batch of a process gave."""
        if not self._is_for_each(node, scope, _MAX_DEPTH):
            return False
        return is_of_batch(node, self._ranks)

    def _is_for_each(self, node: ast.expr, scope: Scope, depth: int) -> bool:
        if isinstance(node, (ast.BinOp, ast.UnaryOp)):
            return True
        if isinstance(node, ast.Call):
            return called_name(node) in _FOR_EACH_ELEMENT
        given = self._definitions.of(node, scope) if depth else []
        return bool(given) and all(
            item.whole
            and not isinstance(item.value, (ast.Name, ast.Attribute))
            and self._is_for_each(item.value, item.scope, depth - 1)
            for item in given
        )


def _summed(call: ast.Call) -> ast.expr | None:
    """What ``x.sum()`` and ``torch.sum(x)`` add up whole."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "sum" or call.keywords:
        return None
    if isinstance(call.func.value, ast.Name) and call.func.value.id == "torch":
        return call.args[0] if len(call.args) == 1 else None
    return None if call.args else call.func.value


def is_of_batch(node: ast.expr, ranks: Ranks) -> bool:
    """Whether an expression is made of what the batch of a process gave."""
    return any(origin.kind is Kind.BATCH for origin in ranks.origins(node))
