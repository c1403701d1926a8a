"""Expressions and statements without half precision: what is written in their place, and when two are the same."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from amp_rules.source.modules import Module
from amp_rules.source.syntax import own_name, walk

_PARAMETERS, _ZERO_GRAD, _CLIP = "<parameters>", "<zero_grad>", "<clip>"
_CLIPPING = frozenset({"clip_grad_norm", "clip_grad_norm_"})  # the older name of one function


@dataclass
class Plain:
    """What stands in the place of each node.

    Attributes:
        replaced: expressions, each with what it is without half precision; parts of that are nodes of the program.
        casts: calls of ``half()`` on tensors.
        removed: statements that only half precision needs.
        instead: what stands in the place of a removed statement, unless another branch says it.
        parameters: nodes that stand for all parameters of the model: lists of float32 copies.
        clearing: calls that clear the gradients of the model or of its optimizer.
    """

    replaced: dict[ast.expr, ast.expr] = field(default_factory=dict)
    casts: set[ast.Call] = field(default_factory=set)
    removed: set[ast.stmt] = field(default_factory=set)
    instead: dict[ast.stmt, str] = field(default_factory=dict)
    parameters: set[ast.expr] = field(default_factory=set)
    clearing: set[ast.Call] = field(default_factory=set)

    def has(self, node: ast.AST) -> bool:
        """Whether anything in a node is of half precision."""
        return any(
            item in self.replaced or item in self.casts or item in self.removed
            for item in walk(node)
            if isinstance(item, (ast.expr, ast.stmt))
        )

    def of(self, node: ast.AST, *, compared: bool = False) -> ast.AST:
        """A copy of a node without half precision.

        Args:
            node: a node of the program, or what takes the place of one.
            compared: whether it is only compared: what tensors are made half by is left out, and what stands for the
                parameters of the model is written alike.
        """
        if isinstance(node, ast.Call) and node in self.casts:
            assert isinstance(node.func, ast.Attribute)
            inner = self.of(node.func.value, compared=compared)
            if compared:
                return inner
            assert isinstance(inner, ast.expr)
            return ast.Call(ast.Attribute(inner, "float", ast.Load()), [], [])
        if isinstance(node, ast.expr) and node in self.replaced:
            return self.of(self.replaced[node], compared=compared)
        if compared and isinstance(node, ast.expr):
            if node in self.parameters or _are_parameters(node):
                return ast.Name(_PARAMETERS, ast.Load())
            if node in self.clearing:
                return ast.Name(_ZERO_GRAD, ast.Load())
            if isinstance(node, ast.Call) and own_name(node.func) in _CLIPPING:
                given = (self.of(item, compared=True) for item in (*node.args, *(k.value for k in node.keywords)))
                arguments = [item for item in given if isinstance(item, ast.expr)]
                return ast.Call(ast.Name(_CLIP, ast.Load()), arguments, [])
        return self._copied(node, lambda item: self.of(item, compared=compared))

    def _copied(self, node: ast.AST, copy: Callable[[ast.AST], ast.AST]) -> ast.AST:
        fields: dict[str, object] = {}
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                fields[name] = [copy(item) if isinstance(item, ast.AST) else item for item in value]
            else:
                fields[name] = copy(value) if isinstance(value, ast.AST) else value
        return ast.copy_location(type(node)(**fields), node)

    def text(self, module: Module, node: ast.expr) -> str:
        """The source of an expression without half precision; as it stands in the file where nothing changes."""
        if node in module.parents and not self.has(node):
            (line, column), (end_line, end_column) = module.start(node), module.end(node)
            return module.lines[line - 1][column:end_column] if line == end_line else ast.unparse(node)
        if isinstance(node, ast.expr) and node in self.replaced:
            return self.text(module, self.replaced[node])
        return ast.unparse(self.of(node))

    def rows(self, suite: list[ast.stmt]) -> list[str]:
        """The statements of a suite in a form that can be compared; imports are left out."""
        return [
            ast.unparse(self.of(item, compared=True))
            for item in suite
            if item not in self.removed and not isinstance(item, (ast.Import, ast.ImportFrom, ast.Pass))
        ]


def _are_parameters(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "parameters"
        and not node.args
    )
