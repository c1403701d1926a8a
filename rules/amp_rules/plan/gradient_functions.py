"""Backward passes of the project's own ``autograd.Function``: what they make of a gradient must grow with it.

A derivative is linear in the gradient that it is given, so a scaled one gives a scaled one. Functions that clip, round
or replace gradients do not: with a scaled loss they do something else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.syntax import called_name, is_none, walk
from amp_rules.torch.gradients import FACTS_OF_TENSORS, MADE_IN_ITS_SHAPE, NOT_HOMOGENEOUS, SHAPED_BY_ANOTHER

_KEPT = frozenset({"saved_tensors", "saved_variables"})
"""What a context kept of the forward pass."""


def reasons(program: Program) -> Iterator[Declined]:
    """Yield the first place in each backward pass that depends on the gradient's size."""
    for info in program.flow.functions.values():
        if info.name != "backward" or info.cls is None or not info.cls.is_autograd_function:
            continue
        if len(info.by_place) < 2 and info.node.args.vararg is None:
            continue
        if all(body is not info.node for body, _ in program.bodies) and not _is_applied(program, info):
            continue
        backward = _Backward(info)
        bent, replaced = backward.depends_on_size(), backward.without_gradient()
        place = bent or replaced
        added = backward.adds_own_gradient()
        if place is None and added is not None:
            module = info.module.module
            yield declining.decline(
                declining.GRADIENT_ACCESS,
                module,
                added,
                f"`{module.text(added)}` in `{info.qualname}` adds the gradient of its own loss, which is not scaled, "
                "to its input gradient, which is scaled",
                "scale that loss, too: `amp.scaler.scale(loss).backward()`, then migrate by hand",
            )
        if place is not None:
            module = info.module.module
            why = "depends on the size" if bent is not None else "is returned whatever the size"
            yield declining.decline(
                declining.GRADIENT_ACCESS,
                module,
                place,
                f"`{module.text(place)}` in `{info.qualname}` {why} of the gradient that it is given, which is scaled",
                "divide the gradient by `amp.scaler.get_scale()` first and multiply the result by it, then migrate by "
                "hand",
            )


def runs_in_backward(program: Program, body: ast.AST, around: frozenset[str] = frozenset()) -> bool:
    """Whether code runs within the backward pass of an ``autograd.Function`` alone, as what computes again does.

    What a context kept is not followed: callers are looked for by the method's name then.
    """
    info = program.function_of(body)
    if info is None or info.name in around:
        return False
    if info.name == "backward" and info.cls is not None and info.cls.is_autograd_function:
        return True
    callers = [caller.scope.node for caller in program.flow.callers(info)] or [
        blocks.body_of(module, node)
        for module in program.flow.modules
        for node in module.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == info.name
    ]
    return bool(callers) and all(runs_in_backward(program, caller, around | {info.name}) for caller in callers)


def _is_applied(program: Program, info: FunctionFacts) -> bool:
    """Whether the program calls ``apply`` of the class."""
    assert info.cls is not None
    for node, _, scope in program.nodes():
        if isinstance(node, ast.Attribute) and node.attr == "apply":
            for value in program.flow.values(node.value, scope):
                if value.kind == "class" and any(cls.facts is info.cls for cls in value.ref.mro()):
                    return True
    return False


def _pointed_to(call: ast.Call) -> list[ast.expr]:
    """The tensors whose memory a kernel is given: ``kernel(args=[grad.data_ptr(), out.data_ptr()])``."""
    return [
        part.func.value
        for item in (*call.args, *call.keywords)
        for part in walk(item)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "data_ptr"
    ]


class _Backward:
    """One backward pass: which of its variables hold something of the gradient."""

    def __init__(self, info: FunctionFacts) -> None:
        self._node = info.node
        given = [*info.by_place[1:], *([info.node.args.vararg.arg] if info.node.args.vararg else [])]
        self._graded = {name for name in given if not self._is_replaced(name)}
        while True:
            before = len(self._graded)
            for node in walk(self._node):
                self._spread(node)
            if len(self._graded) == before:
                break

    def _is_replaced(self, name: str) -> bool:
        """Whether a parameter gets what the context kept before anything reads it: ``indices, = ctx.saved_tensors``."""
        reads = [node.lineno for node in walk(self._node) if isinstance(node, ast.Name) and node.id == name]
        first = min(
            (
                node.lineno
                for node in walk(self._node)
                if isinstance(node, ast.Assign) and name in blocks.writes(node)
                if isinstance(node.value, ast.Attribute) and node.value.attr in _KEPT
            ),
            default=None,
        )
        return first is not None and min(reads) >= first

    def depends_on_size(self) -> ast.expr | None:
        """What makes the result not grow with the gradient; None where nothing does."""
        for node in walk(self._node):
            if isinstance(node, ast.Call) and self._is_bent(node):
                return node
            if isinstance(node, ast.Compare) and self._compares(node):
                return node
            if isinstance(node, ast.BinOp) and self._mixes(node):
                return node
        return None

    def _spread(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value is not None and self._is_graded(node.value):
                for target in targets:
                    self._mark(target)
        elif isinstance(node, ast.For) and self._is_graded(node.iter):
            self._mark(node.target)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            # What is changed in place, and what a kernel fills.
            call = node.value
            if any(self._is_graded(item) for item in call.args):
                if isinstance(call.func, ast.Attribute) and call.func.attr.endswith("_"):
                    self._mark(call.func.value)
                for item in call.args:
                    if isinstance(item, ast.Name):
                        self._mark(item)
            pointed = _pointed_to(call)
            if any(map(self._is_graded, pointed)):
                for item in pointed:
                    self._mark(item)

    def _mark(self, target: ast.expr) -> None:
        """Note what is written to; what says which part of it is written, ``grads.narrow(0, k, size)``, is not."""
        if isinstance(target, ast.Subscript):
            self._mark(target.value)
            return
        if isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
            self._mark(target.func.value)
            return
        for item in walk(target):
            if isinstance(item, ast.Name) and item.id not in ("ctx", "self", "torch"):
                self._graded.add(item.id)

    def _is_graded(self, node: ast.AST) -> bool:
        """Whether a number of the gradient is in the expression; its shape and type, which others may take, do not."""
        if isinstance(node, ast.Name):
            return node.id in self._graded
        if isinstance(node, ast.Attribute) and node.attr in FACTS_OF_TENSORS:
            return False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in FACTS_OF_TENSORS | MADE_IN_ITS_SHAPE:
                return False
            if node.func.attr in SHAPED_BY_ANOTHER:
                return self._is_graded(node.func.value)
        return any(self._is_graded(child) for child in ast.iter_child_nodes(node))

    def _is_bent(self, call: ast.Call) -> bool:
        """``g.clamp(-1, 1)``, ``torch.sign(g)``."""
        if called_name(call) not in NOT_HOMOGENEOUS:
            return False
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        given = [*call.args[:1], *([owner] if owner is not None else [])]
        return any(self._is_graded(item) for item in given)

    def _compares(self, node: ast.Compare) -> bool:
        """``g > 0.1``; a sign and the absence of a gradient are the same in any unit."""
        if any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops):
            return False
        sides = [node.left, *node.comparators]
        graded = [self._is_graded(side) for side in sides]
        return any(graded) and not all(
            is_graded or (isinstance(side, ast.Constant) and not side.value)
            for side, is_graded in zip(sides, graded, strict=True)
        )

    def _mixes(self, node: ast.BinOp) -> bool:
        """``g + 0.1``, ``g ** 2``, ``g * g``, ``1 / g``."""
        left, right = self._is_graded(node.left), self._is_graded(node.right)
        if isinstance(node.op, (ast.Add, ast.Sub)):
            number = node.right if left else node.left
            return left != right and isinstance(number, ast.Constant) and bool(number.value)
        if isinstance(node.op, ast.Pow):
            return left
        return False

    def adds_own_gradient(self) -> ast.AST | None:
        """Where the gradient of a loss of its own, which nothing scales, is added to what it is given."""
        passes = [
            node
            for node in walk(self._node)
            if isinstance(node, ast.Call) and called_name(node) in ("backward", "grad") and not self._is_graded(node)
        ]
        if not passes:
            return None
        own = {
            item.id
            for node in walk(self._node)
            if isinstance(node, ast.Assign) and self._is_own(node.value, set(), passes)
            for target in node.targets
            for item in walk(target)
            if isinstance(item, ast.Name)
        }
        for node in walk(self._node):
            if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, (ast.Add, ast.Sub)):
                left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
            elif isinstance(node, ast.Call) and called_name(node) in ("add", "add_", "sub", "sub_") and node.args:
                owner = node.func.value if isinstance(node.func, ast.Attribute) else node.func
                left, right = (owner, node.args[0]) if len(node.args) == 1 else (node.args[0], node.args[1])
            else:
                continue
            for one, other in ((left, right), (right, left)):
                if self._is_graded(one) and self._is_own(other, own, passes):
                    return node
        return None

    def _is_own(self, node: ast.expr, own: set[str], passes: list[ast.Call]) -> bool:
        """Whether an expression is a gradient that a pass of its own left or gave, and not multiplied by the given."""
        if self._is_graded(node):
            return False
        return any(
            (isinstance(part, ast.Attribute) and part.attr == "grad" and not isinstance(part.ctx, ast.Store))
            or (isinstance(part, ast.Name) and part.id in own)
            or part in passes
            for part in walk(node)
        )

    def without_gradient(self) -> ast.expr | None:
        """A returned gradient in which nothing of the given one is."""
        for node in walk(self._node):
            if isinstance(node, ast.Return) and node.value is not None:
                parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                if any(self._is_graded(part) for part in parts) or any(isinstance(p, ast.Starred) for p in parts):
                    continue
                made = [part for part in parts if not is_none(part)]
                if made and not any("zeros" in (called_name(part) or "") for part in made):
                    return made[0]
        return None
