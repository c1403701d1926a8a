"""Files that are written at another place where writing them fails: whoever does not write meets no failure."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.roles.skippable import Skippable
from amp_rules.source.syntax import walk


def written_elsewhere(
    program: Program, skippable: Skippable, written: Collection[ast.AST], is_left: Callable[[Site], bool]
) -> Iterator[list[Site]]:
    """Yield the statements that one process runs as a whole in such a case: the ``try``, or all calls of its function.

    Args:
        program: the program.
        skippable: what may be left out by the others.
        written: statements and calls that change files, which the main process alone is to run.
        is_left: whether one process runs a place anyway.
    """
    bodies = {body for node, body, _ in program.nodes() if node in written and not isinstance(body, ast.Module)}

    def writes(parts: Collection[ast.AST]) -> bool:
        nodes = [node for part in parts for node in walk(part)]
        return not bodies.isdisjoint(program.called_from(nodes)) or any(node in written for node in nodes)

    for node, body, scope in program.nodes():
        if not isinstance(node, ast.Try) or not (writes(node.body) and any(map(writes, [[h] for h in node.handlers]))):
            continue
        site = Site(scope.module, scope, body, node)
        found = [site] if skippable.alone(site.module, scope, [node]) else _calls(program, skippable, site)
        if found and not any(map(is_left, found)):
            yield found


def _calls(program: Program, skippable: Skippable, site: Site) -> list[Site]:
    """All calls of a place's function, if each is a statement that the others may leave out; else none."""
    info = program.function_of(site.body)
    above = [calling(item) for item in program.flow.callers(info)] if info is not None else []
    may_leave = all(
        isinstance(item.statement, ast.Expr)
        and item.statement.value is item.node
        and skippable.alone(item.module, item.scope, [item.statement])
        for item in above
    )
    return above if may_leave else []


def run_only_there(program: Program, statements: Collection[ast.stmt]) -> set[ast.AST]:
    """The bodies of functions that nothing calls but some statements, and what these call."""
    inside = {node for statement in statements for node in walk(statement)}
    found = program.called_from(inside)
    called = {
        node.func for node in inside | {item for body in found for item in walk(body)} if isinstance(node, ast.Call)
    }
    # Who hands a function on does not say what calls it.
    handed = {
        node.id if isinstance(node, ast.Name) else node.attr
        for node, _, _ in program.nodes()
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load) and node not in called
    }
    while True:
        others = {
            body
            for body in found
            if (info := program.function_of(body)) is None
            or info.name in handed
            or any(item.call not in inside and calling(item).body not in found for item in program.flow.callers(info))
        }
        if not others:
            return found
        found -= others
