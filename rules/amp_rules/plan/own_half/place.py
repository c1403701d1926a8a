"""Where a script with half precision by hand starts the runtime: below what its flag is made of."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from amp_rules.plan import declining
from amp_rules.plan.context import Context
from amp_rules.plan.declining import Declined
from amp_rules.source import blocks
from amp_rules.source.index import keyword
from amp_rules.source.modules import Module
from amp_rules.source.scopes import arguments_of
from amp_rules.source.syntax import own_name, walk, whole_of

Anchor = tuple[Module, ast.stmt, bool]


def below_flag(context: Context, usual: Anchor, used: Sequence[tuple[Module, ast.stmt]]) -> Anchor:
    """The statement that ``init`` follows or precedes, and whether it follows.

    Args:
        context: the program.
        usual: where it would stand if it read nothing of the script's.
        used: statements that use the runtime, which must come below.

    Raises:
        Declined: the flag is known too late.
    """
    start = context.own_start
    assert start is not None
    module, statement, _ = usual
    if not start.reads:
        return usual
    scope = start.scope_of(module) if module.path == start.path else None
    if scope is None:
        raise _too_late(module, statement, "what chooses half precision is not known where the script starts")
    suite = _suite(context, scope, usual, start.reads)
    if suite is None:
        raise _too_late(module, statement, "what chooses half precision is not known where the script starts")
    made = [index for index, item in enumerate(suite) if _makes(item, start.reads)]
    first = _first(suite)
    index = made[-1] + 1 if made else first
    if statement in suite:
        index = max(index, suite.index(statement) + usual[2])
    users = {item for _, item in used}
    uses = context.program.closure(lambda node: node in users)
    for item in suite[:index]:
        if uses(item) and not isinstance(item, (ast.FunctionDef, ast.ClassDef)):
            raise _too_late(module, item, "half precision is chosen only below what must know of it")
    return (module, suite[index - 1], True) if index else (module, suite[0], False)


def _first(suite: Sequence[ast.stmt]) -> int:
    """Below the docstring, imports and ``global``."""
    index = 0
    for number, item in enumerate(suite):
        is_text = isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)
        if isinstance(item, (ast.Import, ast.ImportFrom, ast.Global)) or is_text:
            index = number + 1
        else:
            break
    return index


def _suite(
    context: Context, scope: ast.Module | ast.FunctionDef, usual: Anchor, reads: frozenset[str]
) -> Sequence[ast.stmt] | None:
    """The statements of a scope among which the script starts, where the names of the flag are bound."""
    module, statement, _ = usual
    roots = {path.partition(".")[0] for path in reads}
    if isinstance(scope, ast.FunctionDef):
        given = {item.arg for item in arguments_of(scope)}
        bound = given | {name.partition(".")[0] for item in scope.body for name in blocks.writes(item)}
        trains = any(map(context.program.runs_backward, scope.body))
        return scope.body if roots <= bound and trains else None
    place = blocks.place(module, statement)
    if _binds(place.suite, roots) and not _inside_function(module, statement):
        return place.suite
    if _binds(module.tree.body, roots):
        if _inside_function(module, statement) and not _writes_below(context, module, reads):
            return place.suite
        guard = [item for item in module.tree.body if isinstance(item, ast.If)]
        if not _inside_function(module, statement) and blocks.top_statement(module, statement) in guard:
            return place.suite
        return module.tree.body
    for item in module.tree.body:
        if isinstance(item, ast.If) and _binds(item.body, roots):
            return item.body
    return None


def _binds(suite: Sequence[ast.stmt], roots: set[str]) -> bool:
    return roots <= {name.partition(".")[0] for item in suite for name in blocks.writes(item)}


def _inside_function(module: Module, statement: ast.stmt) -> bool:
    return not isinstance(blocks.body_of(module, statement), ast.Module)


def _writes_below(context: Context, module: Module, reads: frozenset[str]) -> bool:
    """Whether a function of the file writes what the flag is read from, so that its value depends on the call."""
    return any(
        blocks.touches(blocks.writes(body), set(reads))
        for body, scope in context.program.bodies
        if scope.module is module and isinstance(body, ast.FunctionDef)
    )


def _makes(item: ast.stmt, reads: frozenset[str]) -> bool:
    """Whether a statement binds what the flag is read from, by its name or whatever it is called.

    Most methods that are called on ``args`` do not.
    """
    if isinstance(item, (ast.FunctionDef, ast.ClassDef)):
        return False
    written = blocks.writes(item) | {path for node in walk(item) for path in _filled(node)}
    return any(path == read or read.startswith(path + ".") for path in written for read in reads)


def _filled(node: ast.AST) -> Iterator[str]:
    """Yield what gets attributes that have names of their own: ``setattr(args, name, value)``, ``vars(args).update()``.

    A parser that is given a ``namespace=`` fills that.
    """
    held: ast.expr | None = None
    if isinstance(node, ast.Call):
        held = keyword(node, "namespace")
        if own_name(node.func) == "setattr" and node.args:
            held = node.args[0]
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "update":
            held = whole_of(node.func.value)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        held = whole_of(node.value)
    path = blocks.path_of(held) if held is not None else None
    if path is not None:
        yield path


def _too_late(module: Module, node: ast.stmt, message: str) -> Declined:
    return declining.decline(
        declining.ALREADY_MIXED,
        module,
        node,
        message,
        "call `amp.init(opt_level=...)` with the level in the script's main function, where its arguments are read",
    )
