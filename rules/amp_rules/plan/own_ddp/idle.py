"""Functions that nothing in the program calls or mentions, whatever files import them."""

from __future__ import annotations

import ast
from collections.abc import Collection
from weakref import WeakKeyDictionary

from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module


def is_idle(program: Program, node: ast.AST, module: Module) -> bool:
    """Whether a use stands in a function that nothing in the program calls or mentions: a method that nobody needs."""
    info = program.function_of(blocks.body_of(module, node))
    return info is not None and is_idle_function(program, info)


def is_within_idle(program: Program, node: ast.AST, module: Module) -> bool:
    """The same for a place in functions that such a function defines."""
    bodies = [item for item in (node, *module.ancestors(node)) if isinstance(item, blocks.BODIES)]
    found = [info for info in map(program.function_of, bodies) if info is not None]
    return any(is_idle_function(program, info) for info in found)


def is_idle_function(program: Program, info: FunctionFacts) -> bool:
    """Whether nothing in the program calls or mentions a function."""
    if isinstance(info.node, ast.Lambda) or info.decorator_list or program.flow.callers(info):
        return False
    if info.name.startswith("__"):
        return False  # Python itself calls it
    owner = program.flow.class_of(info)
    if owner is not None and owner.external_bases() - {"builtins.object"}:
        return False  # a library that knows the base can call it
    return info.name not in _mentioned_anywhere(program)


_KNOWN: WeakKeyDictionary[Program, set[str]] = WeakKeyDictionary()


def _mentioned_anywhere(program: Program) -> set[str]:
    """The same of all of the program, found once: each use of a group asks."""
    known = _KNOWN.get(program)
    if known is None:
        known = _KNOWN[program] = mentioned(program)
    return known


def mentioned(program: Program, left_out: Collection[ast.AST] = ()) -> set[str]:
    """The names and texts in what the program runs, by which a function could be reached."""
    found: set[str] = set()
    for other, body, scope in program.nodes():
        if body in left_out:
            continue
        if isinstance(other, ast.Attribute):
            if not program.names(other, scope):  # a library's own: ``dist.all_reduce``
                found.add(other.attr)
        elif isinstance(other, ast.Name):
            found.add(other.id)
        elif isinstance(other, ast.Constant) and isinstance(other.value, str):
            found.add(other.value)
    return found
