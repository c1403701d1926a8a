"""Fixed tables of coefficients: weights of convolutions that are numbers of the script, which nobody trains."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import keyword, literal
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.functions import PARAMETER_MAKERS

_OF_NUMBERS = frozenset({"torch.tensor", "torch.as_tensor", "torch.FloatTensor", "torch.Tensor", "numpy.array"})
_HOLDING = frozenset({"torch.from_numpy"})
_JOINING = frozenset({"torch.cat", "torch.stack", "torch.vstack"})
_ZEROS = frozenset({"torch.zeros", "numpy.zeros"})
_SHAPING = frozenset(
    """
    astype clone contiguous cpu cuda detach expand expand_as flip float permute repeat reshape t to transpose type
    type_as unsqueeze squeeze view
    """.split()
)
"""Methods after which a table has the same coefficients."""
_DEPTH = 12
"""Assignments and methods between a table and the convolution; half as many have been seen."""


def signs_of(program: Program, node: ast.expr, scope: Scope, body: ast.AST) -> set[int]:
    """The signs of a table's coefficients; none where something else than numbers of the script may be in it."""
    table = _Table(program)
    return table.signs if table.reads(node, scope, body, _DEPTH) else set()


class _Table:
    """Follows a weight to the numbers that it is made of.

    Attributes:
        signs: those of the numbers that were met.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.signs: set[int] = set()
        self._seen: set[object] = set()

    def reads(self, node: ast.expr, scope: Scope, body: ast.AST, depth: int) -> bool:
        """Whether an expression holds a table and nothing else; its signs are noted."""
        if depth == 0:
            return False
        if isinstance(node, ast.Call):
            return self._call(node, scope, body, depth - 1)
        if isinstance(node, ast.Subscript):
            return _is_new_axes(node.slice) and self.reads(node.value, scope, body, depth - 1)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Mult)):
            return _sign(node.right) == 1 and self.reads(node.left, scope, body, depth - 1)
        if isinstance(node, ast.Name):
            return self._variable(node.id, scope, body, depth - 1)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return self._attribute(node, body, depth - 1)
        return False

    def _call(self, node: ast.Call, scope: Scope, body: ast.AST, depth: int) -> bool:
        names = self._program.callee_names(node, scope)
        if names & _OF_NUMBERS:
            return len(node.args) >= 1 and self._literal(node.args[0], scope, body, depth)
        if names & _HOLDING and node.args:
            return self.reads(node.args[0], scope, body, depth)
        if names & _JOINING and node.args and isinstance(node.args[0], (ast.List, ast.Tuple)):
            return all(self.reads(item, scope, body, depth) for item in node.args[0].elts)
        if (called := self._program.flow.callees(node)) and not names:
            return all(self._given_back(info, depth) for info in called)
        if names & PARAMETER_MAKERS and (node.args or node.keywords):
            given = keyword(node, "data") or (node.args[0] if node.args else None)
            is_fixed = literal(keyword(node, "requires_grad")) is False
            return given is not None and is_fixed and self.reads(given, scope, body, depth)
        if names or not (isinstance(node.func, ast.Attribute) and node.func.attr in _SHAPING):
            return False
        return self.reads(node.func.value, scope, body, depth)

    def _given_back(self, info: FunctionFacts, depth: int) -> bool:
        """Whether a function of the script gives back a table."""
        scope = self._program.flow.scopes.get(info.node)
        given = info.returns
        return scope is not None and bool(given) and all(self.reads(item, scope, info.node, depth) for item in given)

    def _argument(self, info: FunctionFacts, name: str, depth: int) -> bool:
        """Whether each call of a function gives it a table."""
        key = info.node, name
        if key in self._seen:
            return True
        self._seen.add(key)
        callers = self._program.flow.callers(info)
        given = [(info.argument_or_default(caller.call, name), caller) for caller in callers]
        return bool(given) and all(
            item is not None and self.reads(item, caller.scope, caller.scope.node, depth) for item, caller in given
        )

    def _literal(self, node: ast.expr, scope: Scope, body: ast.AST, depth: int) -> bool:
        """``[[0, 1, 0], [1, -4, 1], [0, 1, 0]]``, and ``[-self.coefficient, 1]``."""
        if isinstance(node, (ast.List, ast.Tuple)):
            return bool(node.elts) and all(self._literal(item, scope, body, depth) for item in node.elts)
        sign = self._sign_of(node, scope, body, depth)
        if sign is None:
            return False
        self.signs.add(sign)
        return True

    def _sign_of(self, node: ast.expr, scope: Scope, body: ast.AST, depth: int) -> int | None:
        """The sign of a number, which a variable, an attribute or a parameter may hold; None where it is not known."""
        sign = _sign(node)
        if sign is not None or depth <= 0:
            return sign
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            sign = self._sign_of(node.operand, scope, body, depth - 1)
            return -sign if sign is not None else None
        signs = {
            self._sign_of(value, where, home, depth - 1) if value is not None else None
            for value, where, home in self._held(node, body)
        }
        return signs.pop() if len(signs) == 1 else None

    def _held(self, node: ast.expr, body: ast.AST) -> Iterator[tuple[ast.expr | None, Scope, ast.AST]]:
        """Yield what a variable of a function holds, or an attribute of its object, each with where it stands."""
        flow, info = self._program.flow, self._program.function_of(body)
        if info is None:
            return
        places: list[tuple[ast.AST, str]] = []
        if isinstance(node, ast.Name):
            for caller in flow.callers(info) if node.id in info.parameters else ():
                yield info.argument_or_default(caller.call, node.id), caller.scope, caller.scope.node
            places = [(info.node, node.id)]
        elif isinstance(node, ast.Attribute):
            owner = flow.class_of(info)
            methods = owner.facts.methods.values() if owner is not None else [info]
            places = [(method.node, f"{method.receiver}.{node.attr}") for method in methods]
        for home, path in places:
            scope = flow.scopes.get(home)
            if scope is not None:
                for value in _values(self._program, home, path):
                    yield value, scope, home

    def _variable(self, name: str, scope: Scope, body: ast.AST, depth: int) -> bool:
        """A variable whose assignments, in the body that owns it, all give a table; filled element by element too."""
        owner = scope.owner(name)
        home = body if owner is scope else owner.node if owner is not None else None
        if owner is None or home is None:
            return False
        info = self._program.function_of(home)
        if info is not None and name in info.parameters:
            if any(True for _ in _values(self._program, home, name)):
                return False
            return self._argument(info, name, depth)
        return self._stored(name, owner, home, depth, (home, name))

    def _attribute(self, node: ast.Attribute, body: ast.AST, depth: int) -> bool:
        """``self.kernel``: an attribute or a buffer of the class."""
        info = self._program.function_of(body)
        owner = self._program.flow.class_of(info) if info is not None else None
        assert isinstance(node.value, ast.Name)
        if info is None or owner is None or node.value.id != info.receiver:
            return False
        key = owner, node.attr
        if key in self._seen:
            return True
        self._seen.add(key)
        found = 0
        for method in owner.facts.methods.values():
            scope = self._program.flow.scopes.get(method.node)
            if scope is None or method.receiver is None:
                continue
            path = f"{method.receiver}.{node.attr}"
            for value in _values(self._program, method.node, path):
                if value is None or not self.reads(value, scope, method.node, depth):
                    return False
                found += 1
            for given in _buffers(self._program, method.node, method.receiver, node.attr):
                if not self.reads(given, scope, method.node, depth):
                    return False
                found += 1
        return found > 0

    def _stored(self, name: str, scope: Scope, home: ast.AST, depth: int, key: object) -> bool:
        if key in self._seen:
            return True
        self._seen.add(key)
        values = list(_values(self._program, home, name))
        elements = list(_elements(self._program, home, name))
        if not values:
            return False
        if elements and any(isinstance(item, ast.Call) for item in values):
            return self._filled(values, elements, scope, home, depth)
        return all(value is not None and self.reads(value, scope, home, depth) for value in values)

    def _filled(
        self,
        values: list[ast.expr | None],
        elements: list[ast.expr],
        scope: Scope,
        home: ast.AST,
        depth: int,
    ) -> bool:
        """``kernel = torch.zeros(3, 3)``, then ``kernel[1, 1] = -4.0``."""
        for value in values:
            is_empty = isinstance(value, ast.Call) and self._program.callee_names(value, scope) & _ZEROS
            if value is None or not (is_empty or self.reads(value, scope, home, depth)):
                return False
        signs = [_sign(item) for item in elements]
        self.signs.update(sign for sign in signs if sign is not None)
        return None not in signs


def _values(program: Program, body: ast.AST, path: str) -> Iterator[ast.expr | None]:
    """What a variable or attribute is assigned in a body; None for what is no plain assignment."""
    for node in program.nodes_of(body):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    continue
                if blocks.path_of(target) == path:
                    yield node.value
                elif path in blocks.writes(target) or any(_stores(part, path) for part in walk(target)):
                    yield None
        elif isinstance(node, ast.AnnAssign) and blocks.path_of(node.target) == path and node.value is not None:
            yield node.value
        elif isinstance(node, ast.AugAssign) and blocks.path_of(node.target) == path:
            if not (isinstance(node.op, (ast.Div, ast.Mult)) and _sign(node.value) == 1):
                yield None
        elif isinstance(node, (ast.For, ast.With, ast.NamedExpr)) and path in blocks.writes(node):
            yield None


def _stores(node: ast.AST, path: str) -> bool:
    is_written = isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store)
    return is_written and blocks.path_of(node) == path


def _elements(program: Program, body: ast.AST, path: str) -> Iterator[ast.expr]:
    """What is put into elements of a variable."""
    for node in program.nodes_of(body):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and blocks.path_of(target) == path:
                    yield node.value


def _buffers(program: Program, body: ast.AST, receiver: str, name: str) -> Iterator[ast.expr]:
    """``self.register_buffer("kernel", kernel)``."""
    for node in program.nodes_of(body):
        if not (isinstance(node, ast.Call) and blocks.path_of(node.func) == f"{receiver}.register_buffer"):
            continue
        given = [*node.args, *(item.value for item in node.keywords if item.arg in ("name", "tensor"))]
        if len(given) >= 2 and isinstance(given[0], ast.Constant) and given[0].value == name:
            yield given[1]


def _sign(node: ast.expr) -> int | None:
    """The sign of a number as it is written: that of its leading factor; None for what is no number."""
    if isinstance(node, ast.Constant):
        is_number = isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
        return (node.value > 0) - (node.value < 0) if is_number and isinstance(node.value, (int, float)) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        sign = _sign(node.operand)
        return -sign if sign is not None and isinstance(node.op, ast.USub) else sign
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div, ast.Pow)):
        return _sign(node.left)
    return None


def _is_new_axes(node: ast.expr) -> bool:
    """``[None, None]``, ``[None, :, :]``."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return all(
        (isinstance(item, ast.Constant) and (item.value is None or item.value is ...))
        or (isinstance(item, ast.Slice) and item.lower is None and item.upper is None)
        for item in parts
    )
