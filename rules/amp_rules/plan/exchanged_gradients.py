"""Gradients that a script sums over its processes by hand: they are unscaled behind that, not before.

``unscale_`` looks for infinities. Before the sum each process would look at its own gradients alone, and only where one
overflowed would the step be skipped: the others take up the infinity with the sum, and step. The sum carries it to
all, so behind it all find the same. What is done with the gradients until then (to flatten, sum and divide them) is
the same in any unit. In a wrapper's group the runtime asks all processes; those of Horovod it does not know, so that
there is no other way for them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from amp_rules.plan.own_ddp.averaging import may_wrap
from amp_rules.plan.scale_free import degree_of
from amp_rules.roles.gradient_accesses import GradientAccess
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import called_name, last_name, walk
from amp_rules.torch.distributed import BROADCASTS, EXCHANGES, JOINS, JOINS_HOROVOD, SUMS_OF_HOROVOD
from amp_rules.torch.gradients import FACTS_OF_TENSORS, GRADIENT, GROWS_WITH_GRADIENT

_MAX_CALLS = 3
"""Helpers that hand gradients on: ``average``, ``all_reduce_list``, ``all_reduce_buffer``."""

_LESS_THAN_ALL = frozenset({"abs", "mean", "sum"})
"""Of what grows with a gradient, what is no gradient any more: a number to print."""
_SAME_NUMBERS = (GROWS_WITH_GRADIENT - _LESS_THAN_ALL) | {
    "cat", "enumerate", "flatten", "list", "new", "new_zeros", "empty_like", "zeros_like", "ravel", "reversed",
    "stack", "tuple", "wait", "zero_", "zip", "_flatten_dense_tensors", "_unflatten_dense_tensors",
}  # fmt: skip
"""Functions and methods that give the numbers of gradients, in other tensors and lists, or room for them."""
_ASKS = FACTS_OF_TENSORS | {"isinstance", "len", "type"}
_TIMES = frozenset({"div_", "mul_"})
_FILLS = frozenset({"add_", "append", "copy_", "extend"})
_TAKES_UP = BROADCASTS | {"torch.distributed.barrier"}
_NO_SUMS = frozenset({"PRODUCT", "Product", "BAND", "BOR", "BXOR"})
_EXCHANGES = EXCHANGES | SUMS_OF_HOROVOD


class ExchangedGradients:
    """Answers for the accesses of one program."""

    def __init__(self, program: Program, accesses: list[GradientAccess]) -> None:
        self.sums: list[GradientAccess] = []
        """Those by which gradients are given to other processes, and nothing is done but what goes in any unit."""
        self.beside: list[GradientAccess] = []
        """Others beside them that are right in any unit too: ``p.grad /= world_size``."""
        self.lost: list[GradientAccess] = []
        """Those by which they are given, while something is done that is not followed."""
        joins = program.calls_to(JOINS | JOINS_HOROVOD)
        if not joins or not program.calls_to(_EXCHANGES - BROADCASTS) or may_wrap(program):
            return
        right: list[GradientAccess] = []
        for access in accesses:
            if not isinstance(access.node, ast.Attribute):
                continue
            way = _Way(program, access.module, access.body)
            way.follow_access(access.node)
            if way.is_right:
                (self.sums if way.is_given else right).append(access)
            elif way.is_given:
                self.lost.append(access)
        bodies = {access.body for access in self.sums}
        self.beside = [access for access in right if access.body in bodies]

    @property
    def in_any_unit(self) -> set[ast.AST]:
        """The nodes of the accesses that are right in any unit."""
        return {access.node for access in (*self.sums, *self.beside)}


@dataclass
class _Way:
    """What becomes of gradients in one function or module.

    Attributes:
        is_right: whether it is the same in any unit, and all of it was followed.
        is_given: whether they are given to other processes.
    """

    program: Program
    module: Module
    body: ast.AST
    calls: tuple[FunctionFacts, ...] = ()
    names: set[str] = field(default_factory=set)
    is_right: bool = True
    is_given: bool = False

    def follow_access(self, access: ast.Attribute) -> None:
        """Follow one that is read or written."""
        self._judge(access)
        self._follow_names()

    def follow_parameter(self, name: str) -> None:
        """Follow what a function is given."""
        self.names.add(name)
        self._follow_names()

    def _follow_names(self) -> None:
        judged: set[ast.AST] = set()
        pending = bool(self.names)
        while pending:
            found = [node for node in self._uses() if node not in judged]
            for node in found:
                judged.add(node)
                self._judge(node)
            pending = bool(found)

    def _uses(self) -> list[ast.Name]:
        scopes = self.program.flow.scopes
        own = scopes[self.body]
        return [
            node
            for node in walk(self.body)
            if isinstance(node, ast.Name)
            and node.id in self.names
            and scopes[blocks.body_of(self.module, node)].owner(node.id) is own
        ]

    def _degree(self, node: ast.expr) -> int | None:
        if isinstance(node, ast.Name):
            return int(node.id in self.names)
        if isinstance(node, (ast.List, ast.Tuple)) and not node.elts:
            return 1  # to be filled
        if isinstance(node, ast.Subscript):
            return self._degree(node.value)  # ``flat[start : start + t.numel()]``
        return degree_of(node, self.names)

    def _fail(self) -> None:
        self.is_right = False

    def _judge(self, node: ast.expr) -> None:
        """Go up from where gradients are used to what takes them."""
        if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            self._written(node)
            return
        current: ast.AST = node
        while True:
            parent = self.module.parents[current]
            if isinstance(parent, ast.Attribute) and not isinstance(parent.ctx, ast.Load):
                self._written(parent)  # ``p.grad.data = summed``
                return
            if isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load):
                self._written(parent)
                return
            above = self._step(parent, current)
            if above is None:
                return
            current = above

    def _step(self, parent: ast.AST, current: ast.AST) -> ast.AST | None:
        """What gives the gradients on, one step up; None where they end, rightly or not."""
        if isinstance(parent, ast.Attribute):
            return self._attribute(parent)
        if isinstance(parent, ast.Call):
            return self._call(parent, current)
        if isinstance(parent, (ast.keyword, ast.Starred, ast.List, ast.Tuple, ast.UnaryOp, ast.ListComp)):
            return None if isinstance(parent, ast.UnaryOp) and not self._holds(parent) else parent
        if isinstance(parent, ast.GeneratorExp) or (isinstance(parent, ast.Subscript) and parent.value is current):
            return parent
        if isinstance(parent, ast.BinOp) and self._holds(parent):
            return parent
        if isinstance(parent, ast.Compare) and self._degree(parent) == 0:
            return None
        if isinstance(parent, (ast.For, ast.comprehension)) and parent.iter is current:
            self._bind(parent.target, parent.iter)
        elif isinstance(parent, ast.Assign):
            for target in parent.targets:
                self._bind(target, parent.value)
        elif isinstance(parent, ast.AugAssign):
            if not isinstance(parent.op, ast.Add) or self._degree(parent.target) != 1:
                self._fail()
        elif not isinstance(parent, ast.Expr):
            self._fail()
        return None

    def _holds(self, node: ast.UnaryOp | ast.BinOp) -> bool:
        if degree_of(node, self.names) != 1:
            self._fail()
            return False
        return True

    def _attribute(self, node: ast.Attribute) -> ast.AST | None:
        call = self.module.parents[node]
        if isinstance(call, ast.Call) and call.func is node:
            return self._method(node, call)
        if node.attr in FACTS_OF_TENSORS:
            return None
        if node.attr not in GROWS_WITH_GRADIENT - _LESS_THAN_ALL:
            self._fail()
            return None
        return node

    def _method(self, method: ast.Attribute, call: ast.Call) -> ast.AST | None:
        given = [*call.args, *(item.value for item in call.keywords)]
        if method.attr in _ASKS:
            return None
        if method.attr in _FILLS:
            if len(given) != 1 or self._degree(given[0]) != 1:
                self._fail()
            return call
        if method.attr in _SAME_NUMBERS | _TIMES and all(self._degree(item) == 0 for item in given):
            return call
        if method.attr != "view_as":
            self._fail()
        return call

    def _call(self, call: ast.Call, current: ast.AST) -> ast.AST | None:
        names = self.program.callee_names(call, self.program.flow.scopes[blocks.body_of(self.module, call)])
        name = called_name(call.func)
        if names & _EXCHANGES:
            ops = {last_name(part) for item in call.keywords for part in walk(item.value)}
            ops |= {last_name(part) for item in call.args[1:] for part in walk(item)}
            if ops & _NO_SUMS:
                self._fail()
            self.is_given = self.is_given or not names & _TAKES_UP
            return call if names & SUMS_OF_HOROVOD else None
        callees = self.program.flow.callees(call)
        if callees:
            self._enter(callees, call, current)
            return None
        if name in _FILLS and isinstance(call.func, ast.Attribute):
            self._fill(call.func.value)
            return None
        if name in _ASKS:
            return None
        if name in _SAME_NUMBERS:
            return call
        self._fail()
        return None

    def _enter(self, callees: frozenset[FunctionFacts] | set[FunctionFacts], call: ast.Call, given: ast.AST) -> None:
        value = given.value if isinstance(given, ast.keyword) else given
        for info in callees:
            name = next((item for item in info.parameters if info.argument(call, item) is value), None)
            if name is None or info in self.calls or len(self.calls) >= _MAX_CALLS:
                self._fail()
                continue
            inner = _Way(self.program, info.module.module, info.node, (*self.calls, info))
            inner.follow_parameter(name)
            self.is_given = self.is_given or inner.is_given
            self.is_right = self.is_right and inner.is_right
        if not isinstance(self.module.parents[call], ast.Expr):
            self._fail()  # what it gives back is not followed

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        """Take up the variables that gradients are given to."""
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Call):
            name = called_name(value.func)
            if name == "enumerate" and len(target.elts) == 2:
                self._bind(target.elts[1], value.args[0])
                return
            if name == "zip" and len(value.args) == len(target.elts):
                for item, given in zip(target.elts, value.args, strict=True):
                    if self._holds_gradients(given):
                        self._bind(item, given)
                return
        if isinstance(target, ast.Name):
            self.names.add(target.id)
        elif isinstance(target, ast.Attribute):
            if target.attr != GRADIENT and not (target.attr == "data" and last_name(target.value) == GRADIENT):
                self._fail()
        else:
            self._fill(target)

    def _holds_gradients(self, node: ast.expr) -> bool:
        return any(
            (isinstance(part, ast.Name) and part.id in self.names)
            or (isinstance(part, ast.Attribute) and part.attr == GRADIENT)
            for part in walk(node)
        )

    def _fill(self, target: ast.expr) -> None:
        """Take up what holds gradients from now on: ``buffer[i:j].copy_(g)``, ``grads.append(g)``."""
        if degree_of(target, self.names) == 1:
            return
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name):
            self.names.add(target.id)
        else:
            self._fail()

    def _written(self, node: ast.expr) -> None:
        """Judge what is put in the place of gradients."""
        parent = self.module.parents[node]
        if isinstance(parent, ast.AugAssign):
            kept = isinstance(parent.op, (ast.Mult, ast.Div)) and self._degree(parent.value) == 0
            if not kept and not (isinstance(parent.op, ast.Add) and self._degree(parent.value) == 1):
                self._fail()
        elif isinstance(parent, ast.Assign):
            if not self._holds_gradients(parent.value) and self._degree(parent.value) != 1:
                self._fail()
