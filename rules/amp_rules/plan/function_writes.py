"""Functions with a backward pass of their own that write into what they are given: a memory of features."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.flow.values import ClassInfo
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.syntax import walk


@dataclass(frozen=True)
class FunctionWrite:
    """A place where such a function writes.

    Attributes:
        method: ``forward`` or ``backward``.
        node: the statement or the call.
        target: what is written: ``ctx.memory[place]``.
    """

    method: FunctionFacts
    node: ast.AST
    target: ast.expr


def function_writes(info: ClassInfo) -> Iterator[FunctionWrite]:
    """Yield where the passes of such a function write into what they are given; nothing for any other class."""
    methods = info.facts.methods
    if not info.facts.is_autograd_function or "forward" not in methods or "backward" not in methods:
        return
    forward, backward = methods["forward"], methods["backward"]
    yield from _writes_in(forward, {item.arg for item in forward.node.args.args[1:]}, "")
    named = backward.node.args.args[0].arg if backward.node.args.args else ""
    saved: set[str] = set()
    for node in blocks.walk_body(backward.node):
        if isinstance(node, ast.Assign) and _is_of_context(node.value, named):
            saved |= {part.id for target in node.targets for part in walk(target) if isinstance(part, ast.Name)}
    yield from _writes_in(backward, saved, named)


def _is_of_context(value: ast.expr, context: str) -> bool:
    """``ctx.saved_tensors``, ``ctx.saved_tensors[0]``, ``ctx.features``; also several of them."""
    if isinstance(value, (ast.Tuple, ast.List)):
        return any(_is_of_context(item, context) for item in value.elts)
    value = value.value if isinstance(value, ast.Subscript) else value
    return isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == context


def _writes_in(method: FunctionFacts, names: set[str], context: str) -> Iterator[FunctionWrite]:
    for node in blocks.walk_body(method.node):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [item for item in node.targets if isinstance(item, ast.Subscript)]
        elif isinstance(node, ast.AugAssign):
            # ``ctx.steps += 1`` counts.
            targets = [] if isinstance(node.target, ast.Attribute) else [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr.endswith("_") and not node.func.attr.endswith("__"):
                targets = [node.func.value]
        for target in targets:
            if _is_given(target, names, context):
                yield FunctionWrite(method, node, target)


def _is_given(target: ast.expr, names: set[str], context: str) -> bool:
    """``memory``, ``memory[0]``, ``ctx.memory[0]``."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, ast.Attribute):
        return isinstance(target.value, ast.Name) and target.value.id == context
    return isinstance(target, ast.Name) and target.id in names
