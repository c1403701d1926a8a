"""What paths begin with: the folder that they are in is named there, and not by what stands behind it."""

from __future__ import annotations

import ast
import re

from amp_rules.roles.file_paths import Paths, taken_as_it_is
from amp_rules.roles.program import Program
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_none

_DEPTH = 12
"""Variables behind variables; a path that takes more begins with something unknown."""


class PathHeads:
    """The first pieces of paths."""

    def __init__(self, program: Program, paths: Paths) -> None:
        self._program = program
        self._paths = paths
        self._known: dict[tuple[ast.expr, Scope], tuple[frozenset[ast.expr], frozenset[tuple[str, ast.AST]]]] = {}

    def of(self, path: ast.expr, scope: Scope) -> frozenset[ast.expr]:
        """What a path may begin with, behind all variables: literals where the script names a folder."""
        return self._followed(path, scope)[0]

    def behind(self, path: ast.expr, scope: Scope) -> frozenset[tuple[str, ast.AST]]:
        """The variables that hold the path or what it begins with, each with the body or file that it belongs to."""
        return self._followed(path, scope)[1]

    def _followed(self, path: ast.expr, scope: Scope) -> tuple[frozenset[ast.expr], frozenset[tuple[str, ast.AST]]]:
        key = path, scope
        if key in self._known:
            return self._known[key]
        ends: set[ast.expr] = set()
        variables: set[tuple[str, ast.AST]] = set()
        pending: list[tuple[ast.expr, Scope, int]] = [(path, scope, _DEPTH)]
        while pending:
            node, where, depth = pending.pop()
            first = self._first(node, where)
            if first is not node:
                pending.append((first, where, depth))
                continue
            if not isinstance(node, (ast.Name, ast.Attribute)):
                ends.add(node)
                if isinstance(node, ast.Subscript):
                    variables.add((ast.unparse(node), where.module.tree))
                continue
            owner = where.owner(node.id).node if isinstance(node, ast.Name) else where.module.tree
            variable = ast.unparse(node), owner
            if variable in variables:
                continue
            variables.add(variable)
            given = [item for item in self._paths.assigned(node, where) if not is_none(item[0])]
            if not given or not depth:
                ends.add(node)
            pending.extend((value, at, depth - 1) for value, at in given)
        self._known[key] = frozenset(ends), frozenset(variables)
        return self._known[key]

    def _first(self, node: ast.expr, scope: Scope) -> ast.expr:
        """The piece that an expression begins with; the expression, where it is one piece or not understood."""
        given = taken_as_it_is(self._program, node, scope)
        if given is not node:
            return given
        pieces: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
            pieces = [node.left, node.right]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            pieces = [node.left]
        elif isinstance(node, ast.JoinedStr):
            pieces = node.values
        elif isinstance(node, ast.FormattedValue) or (isinstance(node, ast.Subscript) and not _is_by_name(node)):
            pieces = [node.value]
        elif isinstance(node, ast.Call):
            if self._program.callee_names(node, scope) & {"os.path.join", "pathlib.Path"}:
                pieces = node.args
            elif isinstance(node.func, ast.Attribute) and node.func.attr == "format":
                pieces = [node.func.value]
        named = (item for item in pieces if not _says_nothing(item))
        return next(named, node)


def _is_by_name(node: ast.Subscript) -> bool:
    """Whether an item is one of settings: ``settings["folder"]``."""
    return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)


def _says_nothing(piece: ast.expr) -> bool:
    """Whether a piece is a literal such as ``"./"``, behind which the name of the folder follows."""
    return isinstance(piece, ast.Constant) and not re.search(r"\w", str(piece.value))
