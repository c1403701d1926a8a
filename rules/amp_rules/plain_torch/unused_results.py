"""Whether what a call gives goes into a loss; samples that a script shows or saves go into none."""

from __future__ import annotations

import ast

from amp_rules.roles.gradient_paths import GradientPaths
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import walk

_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)


class UnusedResults:
    """Answers for the calls of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._gradients = GradientPaths(program, sums=True)

    def has(self, site: Site) -> bool:
        """Whether gradients come of a call nowhere, for certain."""
        statement = site.statement
        if not isinstance(statement, _SIMPLE) or self._runs_backward(statement):
            return False
        variables = self._written(statement)
        grown = True
        while grown:
            if not self._stays(variables, site):
                return False
            grown = False
            for node in self._program.nodes_of(site.body):
                if isinstance(node, ast.stmt) and self._takes(node, variables):
                    new = self._written(node) - variables
                    variables, grown = variables | new, grown or bool(new)
        return True

    def _takes(self, statement: ast.stmt, variables: set[str]) -> bool:
        """Whether a statement puts what comes of the variables elsewhere."""
        if isinstance(statement, _SIMPLE):
            return blocks.touches(self._gradients.reads(statement), variables)
        if isinstance(statement, (ast.For, ast.AsyncFor)):
            return blocks.touches(self._gradients.reads(statement.iter), variables)
        return False

    def _written(self, statement: ast.stmt) -> set[str]:
        if isinstance(statement, (ast.For, ast.AsyncFor)):
            return blocks.writes_target(statement)
        return blocks.writes(statement)

    def _stays(self, variables: set[str], site: Site) -> bool:
        """Whether variables are of their body alone, and no loss is made of them there."""
        if any("." in path or "[" in path for path in variables):
            return False
        for node, body, scope in self._program.nodes():
            if body is not site.body:
                # A variable of a module is everybody's; one of a function is that of functions inside of it.
                if isinstance(node, ast.Name) and node.id in variables and self._is_same(node, scope, site):
                    return False
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                if variables & set(node.names):
                    return False
            elif isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom, ast.withitem)):
                value = node.context_expr if isinstance(node, ast.withitem) else node.value
                if value is not None and blocks.touches(self._gradients.reads(value), variables):
                    return False
            elif isinstance(node, ast.Call) and self._is_given_to_backward(node, variables):
                return False
        return True

    def _is_same(self, node: ast.Name, scope: object, site: Site) -> bool:
        return scope.owner(node.id).node is site.scope.owner(node.id).node  # type: ignore[attr-defined]

    def _is_given_to_backward(self, call: ast.Call, variables: set[str]) -> bool:
        """``loss.backward()``, ``learn(out)`` for a function with a backward pass, ``torch.autograd.backward(out)``."""
        return blocks.touches(self._gradients.reads(call), variables) and self._runs_backward(call)

    def _runs_backward(self, node: ast.AST) -> bool:
        passes = {item.node for item in self._program.backwards}
        return self._program.runs_backward(node) or any(part in passes for part in walk(node))
