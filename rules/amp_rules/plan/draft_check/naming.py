"""Names and scopes: what nodes bind, read, write and cannot do without."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.source import blocks
from amp_rules.source.scopes import FunctionNode, bindings
from amp_rules.source.syntax import COMPREHENSIONS, children, own_variables, walk

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Names:
    """The names of one body."""

    bound: frozenset[str]
    parameters: frozenset[str]

    @classmethod
    def of(cls, body: ast.AST) -> Names:
        """The names that a module, a function or a class binds for itself."""
        found: set[str] = set()
        elsewhere: set[str] = set()
        parameters: set[str] = set()
        if isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parameters = {item.arg for item in walk(body.args) if isinstance(item, ast.arg)}
        for part in getattr(body, "body", []):
            for node in own_nodes(part):
                if isinstance(node, (ast.Global, ast.Nonlocal)):
                    elsewhere |= set(node.names)
                found |= set(bindings(node))
        if isinstance(body, ast.Module):
            elsewhere = set()
            for node in walk(body):
                if isinstance(node, ast.Global):
                    found |= set(node.names)
        return cls(frozenset((found | parameters) - elsewhere), frozenset(parameters))


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run with a statement in its own scope; of a definition, only itself."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        if not isinstance(current, FunctionNode | ast.ClassDef):
            stack += children(current)[::-1]


def written_names(node: ast.AST) -> set[str]:
    """The names that a node assigns, or to a part of which."""
    found = set()
    for item in own_nodes(node):
        if isinstance(item, ast.Name | ast.Attribute | ast.Subscript) and isinstance(item.ctx, ast.Store):
            found.add((blocks.path_of(item) or "").split(".")[0])
    return found


def deleted_names(node: ast.AST) -> set[str]:
    """The names that a node deletes."""
    return {item.id for item in own_nodes(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Del)}


def loads(node: ast.AST) -> Iterator[str]:
    """The names that evaluating a node may read, in its own scope."""
    stack: list[tuple[ast.AST, frozenset[str]]] = [(node, frozenset())]
    while stack:
        current, hidden = stack.pop()
        if isinstance(current, ast.Name):
            if isinstance(current.ctx, ast.Load) and current.id not in hidden:
                yield current.id
        elif isinstance(current, ast.AugAssign):
            if isinstance(current.target, ast.Name) and current.target.id not in hidden:
                yield current.target.id
            stack += [(item, hidden) for item in children(current)]
        elif isinstance(current, ast.Lambda):
            stack += [(item, hidden) for item in (*current.args.defaults, *current.args.kw_defaults) if item]
        elif isinstance(current, ast.AnnAssign):
            stack += [(item, hidden) for item in (current.target, current.value) if item]
        elif isinstance(current, COMPREHENSIONS):
            bound = own_variables(current)
            stack += [(item, hidden | bound) for item in children(current)]
        else:
            stack += [(item, hidden) for item in children(current)]


def certain_reads(node: ast.AST) -> Iterator[str]:
    """The names that are bound once a node was evaluated: what it binds, and what it could not do without."""
    stack = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, ast.Name):
            yield current.id
        elif isinstance(current, ast.BoolOp):
            stack.append(current.values[0])
        elif isinstance(current, ast.IfExp):
            stack.append(current.test)
        elif isinstance(current, COMPREHENSIONS):
            stack.append(current.generators[0].iter)
        elif isinstance(current, ast.Compare):
            stack += [current.left, current.comparators[0]]
        elif isinstance(current, ast.AnnAssign):
            # `x: int` alone binds nothing.
            stack += [current.target, current.value] if current.value is not None else []
        elif not isinstance(current, FunctionNode):
            stack += children(current)


def certain_names(statement: ast.stmt) -> set[str]:
    """The names that a statement cannot run without."""
    if isinstance(statement, _DEFINITIONS):
        return set()
    if isinstance(statement, ast.If):
        return set(certain_reads(statement.test)) | (_certain_of(statement.body) & _certain_of(statement.orelse))
    if isinstance(statement, ast.While):
        return set(certain_reads(statement.test))
    if isinstance(statement, ast.For | ast.AsyncFor):
        return set(certain_reads(statement.iter))
    if isinstance(statement, ast.With | ast.AsyncWith):
        heads = {name for item in statement.items for name in certain_reads(item.context_expr)}
        return heads | _certain_of(statement.body)
    if any(True for _ in blocks.suites(statement)):
        return set()
    return set(certain_reads(statement)) - set(_stored(statement))


def _certain_of(suite: list[ast.stmt]) -> set[str]:
    """The names that the statements of a suite cannot run without, up to where it may be left."""
    found: set[str] = set()
    bound: set[str] = set()
    for statement in suite:
        found |= certain_names(statement) - bound
        if leaves(statement):
            break
        bound |= set(_stored(statement))
    return found


def _stored(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement binds without reading them."""
    reads = set(loads(statement))
    for node in own_nodes(statement):
        yield from (name for name in bindings(node) if name not in reads)


def leaves(statement: ast.stmt) -> bool:
    """Whether a statement may end the round or the function, while the program goes on."""
    stack: list[tuple[ast.AST, bool]] = [(statement, False)]
    while stack:
        node, in_loop = stack.pop()
        if isinstance(node, ast.Return) or (isinstance(node, ast.Continue | ast.Break) and not in_loop):
            return True
        if not isinstance(node, FunctionNode | ast.ClassDef | ast.expr):
            inner = in_loop or isinstance(node, blocks.LOOPS)
            stack += [(item, inner) for item in children(node)]
    return False
