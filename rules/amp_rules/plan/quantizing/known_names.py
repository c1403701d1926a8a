"""Which variables certainly have their value at a place: new code there may read those, and no others."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from amp_rules.flow.statements import is_main_guard
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import leaves
from amp_rules.source.scopes import FunctionNode, arguments_of
from amp_rules.source.syntax import walk


class KnownNames:
    """The variables that have a value behind a statement, whatever way led there.

    Args:
        program: the program.
        place: the statement, and the body that it stands in.
    """

    def __init__(self, program: Program, place: Site) -> None:
        self._program = program
        self._place = place
        self._known = self._local()

    def unknown(self, node: ast.AST) -> str | None:
        """The first variable in an expression that may have no value behind the statement."""
        for part in walk(node):
            if isinstance(part, ast.Name) and part.id not in self._known and not self._is_of_file(part.id):
                return part.id
        return None

    def _local(self) -> set[str]:
        body = self._place.body
        found = {item.arg for item in arguments_of(body)} if isinstance(body, FunctionNode) else set()
        for suite, index in blocks.suites_around(self._place.module, self._place.statement):
            for item in suite[: index + 1]:
                found |= _given_by(item)
        deleted = {
            node.id
            for node in self._program.nodes_of(body)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del)
        }
        return found - deleted

    def _is_of_file(self, name: str) -> bool:
        """Whether a name is one of the file's, which has it before any function runs, or one of the language."""
        body = self._place.body
        if any(name in _stored(node) for node in self._program.nodes_of(body)):
            return False  # one of its own, which not every way gives a value
        if hasattr(builtins, name):
            return True
        return any(name in _given_by(item) for item in self._place.module.tree.body)


def _given_by(statement: ast.stmt) -> set[str]:
    """The names that have a value whenever a statement was left at its end."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, ast.If):
        if is_main_guard(statement):
            return _of_suite(statement.body)
        ways = [_of_suite(suite) for suite in (statement.body, statement.orelse) if not (suite and leaves(suite))]
        return set.intersection(*ways) if ways else set()
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        named = {name for item in statement.items if item.optional_vars for name in _names(item.optional_vars)}
        return named | _of_suite(statement.body)
    if isinstance(statement, ast.Try):
        ways = [_of_suite(suite.body) for suite in statement.handlers if not leaves(suite.body)]
        return set.intersection(_of_suite(statement.body), *ways) | _of_suite(statement.finalbody)
    if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
        return set()
    return set(_stored(statement))


def _of_suite(suite: list[ast.stmt]) -> set[str]:
    return set().union(*map(_given_by, suite)) if suite else set()


def _names(target: ast.expr) -> Iterator[str]:
    for part in walk(target):
        if isinstance(part, ast.Name):
            yield part.id


def _stored(node: ast.AST) -> set[str]:
    """The names that a node assigns: of a statement those within it, and of an import what it binds."""
    found: set[str] = set()
    for part in blocks.walk_own(node) if isinstance(node, ast.stmt) else [node]:
        if isinstance(part, ast.Name) and isinstance(part.ctx, (ast.Store, ast.Del)):
            found.add(part.id)
        elif isinstance(part, (ast.Import, ast.ImportFrom)):
            found |= {(item.asname or item.name).partition(".")[0] for item in part.names}
    return found
