"""Whether a database that is opened is written to."""

from __future__ import annotations

import ast
import re

from amp_rules.roles.program import Program
from amp_rules.source.index import keyword
from amp_rules.source.scopes import Scope
from amp_rules.torch.file_access import STORE_CHANGES, STORE_STATEMENTS

_DEPTH = 4
"""Objects made of a store, one of the other: a transaction or a table of it, a cursor of that."""
_CHANGING_STATEMENT = re.compile(rf"\s*(?:{'|'.join(STORE_STATEMENTS)})\b", re.IGNORECASE)


def changes_store(program: Program, opened: ast.Call) -> bool:
    """Whether a store is opened to be changed: by its flag, or by what is done with it or with what is made of it.

    Without a sign of that it is read: whatever opens a database may write to it, and few do.
    """
    if only_reads(opened):
        return False
    made = _Made(program, opened)
    return _flag(opened) in ("n", "w") or any(_changes(made, node, scope) for node, _, scope in program.nodes())


def _changes(made: _Made, node: ast.AST, scope: Scope) -> bool:
    if isinstance(node, ast.Subscript):
        is_changed = isinstance(node.ctx, (ast.Store, ast.Del))
        return is_changed and made.holds(node.value, scope)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return _says_change(node, node.func.attr) and made.holds(node.func.value, scope)


def _says_change(call: ast.Call, method: str) -> bool:
    """Whether a method of a store, a transaction or a cursor changes what is stored."""
    if method == "begin":
        write = keyword(call, "write")
        return write is not None and not (isinstance(write, ast.Constant) and not write.value)
    if method == "execute":
        text = call.args[0] if call.args else None
        return isinstance(text, ast.Constant) and bool(_CHANGING_STATEMENT.match(str(text.value)))
    return method in STORE_CHANGES


class _Made:
    """Answers for the objects that are made of one store."""

    def __init__(self, program: Program, opened: ast.Call) -> None:
        self._program = program
        self._opened = opened
        # Variables that are made of each other lead to the same calls by many ways.
        self._known: dict[tuple[ast.AST, int], bool] = {}

    def holds(self, node: ast.expr, scope: Scope, depth: int = _DEPTH) -> bool:
        """Whether an expression is the store, or was made by a method of it."""
        return any(self._is_made(value.site, depth) for value in self._program.flow.values(node, scope))

    def _is_made(self, site: ast.AST | None, depth: int) -> bool:
        if site is self._opened:
            return True
        if not (depth and isinstance(site, ast.Call) and isinstance(site.func, ast.Attribute)):
            return False
        key = site, depth
        if key not in self._known:
            located = self._program.locate(site)
            self._known[key] = located is not None and self.holds(site.func.value, located[1], depth - 1)
        return self._known[key]


def only_reads(call: ast.Call) -> bool:
    """Whether a store is opened to be read alone: ``lmdb.open(path, readonly=True)``, ``shelve.open(path, "r")``."""
    given = keyword(call, "readonly")
    if given is not None:
        return isinstance(given, ast.Constant) and given.value is True
    return _flag(call) == "r"


def _flag(call: ast.Call) -> object:
    given = keyword(call, "flag")
    if given is None and len(call.args) > 1:
        given = call.args[1]
    return given.value if isinstance(given, ast.Constant) else None
