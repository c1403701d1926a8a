"""Paths that hold the rank of their process, by what attributes are given elsewhere in the program."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from amp_rules.roles.file_paths import Paths
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import children, is_none, last_name
from amp_rules.torch.idioms import EXACT_RANK

_MAX_DEPTH = 6
"""Names and attributes between a path and a rank: ``path``, ``config.run_dir``, ``run_dir``, ``run_name``."""

_MAX_WAYS = 12
"""The same where a path goes through the constructors of a family of trainers, each of which hands it on."""

_OF_TEXTS = frozenset({"str", "format", "join", "joinpath", "Path", "abspath", "realpath", "normpath", "expanduser"})
"""Functions and methods that put the text of a path together."""


class NamedByRank:
    """Answers for the paths of one program.

    Args:
        program: the program.
        joined_under: the variables under whose number a process joins the others, with their functions.
    """

    def __init__(self, program: Program, joined_under: set[tuple[ast.AST, str]]) -> None:
        self._program = program
        self._joined_under = joined_under
        self._paths = Paths(program)

    def holds(self, module: Module, path: ast.expr) -> bool:
        """Whether the rank is in a path for certain, whatever its attributes and variables were given."""
        return self._holds(module, path, _MAX_DEPTH)

    def may_hold(self, path: ast.expr) -> ast.expr | None:
        """What puts the rank into a path on some way to it: through parameters, by what one of the callers gives."""
        for part, value, _ in pieces(self._program, self._paths, path, _MAX_WAYS):
            if EXACT_RANK.search(last_name(part)):
                return value
        return None

    def _holds(self, module: Module, path: ast.expr, depth: int) -> bool:
        parts = list(self._parts(path))
        if any(EXACT_RANK.search(_key(part) or last_name(part)) for part in parts):
            return True
        return depth > 0 and any(self._is_given(module, part, depth - 1) for part in parts)

    def _is_given(self, module: Module, part: ast.expr, depth: int) -> bool:
        """Whether all that a variable or an attribute is given holds the rank, and something is given to it."""
        if isinstance(part, ast.Subscript):
            given = self._items.get(_key(part), [])
        elif isinstance(part, ast.Name):
            body = blocks.body_of(module, part)
            if (body, part.id) in self._joined_under:
                return True
            given = [(module, value) for value in _assigned(module, body, part.id)]
            given = given or list(self._given_by_callers(body, part.id))
        else:
            given = self._stored.get(last_name(part), [])
        known = [(where, value) for where, value in given if value is None or not is_none(value)]
        return bool(known) and all(value is not None and self._holds(where, value, depth) for where, value in known)

    def _given_by_callers(self, body: ast.AST, name: str) -> Iterator[tuple[Module, ast.expr | None]]:
        """Yield what all calls of a function give one of its parameters; None where that is not known."""
        info = self._program.function_of(body)
        if info is not None and name in info.parameters:
            for caller in self._program.flow.callers(info):
                yield caller.scope.module, info.argument_or_default(caller.call, name)

    def _parts(self, path: ast.expr) -> Iterator[ast.expr]:
        """The names and attributes that a path is put together of; of ``config.run.folder`` the last, and no tests."""
        if isinstance(path, (ast.Name, ast.Attribute)):
            yield path
        elif isinstance(path, ast.Call):
            yield path.func  # ``get_rank()``
            if self._program.flow.callees(path):
                return  # what a function of the project makes of a rank is not known
            if isinstance(path.func, ast.Attribute):
                yield from self._parts(path.func.value)  # ``folder.joinpath(name)``
            for item in (*path.args, *(part.value for part in path.keywords)):
                yield from self._parts(item)
        elif not isinstance(path, (ast.Compare, ast.BoolOp, ast.IfExp, ast.Lambda)):
            if _key(path):
                yield path  # ``config["rank"]``
            for child in children(path):
                if isinstance(child, ast.expr):
                    yield from self._parts(child)

    @cached_property
    def _stored(self) -> dict[str, list[tuple[Module, ast.expr | None]]]:
        """What the program stores in attributes, by their names; None where that is not known."""
        found: defaultdict[str, list[tuple[Module, ast.expr | None]]] = defaultdict(list)
        for node, _, scope in self._program.nodes():
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found[node.attr].append((scope.module, _value_of(scope.module, node)))
        return found

    @cached_property
    def _items(self) -> dict[str, list[tuple[Module, ast.expr | None]]]:
        """The same of items by their keys, ``config["gpu"] = gpu``; a dictionary may begin with -1 or None."""
        found: defaultdict[str, list[tuple[Module, ast.expr | None]]] = defaultdict(list)
        for node, _, scope in self._program.nodes():
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and _key(node):
                found[_key(node)].append((scope.module, _value_of(scope.module, node)))
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    name = literal(key)
                    if isinstance(name, str) and not isinstance(value, (ast.Constant, ast.UnaryOp)):
                        found[name].append((scope.module, value))
        return found


def pieces(
    program: Program, paths: Paths, path: ast.expr, depth: int, *, held: bool = False
) -> Iterator[tuple[ast.expr, ast.expr, Scope]]:
    """Yield what a path is put together of, each with the text that holds it, and with its names' scope.

    It follows variables, and parameters by what each of the callers gives.

    Args:
        program: the program.
        paths: its paths.
        path: the path.
        depth: how many variables may stand between.
        held: whether only what is held counts: an entry as the variable that has it, ``names[n]``, and no function.
    """
    located = program.locate(path)
    pending = [(path, located[1], depth)] if located is not None else []
    seen: set[ast.expr] = set()
    while pending:
        value, scope, left = pending.pop(0)
        for part in _put_together(value, held):
            yield part, value, scope
            if isinstance(part, (ast.Name, ast.Attribute)) and part not in seen and left:
                seen.add(part)
                pending += [(given, at, left - 1) for given, at in paths.assigned(part, scope)]


def _put_together(text: ast.expr, held: bool) -> Iterator[ast.expr]:
    """The names, attributes and functions that are asked for a piece of a text, and no more than that."""
    if isinstance(text, (ast.Name, ast.Attribute)):
        yield text
    elif isinstance(text, ast.Call):
        if not held:
            yield text.func  # ``get_rank()``
        if last_name(text.func) in _OF_TEXTS:
            owner = [text.func.value] if isinstance(text.func, ast.Attribute) else []
            for item in (*owner, *text.args, *(part.value for part in text.keywords)):
                yield from _put_together(item, held)
    elif isinstance(text, ast.Subscript):
        yield from _put_together(text.value, held) if held else ()
    elif isinstance(text, (ast.BinOp, ast.JoinedStr, ast.FormattedValue, ast.Tuple)):
        for child in children(text):
            if isinstance(child, ast.expr):
                yield from _put_together(child, held)
    elif isinstance(text, ast.IfExp):
        yield from _put_together(text.body, held)
        yield from _put_together(text.orelse, held)
    elif isinstance(text, ast.BoolOp) and isinstance(text.op, ast.Or):
        for child in text.values:  # ``args.cache or os.path.join(CACHE, f"rank{rank}")``
            yield from _put_together(child, held)


def _key(node: ast.AST) -> str:
    """The key of an item that is known by its name; empty for anything else."""
    key = literal(node.slice) if isinstance(node, ast.Subscript) else None
    return key if isinstance(key, str) else ""


def _assigned(module: Module, body: ast.AST, name: str) -> Iterator[ast.expr | None]:
    for node in blocks.walk_body(body):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            yield _value_of(module, node)


def _value_of(module: Module, target: ast.expr) -> ast.expr | None:
    """What alone a place writes; None where it is one of several names, or no assignment."""
    statement = module.parents[target]
    return statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
