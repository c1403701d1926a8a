"""Models that change their device after DistributedDataParallel was put around them.

torch's hooks hang on what adds up a parameter's gradient, and a parameter that has been on another device has another
of these: no gradient is averaged then, and no error is raised.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from amp_rules.flow.values import Value
from amp_rules.plain_torch.gpu import may_use_gpu
from amp_rules.plain_torch.uses import Use
from amp_rules.plain_torch.wrapped import Moved
from amp_rules.roles.batches import DataFlow
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import literal
from amp_rules.torch.devices import DEVICE
from amp_rules.torch.wrappers import COPIES_FIRST_ARGUMENT

_MOVES = frozenset({"cuda", "to"})
"""Methods that put a model on a device: a parameter of another type of device is another tensor to its wrapper."""

_MAX_CALLS = 3
"""Functions between the one that prepares a model and the one that moves it, such as ``__init__`` of two classes."""


class MovedModels:
    """Answers for the models of one program."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def later(self, use: Use, values: frozenset[Value]) -> list[Site]:
        """Where functions that run after a model is wrapped put it on its device, if nothing did before."""
        if not may_use_gpu(self._program):
            return []
        moves = [site for site in self._calls(values) if site.node.func.attr in _MOVES]  # type: ignore[attr-defined]
        if any(move.body is use.body and move.line <= use.line for move in moves):
            return []
        after = [node for node in self._program.nodes_of(use.body) if getattr(node, "lineno", 0) >= use.line]
        called = self._program.called_from(after)
        return [move for move in moves if move.body is not use.body and move.body in called]

    def to_wrap_at(self, use: Use, values: frozenset[Value]) -> Moved | None:
        """The assignment that moves a model, where its wrapper may be made instead: it runs once, in every process."""
        moves = self.later(use, values)
        if not moves or any(move.body is not moves[0].body for move in moves):
            return None
        move = min(moves, key=lambda site: site.line)
        info = self._program.function_of(move.body)
        call = move.node
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if info is None or not self._program.roles.modules(call.func.value, move.scope) <= values:
            return None
        target = _target(move.statement, call)
        if target is None or not _is_run(info, move.statement):
            return None
        return Moved.of(move, ast.unparse(target)) if self._comes_once(info, use) else None

    def _comes_once(self, info: FunctionFacts, use: Use) -> bool:
        """Whether a function is reached by one call, once for each time a model is prepared, and in every process."""
        roots = self._roots(info, use, _MAX_CALLS)
        return roots is not None and len(roots) == 1

    def _roots(self, info: FunctionFacts, use: Use, depth: int) -> set[ast.Call] | None:
        """The calls below the line that prepares a model that lead to a function; None where one may not."""
        callers = self._program.flow.callers(info)
        # An object has one class, whose ``__init__`` is run, or that of its base by way of it.
        if not callers or depth == 0 or (len(callers) > 1 and info.name != "__init__"):
            return None
        if len({calling(item).body for item in callers}) != len(callers):
            return None
        found: set[ast.Call] = set()
        for site in map(calling, callers):
            if site.body is use.body:
                suite = blocks.place(use.module, use.statement).suite
                following = suite[suite.index(use.statement) :]
                if site.statement not in following:
                    return None
                if any(map(_leaves, following[: following.index(site.statement)])):
                    return None
                assert isinstance(site.node, ast.Call)
                found.add(site.node)
                continue
            outer = self._program.function_of(site.body)
            if outer is None or not _is_run(outer, site.statement):
                return None
            roots = self._roots(outer, use, depth - 1)
            if roots is None:
                return None
            found |= roots
        return found

    def away(self, use: Use, values: frozenset[Value]) -> Site | None:
        """Where a training loop takes a model from its device: ``torch.save(model.cpu().state_dict(), path)``."""
        if not may_use_gpu(self._program):
            return None
        for site in self._calls(values):
            if self._leaves_device(site) and any(
                self._program.runs_backward(loop.node) and use.node not in set(ast.walk(loop.node))
                for loop in self._data.loops_of(site)
            ):
                return site
        return None

    def _leaves_device(self, site: Site) -> bool:
        call = site.node
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if call.func.attr == "cpu":
            return True
        if call.func.attr != "to" or not call.args:
            return False
        given = call.args[0]
        if isinstance(given, ast.Call) and self._program.callee_names(given, site.scope) & {DEVICE} and given.args:
            given = given.args[0]
        return literal(given) == "cpu"

    def _calls(self, values: frozenset[Value]) -> Iterator[Site]:
        """Yield the calls of a model's methods that move it, but for those of a copy."""
        for call, body, scope in self._program.calls():
            if isinstance(call.func, ast.Attribute) and call.func.attr in (*_MOVES, "cpu"):
                owner = call.func.value
                if self._program.roles.modules(owner, scope) & values and not self._is_copy(owner, scope):
                    yield Site(scope.module, scope, body, call)

    def _is_copy(self, node: ast.expr, scope: object) -> bool:
        return isinstance(node, ast.Call) and bool(
            self._program.callee_names(node, scope) & COPIES_FIRST_ARGUMENT  # type: ignore[arg-type]
        )

    @cached_property
    def _data(self) -> DataFlow:
        return DataFlow(self._program)


def is_variable(node: ast.expr) -> bool:
    """Whether an expression is a variable that can be read and written by the same words."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and blocks.path_of(node) is not None
    return isinstance(node, (ast.Name, ast.Attribute)) and blocks.path_of(node) is not None


def _target(statement: ast.stmt, call: ast.Call) -> ast.expr | None:
    """``self.model`` of ``self.model = model.to(device)`` and of ``self.model.to(device)``."""
    if isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.Expr) and statement.value is call and isinstance(call.func, ast.Attribute):
        target = call.func.value
    else:
        return None
    return target if is_variable(target) else None


def _is_run(info: FunctionFacts, statement: ast.stmt) -> bool:
    """Whether each call of a function gets to a statement: it stands in its own suite, and nothing leaves above."""
    if statement not in info.body or info.yields:
        return False
    return not any(map(_leaves, info.body[: info.body.index(statement)]))


def _leaves(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, (ast.Return, ast.Raise, ast.Break, ast.Continue)) for node in blocks.walk_own(statement)
    )
