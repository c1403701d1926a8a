"""Dictionaries of which each round writes every entry before it reads it: nothing of the last round goes on."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import called_name, values_given

_MAX_DEPTH = 4
"""Functions that hand a dictionary on to others."""
_EMPTY = ("dict", "defaultdict", "OrderedDict")


def is_filled_anew(body: Sequence[ast.stmt], path: str, site: Site) -> bool:
    """Whether a dictionary that is empty above a loop gets the same entries in each round, above all that reads it."""
    module = site.module
    if "." in path or not _is_begun_empty(body, path, site):
        return False
    uses = _uses(body, path)
    stores = [use for use in uses if _is_store(module, use)]
    always = [use for use in stores if blocks.statement_of(module, use) in body]
    first = {_key(module, use): module.end(blocks.statement_of(module, use)) for use in reversed(always)}
    if not first or any(_key(module, use) not in first for use in stores):
        return False
    last = max(first.values())
    # What a condition writes, above or below, is written over by the next round before anything reads it.
    return all(use in stores or _is_read_below(module, use, stores) or module.start(use) > last for use in uses)


def takes_entries_alone(program: Program, call: ast.Call, path: str, depth: int = 0) -> bool:
    """Whether the functions that a call runs write every entry of a dictionary that they read, and give it back."""
    callees = program.flow.callees(call)
    return bool(callees) and depth < _MAX_DEPTH and all(_takes(program, call, path, info, depth) for info in callees)


def _takes(program: Program, call: ast.Call, path: str, info: FunctionFacts, depth: int) -> bool:
    given = [name for name in info.parameters if _is_path(info.argument(call, name), path)]
    named = [node for item in values_given(call) for node in blocks.walk_own(item)]
    if len(given) != 1 or sum(_is_path(node, path) for node in named) != 1:
        return False
    name, module = given[0], info.module.module
    if any(_is_bound(node, name) for item in info.body for node in ast.walk(item)):
        return False
    uses = _uses(info.body, name)
    stores = [use for use in uses if _is_store(module, use)]
    for use in uses:
        parent = module.parents[use]
        if use in stores or isinstance(parent, ast.Return) or _is_read_below(module, use, stores):
            continue
        if (
            isinstance(parent, ast.Call)
            and use in parent.args
            and takes_entries_alone(program, parent, name, depth + 1)
        ):
            continue
        return False
    return True


def _uses(body: Sequence[ast.stmt], path: str) -> list[ast.expr]:
    """Where a name stands, but for where it is bound."""
    return [
        node
        for item in body
        for node in ast.walk(item)
        if isinstance(node, ast.Name) and node.id == path and isinstance(node.ctx, ast.Load)
    ]


def _is_path(node: ast.AST | None, path: str) -> bool:
    return isinstance(node, ast.Name) and node.id == path


def _is_bound(node: ast.AST, path: str) -> bool:
    return isinstance(node, ast.Name) and node.id == path and not isinstance(node.ctx, ast.Load)


def _key(module: Module, use: ast.expr) -> object:
    """The constant under which an entry is written or read; None where the whole is used."""
    parent = module.parents[use]
    if isinstance(parent, ast.Subscript) and parent.value is use and isinstance(parent.slice, ast.Constant):
        return parent.slice.value
    return None


def _is_store(module: Module, use: ast.expr) -> bool:
    """``entries["loss"] = value``."""
    parent = module.parents[use]
    statement = module.parents[parent]
    return _key(module, use) is not None and isinstance(statement, ast.Assign) and parent in statement.targets


def _is_read_below(module: Module, use: ast.expr, stores: Sequence[ast.expr]) -> bool:
    """Whether an entry is read below a statement that writes it whenever the reading one runs."""
    key = _key(module, use)
    if key is None:
        return False
    reading = blocks.statement_of(module, use)
    around = {reading, *blocks.enclosing(module, use)}
    for store in stores:
        if _key(module, store) != key:
            continue
        where = blocks.place(module, blocks.statement_of(module, store))
        if around & set(where.suite[where.index + 1 :]):
            return True
    return False


def _is_begun_empty(body: Sequence[ast.stmt], path: str, site: Site) -> bool:
    """Whether all that a variable is given, outside of the round, is an empty dictionary; no other function has it."""
    inside = {node for item in body for node in ast.walk(item)}
    own = set(blocks.walk_body(site.body))
    named = [node for node in site.module.nodes if _is_path(node, path)]
    made = [site.module.parents[node] for node in named if _is_bound(node, path)]
    return (
        bool(made)
        and own.issuperset(named)
        and all(
            isinstance(node, ast.Assign) and node not in inside and len(node.targets) == 1 and _is_empty(node.value)
            for node in made
        )
    )


def _is_empty(node: ast.expr) -> bool:
    if isinstance(node, ast.Dict):
        return not node.keys
    return isinstance(node, ast.Call) and called_name(node) in _EMPTY and not node.keywords and len(node.args) <= 1
