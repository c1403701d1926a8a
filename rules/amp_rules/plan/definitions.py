"""Where variables get their values: every assignment of a name, or of an attribute of an object of the project."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from amp_rules.flow.cells import CellKey
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import is_none
from amp_rules.torch.data import COUNTERS
from amp_rules.torch.functions import GIVES_NUMBER

_MAX_DEPTH = 8
"""Variables that are looked through to see whether something is a number; people copy one twice at most."""


@dataclass(frozen=True)
class Definition:
    """An assignment of a variable.

    Attributes:
        statement: the statement.
        value: what is assigned; of ``for`` and ``with`` what is gone through or entered.
        scope: the scope of its names.
        whole: whether the variable gets all of the value and nothing besides: no unpacking, no ``+=``.
    """

    statement: ast.stmt
    value: ast.expr
    scope: Scope
    whole: bool


class Definitions:
    """Questions about variables."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._asked: set[CellKey | None] = set()

    def of(self, node: ast.expr, scope: Scope) -> list[Definition]:
        """The assignments of the variable that an expression reads."""
        key = self._program.flow.key(node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else None
        return self._all.get(key, []) if key is not None else []

    def parameter(self, node: ast.expr, scope: Scope) -> FunctionNode | None:
        """The function whose parameter a name is."""
        if not isinstance(node, ast.Name):
            return None
        owner = scope.owner(node.id).node
        if isinstance(owner, FunctionNode) and any(item.arg == node.id for item in arguments_of(owner)):
            return owner
        return None

    def is_none(self, node: ast.expr, scope: Scope) -> bool:
        """Whether a variable is never anything but None: a parameter that every call leaves out, or gives None."""
        given = [item.value for item in self.of(node, scope)]
        function = self.parameter(node, scope)
        info = self._program.function_of(function) if function is not None else None
        if info is not None and isinstance(node, ast.Name):
            callers = self._program.flow.callers(info)
            told = [info.argument_or_default(caller.call, node.id) for caller in callers]
            given += [item for item in told if item is not None]
            if len(told) != len(given) or not told:
                return False
        return bool(given) and all(map(is_none, given))

    @cached_property
    def _all(self) -> dict[CellKey, list[Definition]]:
        found: defaultdict[CellKey, list[Definition]] = defaultdict(list)
        for node, _, scope in self._program.nodes():
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._add(found, target, Definition(node, node.value, scope, whole=True))
            elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
                whole = isinstance(node, ast.AnnAssign)
                self._add(found, node.target, Definition(node, node.value, scope, whole))
            elif isinstance(node, (ast.For, ast.AsyncFor)):
                self._add(found, node.target, Definition(node, node.iter, scope, whole=False))
            elif isinstance(node, ast.NamedExpr):
                statement = blocks.statement_of(scope.module, node)
                self._add(found, node.target, Definition(statement, node.value, scope, whole=True))
        return found

    def _add(self, found: defaultdict[CellKey, list[Definition]], target: ast.expr, given: Definition) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            pairs = list(given.value.elts) if isinstance(given.value, (ast.Tuple, ast.List)) else []
            for index, item in enumerate(target.elts):
                if len(pairs) == len(target.elts):
                    self._add(found, item, Definition(given.statement, pairs[index], given.scope, given.whole))
                else:
                    self._add(found, item, Definition(given.statement, given.value, given.scope, whole=False))
            return
        key = self._program.flow.key(blocks.reading(target), given.scope)
        if key is not None and isinstance(target, (ast.Name, ast.Attribute)):
            found[key].append(given)

    # ---- numbers -------------------------------------------------------------------------------------------------

    def is_number(self, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
        """Whether an expression is certainly a number of Python, which no gradient goes through."""
        if depth > _MAX_DEPTH:
            return False
        if isinstance(node, ast.Constant):
            return isinstance(node.value, (int, float))
        if isinstance(node, ast.BinOp):
            return self.is_number(node.left, scope, depth) and self._is_plain(node.right, scope, depth)
        if isinstance(node, ast.UnaryOp):
            return self.is_number(node.operand, scope, depth)
        if isinstance(node, ast.IfExp):
            return self.is_number(node.body, scope, depth) and self.is_number(node.orelse, scope, depth)
        if isinstance(node, ast.Call):
            return self._gives_number(node, scope, depth)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._holds_number(node, scope, depth)
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
            return self._holds_numbers(node.value, scope, depth)
        return False

    def _is_plain(self, node: ast.expr, scope: Scope, depth: int) -> bool:
        """Whether an operand cannot make a tensor of a number: it is none, or of a name that nothing tells of.

        Nor can the size of one batch that a variable is given in the first round: ``size = None``, ``x.shape[0]``.
        """
        if self.is_number(node, scope, depth) or _is_size(node):
            return True
        if isinstance(node, ast.BinOp):
            return self._is_plain(node.left, scope, depth) and self._is_plain(node.right, scope, depth)
        given = self.of(node, scope) if isinstance(node, ast.Name) else []
        if given and all(item.whole and (is_none(item.value) or _is_size(item.value)) for item in given):
            return self.parameter(node, scope) is None
        return (
            not self.of(node, scope)
            and isinstance(node, (ast.Name, ast.Attribute))
            and bool(not self._program.flow.values(node, scope))
        )

    def _gives_number(self, node: ast.Call, scope: Scope, depth: int) -> bool:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "item":
            return True
        if self._program.callee_names(node, scope) & GIVES_NUMBER:
            names = self._program.callee_names(node, scope)
            # ``sum`` and ``max`` of tensors are tensors.
            if not names & {"builtins.sum", "builtins.max", "builtins.min"}:
                return True
            if len(node.args) > 1 and "builtins.sum" not in names:
                return all(self.is_number(item, scope, depth) for item in node.args)
            return bool(node.args) and self._holds_numbers(node.args[0], scope, depth)
        callees = self._program.flow.callees(node)
        returned = [
            (item, self._program.flow.scopes[info.node]) for info in callees for item in info.returns if info.returns
        ]
        return bool(returned) and all(self.is_number(item, inner, depth + 1) for item, inner in returned)

    def _holds_number(self, node: ast.Name | ast.Attribute, scope: Scope, depth: int) -> bool:
        key = self._program.flow.key(node, scope)
        if key is not None and key in self._asked:
            return True  # ``mean = 0.9 * mean + 0.1 * loss.item()``: what else it is given decides
        if key is not None:
            self._asked.add(key)
        found = self._is_given_numbers(node, scope, depth)
        self._asked.discard(key)
        return found

    def _is_given_numbers(self, node: ast.Name | ast.Attribute, scope: Scope, depth: int) -> bool:
        last = self._assigned_before(node, scope) if isinstance(node, ast.Name) else None
        if last is not None and self.is_number(last, scope, depth + 1):
            return True
        given = self.of(node, scope)
        function = self.parameter(node, scope)
        if function is not None and not self._is_given_number(function, node, depth):
            return False
        return bool(given or function) and all(
            self._keeps_number(item, depth) or self._counts(item, node) for item in given
        )

    def _counts(self, item: Definition, node: ast.expr) -> bool:
        """Whether a variable is the number of a loop's round."""
        loop = item.statement
        if not isinstance(loop, (ast.For, ast.AsyncFor)) or not isinstance(loop.iter, ast.Call):
            return False
        names = self._program.callee_names(loop.iter, item.scope)
        target = loop.target
        if names & {"builtins.enumerate"} and isinstance(target, ast.Tuple):
            return blocks.path_of(target.elts[0]) == blocks.path_of(node)
        return bool(names & COUNTERS) and not isinstance(target, ast.Tuple)

    def _assigned_before(self, node: ast.Name, scope: Scope) -> ast.expr | None:
        """What a variable of the function was assigned last before a statement, in its own suite: a list may be one
        name with its mean."""
        if scope.owner(node.id) is not scope:
            return None
        where = blocks.place(scope.module, blocks.statement_of(scope.module, node))
        return blocks.given_last(where.suite[: where.index], node.id)

    def _keeps_number(self, item: Definition, depth: int) -> bool:
        """Whether a variable that holds a number, or nothing yet, still does after an assignment."""
        if not item.whole and not isinstance(item.statement, ast.AugAssign):
            return False
        return is_none(item.value) or _rescales(item) or self.is_number(item.value, item.scope, depth + 1)

    def _is_given_number(self, function: FunctionNode, node: ast.expr, depth: int) -> bool:
        """Whether all callers give a number for a parameter."""
        info = self._program.function_of(function)
        if info is None or not isinstance(node, ast.Name):
            return False
        given = [
            (value, self._program.flow.scope_given(info, caller, value))
            for caller in self._program.flow.callers(info)
            if (value := info.argument_or_default(caller.call, node.id)) is not None
        ]
        return bool(given) and all(self.is_number(value, inner, depth + 1) for value, inner in given)

    def _holds_numbers(self, node: ast.expr, scope: Scope, depth: int) -> bool:
        """Whether a list holds numbers: all that is appended to it is one."""
        if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
            return self.is_number(node.elt, scope, depth + 1)
        key = self._program.flow.key(node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else None
        given = self._put.get(key, []) if key is not None else []
        return bool(given) and all(self.is_number(item, inner, depth + 1) for item, inner in given)

    @cached_property
    def _put(self) -> dict[CellKey, list[tuple[ast.expr, Scope]]]:
        """What is put into a container that a variable holds: appended, assigned to an element, or there at first."""
        found: defaultdict[CellKey, list[tuple[ast.expr, Scope]]] = defaultdict(list)
        for node, _, scope in self._program.nodes():
            owner, values = _puts(node)
            key = self._program.flow.key(owner, scope) if isinstance(owner, (ast.Name, ast.Attribute)) else None
            if key is not None:
                found[key].extend((value, scope) for value in values)
        return found


def _rescales(item: Definition) -> bool:
    """``total /= len(loader)``: what a number is divided by or multiplied with is one."""
    return isinstance(item.statement, ast.AugAssign) and isinstance(item.statement.op, (ast.Div, ast.Mult))


def _puts(node: ast.AST) -> tuple[ast.expr | None, list[ast.expr]]:
    """The container that a node puts something into, and what."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("append", "appendleft")
    ):
        return node.func.value, node.args[:1]
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        if isinstance(target, ast.Subscript):
            return target.value, [node.value]
        if isinstance(node.value, ast.Dict) and isinstance(target, (ast.Name, ast.Attribute)):
            return blocks.reading(target), list(node.value.values)
        if isinstance(node.value, ast.List) and isinstance(target, (ast.Name, ast.Attribute)):
            return blocks.reading(target), list(node.value.elts)
    return None, []


def _is_size(node: ast.expr) -> bool:
    """``x.shape[0]``, ``x.size(0)``."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
        return node.value.attr == "shape" and isinstance(node.slice, (ast.Constant, ast.UnaryOp))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr == "size" and len(node.args) == 1
