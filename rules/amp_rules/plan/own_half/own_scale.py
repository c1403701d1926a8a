"""A loss scale by hand: the loss times a number, and the gradients divided by it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk


@dataclass
class Scaled:
    """One multiplication of a loss.

    Attributes:
        module: the file.
        node: the multiplication.
        scale: by what.
        removed: the statements that multiply, and those that divide the loss again.
        replaced: expressions, each with what it is without the scale.
    """

    module: Module
    node: ast.AST
    scale: ast.expr
    removed: set[ast.stmt] = field(default_factory=set)
    replaced: dict[ast.expr, ast.expr] = field(default_factory=dict)


def divided_gradients(program: Program) -> Iterator[tuple[ast.stmt, ast.expr, Scope]]:
    """Loops that do nothing but divide gradients by a number: the loop, the number, and the scope of its names."""
    for node, _, scope in program.nodes():
        if isinstance(node, ast.For) and not node.orelse:
            suite = node.body
            if (
                len(suite) == 1
                and isinstance(suite[0], ast.If)
                and not suite[0].orelse
                and _asks_for_one(suite[0].test)
            ):
                suite = suite[0].body
            value = _divisor(suite[0]) if len(suite) == 1 else None
            if value is not None:
                yield node, value, scope


def _asks_for_one(test: ast.expr) -> bool:
    """``p.grad is not None``."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.IsNot)
        and isinstance(test.left, ast.Attribute)
        and test.left.attr == "grad"
    )


def _is_gradient(node: ast.expr) -> bool:
    inner = node.value if isinstance(node, ast.Attribute) and node.attr == "data" else node
    return isinstance(inner, ast.Attribute) and inner.attr == "grad"


def copies_gradient(statement: ast.Assign | ast.Expr) -> bool:
    """Whether a statement gives a parameter the gradient of another: ``master.grad.data.copy_(p.grad.data)``."""
    if isinstance(statement, ast.Assign):
        targets, value = statement.targets, statement.value
    else:
        call = statement.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "copy_":
            return False
        targets, value = [call.func.value], call
    own = {blocks.path_of(target) for target in targets if _is_gradient(target)}
    owners = {path.removesuffix(".data").removesuffix(".grad") for path in own if path is not None}
    others = {
        blocks.path_of(node.value) for node in walk(value) if isinstance(node, ast.Attribute) and node.attr == "grad"
    }
    return bool(owners) and bool(others - owners - {None})


def _divisor(statement: ast.stmt) -> ast.expr | None:
    """By what the statement divides a gradient in place."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Div) and _is_gradient(statement.target):
        return statement.value
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and _is_gradient(statement.targets[0]):
        value = statement.value
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
            same = blocks.path_of(value.left) == blocks.path_of(statement.targets[0])
            return value.right if same else None
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and len(call.args) == 1:
        if _is_gradient(call.func.value) and not call.keywords:
            if call.func.attr == "div_":
                return call.args[0]
            if call.func.attr == "mul_" and _is_reciprocal(call.args[0]):
                assert isinstance(call.args[0], ast.BinOp)
                return call.args[0].right
    return None


def _is_reciprocal(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and isinstance(node.left, ast.Constant)
        and node.left.value == 1
    )


def own_scales(program: Program, scales: set[str]) -> Iterator[Scaled]:
    """The multiplications of losses by one of some numbers, each given by its source."""
    for body, scope in program.bodies if scales else ():
        nodes = program.nodes_of(body)
        losses = _losses(nodes)
        for node in nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                found = _multiplied(scope.module, node, scales, losses, nodes)
                if found is not None:
                    yield found
            elif (
                isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult) and ast.unparse(node.value) in scales
            ):
                if blocks.path_of(node.target) in losses:
                    found = Scaled(scope.module, node, node.value, {node})
                    found.removed |= _divided_again(nodes, str(blocks.path_of(node.target)), ast.unparse(node.value))
                    yield found


def _losses(nodes: list[ast.AST]) -> set[str]:
    """Paths that a backward pass starts from, of a tensor or of an optimizer that is given one."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            path = blocks.path_of(node.args[0] if node.args else node.func.value)
            if path is not None:
                found.add(path)
    return found


def _multiplied(
    module: Module, node: ast.BinOp, scales: set[str], losses: set[str], nodes: list[ast.AST]
) -> Scaled | None:
    left, right = node.left, node.right
    loss, scale = (left, right) if ast.unparse(right) in scales else (right, left)
    if ast.unparse(scale) not in scales:
        return None
    whole = _or_loss(module, node, loss)
    for item in nodes:
        if isinstance(item, ast.Assign) and item.value is whole and len(item.targets) == 1:
            target = blocks.path_of(item.targets[0])
            if target is None or target not in losses:
                return None
            found = Scaled(module, node, scale, {item})
            if target == blocks.path_of(loss):
                found.removed |= _divided_again(nodes, target, ast.unparse(scale))
                return found
            reads = [use for use in nodes if isinstance(use, ast.Name) and use.id == target]
            for use in reads:
                if isinstance(use.ctx, ast.Load):
                    found.replaced[use] = loss
            return found
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and item.func.attr == "backward":
            if item.func.value is whole or whole in item.args:
                return Scaled(module, node, scale, set(), {whole: loss})
    return None


def _or_loss(module: Module, node: ast.BinOp, loss: ast.expr) -> ast.expr:
    """``loss * scale if args.fp16 else loss`` around the multiplication; the node itself without it."""
    choice = module.parents[node]
    if isinstance(choice, ast.IfExp) and node is not choice.test:
        other = choice.orelse if node is choice.body else choice.body
        if ast.unparse(other) == ast.unparse(loss):
            return choice
    return node


def _divided_again(nodes: list[ast.AST], loss: str, scale: str) -> set[ast.stmt]:
    """Statements that take the scale out of the loss again, to show it."""
    found: set[ast.stmt] = set()
    for node in nodes:
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
            if blocks.path_of(node.target) == loss and ast.unparse(node.value) == scale:
                found.add(node)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Div):
            same = [blocks.path_of(item) for item in (*node.targets, node.value.left)] == [loss, loss]
            if same and ast.unparse(node.value.right) == scale:
                found.add(node)
    return found
