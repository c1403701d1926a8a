"""What runs after the models of a program were prepared, as opposed to what makes them and sets their weights."""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.plan.model_homes.home import Home
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module

_MAX_CALLERS = 8


class Afterwards:
    """Whether a node can run after the last of some models was prepared; what is not known counts as such.

    Args:
        program: the program.
        homes: where the models are prepared.
    """

    def __init__(self, program: Program, homes: list[Home]) -> None:
        self._program = program
        self._before = {node for home in homes for node in self._above(home)}
        self._roots = {home.body for home in homes} | {body for home in homes for body in self._callers(home)}

    def runs(self, node: ast.AST, body: ast.AST) -> bool:
        """Whether a node of a body can run afterwards."""
        if body in self._roots or isinstance(body, ast.Module):
            return node not in self._before
        return body in self._called or body not in self._called_before

    def certainly(self, node: ast.AST, body: ast.AST) -> bool:
        """Whether a node of a body is known to run afterwards."""
        if body in self._roots or isinstance(body, ast.Module):
            return node not in self._before
        return body in self._called

    @cached_property
    def _called(self) -> set[ast.AST]:
        """Functions that run after the models were prepared."""
        later = [
            node
            for body in (*self._roots, self._program.entry.tree)
            for node in self._program.nodes_of(body)
            if node not in self._before
        ]
        return self._program.called_from(later) - self._roots

    @cached_property
    def _called_before(self) -> set[ast.AST]:
        return self._program.called_from(self._before)

    def _above(self, home: Home) -> list[ast.AST]:
        """The nodes that have run when a model is prepared, from the start of the script."""
        found = _preceding(home.module, home.statement, with_itself=not home.before)
        for site in self._ways(home):
            found += _preceding(site.module, site.statement, with_itself=False)
        return found

    def _callers(self, home: Home) -> list[ast.AST]:
        return [site.body for site in self._ways(home)]

    def _ways(self, home: Home) -> list[Site]:
        """The calls that lead to the function that prepares a model, as far as there is one alone at each step."""
        found: list[Site] = []
        info = self._program.function_of(home.body)
        while info is not None and len(found) < _MAX_CALLERS:
            callers = self._program.flow.callers(info)
            if len(callers) != 1:
                break
            site = calling(callers[0])
            found.append(site)
            info = self._program.function_of(site.body)
        return found


def _preceding(module: Module, statement: ast.stmt, *, with_itself: bool) -> list[ast.AST]:
    """The nodes above a statement in its body; above the outermost loop, where it stands in one."""
    found: list[ast.AST] = list(blocks.walk_own(statement)) if with_itself else []
    for item in (statement, *blocks.enclosing(module, statement)):
        where = blocks.place(module, item)
        found += [node for earlier in where.suite[: where.index] for node in blocks.walk_own(earlier)]
        if isinstance(where.parent, blocks.LOOPS):
            found = []  # the next round comes to them again
    return found
