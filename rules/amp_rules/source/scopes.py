"""Which scope a name belongs to, by Python's rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.source.modules import Module
from amp_rules.source.syntax import children

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_BINDING = (ast.Name, ast.Import, ast.ImportFrom, ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping)
"""Nodes that bind names, beside functions and classes."""


class Scope:
    """A module, class or function body and the names bound in it."""

    def __init__(self, module: Module, node: ast.AST, parent: Scope | None) -> None:
        self.module = module
        self.node = node
        self.parent = parent
        self.bound: set[str] = set()
        self.global_names: set[str] = set()
        self.nonlocal_names: set[str] = set()

    def __repr__(self) -> str:
        return f"Scope({self.module.path.name}:{getattr(self.node, 'name', type(self.node).__name__)})"

    @property
    def is_function(self) -> bool:
        """Whether this is the body of a function or lambda."""
        return isinstance(self.node, FunctionNode)

    @property
    def is_class(self) -> bool:
        """Whether this is the body of a class."""
        return isinstance(self.node, ast.ClassDef)

    @property
    def top(self) -> Scope:
        """The module's scope."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def owner(self, name: str) -> Scope:
        """The scope whose variable ``name`` means here."""
        if name in self.global_names:
            return self.top
        if name in self.bound and name not in self.nonlocal_names:
            return self
        scope = self.parent
        while scope is not None:
            if not scope.is_class and (name in scope.bound and name not in scope.global_names):
                return scope
            if name in scope.global_names:
                return self.top
            scope = scope.parent
        return self.top


def build_scopes(module: Module) -> dict[ast.AST, Scope]:
    """Map each module, class and function node to its scope.

    The scopes are the caller's own, who may add names that star imports bind; what the text says is found out once.
    """
    found: dict[ast.AST, Scope] = {}
    for node, scope in _scopes_of(module).items():
        copy = found[node] = Scope(module, node, found[scope.parent.node] if scope.parent is not None else None)
        copy.bound = set(scope.bound)
        copy.global_names, copy.nonlocal_names = scope.global_names, scope.nonlocal_names
    return found


def scopes_below(module: Module, node: ast.AST, outer: Scope) -> dict[ast.AST, Scope]:
    """Map a node that stands within a scope, and what is below it, to scopes of their own."""
    scopes: dict[ast.AST, Scope] = {}
    _collect(module, node, outer, scopes)
    return scopes


def _scopes_of(module: Module) -> dict[ast.AST, Scope]:
    known: dict[ast.AST, Scope] | None = module.kept.get("scopes")
    if known is None:
        known = module.kept["scopes"] = {}
        _collect(module, module.tree, None, known)
    return known


def _collect(module: Module, node: ast.AST, parent: Scope | None, scopes: dict[ast.AST, Scope]) -> None:
    pending: list[tuple[ast.AST, Scope | None]] = [(node, parent)]
    while pending:
        owner, outer = pending.pop()
        scope = Scope(module, owner, outer)
        scopes[owner] = scope
        if isinstance(owner, FunctionNode):
            for argument in arguments_of(owner):
                scope.bound.add(argument.arg)
        for child in _body_nodes(owner):
            _bind(child, scope, pending)


def _bind(node: ast.AST, scope: Scope, pending: list[tuple[ast.AST, Scope | None]]) -> None:
    stack = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, (ast.FunctionDef, ast.AsyncFunctionDef)):
            scope.bound.add(current.name)
            pending.append((current, scope))
            stack.extend(current.decorator_list)
            stack.extend(default for default in [*current.args.defaults, *current.args.kw_defaults] if default)
            continue
        if isinstance(current, ast.ClassDef):
            scope.bound.add(current.name)
            pending.append((current, scope))
            stack.extend([*current.decorator_list, *current.bases])
            continue
        if isinstance(current, ast.Lambda):
            pending.append((current, scope))
            continue
        if isinstance(current, _BINDING):
            scope.bound.update(name for name in bindings(current) if name != "*")
        elif isinstance(current, ast.Global):
            scope.global_names.update(current.names)
            scope.top.bound.update(current.names)
        elif isinstance(current, ast.Nonlocal):
            scope.nonlocal_names.update(current.names)
        stack.extend(children(current))


def bindings(node: ast.AST) -> Iterator[str]:
    """The names that a node itself binds, where it stands; ``*`` for what nobody can say."""
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node.id
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (item.asname or item.name.split(".")[0] for item in node.names)
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def _body_nodes(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.Lambda):
        return [node.body]
    return list(getattr(node, "body", []))


def arguments_of(node: FunctionNode) -> Iterator[ast.arg]:
    """Yield every parameter of a function, in order, ``*args`` and ``**kwargs`` last."""
    arguments = node.args
    yield from [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for star in (arguments.vararg, arguments.kwarg):
        if star is not None:
            yield star
