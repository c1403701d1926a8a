"""Where a program uses a library: what runs decides, not what is imported."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope

Spared = Callable[[str, ast.AST, Module], bool]
"""Whether a use, by its name, node and file, does not count."""


def first_import(
    program: Program, prefixes: tuple[str, ...], spared: Spared | None = None
) -> tuple[Module, ast.AST, str] | None:
    """The first import of something by one of these names, or below one of them, whether it is used or not."""
    for module in program.flow.modules:
        for node in _imports(module):
            for name in _imported(node):
                if spared is not None and spared(name, node, module):
                    continue
                if _is_below(name, prefixes) and program.project.find(module, name.split(".")[0]) is None:
                    return module, node, name
    return None


def imports_torch(program: Program) -> bool:
    """Whether some file of the program imports torch."""
    return any(name.split(".")[0] == "torch" for name in program.flow.imported)


def first_use(
    program: Program, prefixes: tuple[str, ...], spared: Spared | None = None
) -> tuple[Module, ast.AST, str] | None:
    """The first place where code that can run uses something by one of these names, or below one of them.

    An import alone is no use: files offer more than a script takes, and many import what nothing needs any more. One
    with a star is, because what comes of it is not known.

    Args:
        program: the program.
        prefixes: dotted names.
        spared: uses that do not count.
    """
    for module, node, name in uses(program, prefixes):
        if spared is None or not spared(name, node, module):
            return module, node, name
    return None


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [item.name for item in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [f"{node.module}.{item.name}" for item in node.names]
    return []


def uses(program: Program, prefixes: tuple[str, ...]) -> Iterator[tuple[Module, ast.AST, str]]:
    """The places where code that can run uses something by one of these names, or below one of them."""
    bound = _bound(program, prefixes)
    for node, scope in program.reads:
        module = scope.module
        if isinstance(node, ast.ImportFrom):
            if not node.level and node.names[0].name == "*" and _is_below(node.module or "", prefixes):
                if program.project.find(module, (node.module or "").split(".")[0]) is None:
                    yield module, node, node.module or ""
        else:
            parent = module.parents.get(node)
            if isinstance(parent, ast.Attribute) and parent.value is node and isinstance(parent.ctx, ast.Load):
                if _named(program, parent, scope, bound, prefixes) is not None:
                    continue  # the longer name is looked at by itself
            name = _named(program, node, scope, bound, prefixes)
            if name is not None and not _only_says(program, module, node):
                yield module, node, name


def _named(
    program: Program, node: ast.Name | ast.Attribute, scope: Scope, bound: set[str], prefixes: tuple[str, ...]
) -> str | None:
    """The library's name that the expression has, if it is one of those."""
    if isinstance(node, ast.Name) and node.id not in bound:
        return None
    if isinstance(node, ast.Attribute) and blocks.path_of(node) is None:
        return None
    names = [name for name in program.names(node, scope) if _is_below(name, prefixes)]
    return min(names, default=None)


def _bound(program: Program, prefixes: tuple[str, ...]) -> set[str]:
    """The names that imports of the program give to something of these libraries."""
    found: set[str] = set()
    handed_on: list[ast.alias] = []
    for module in program.flow.modules:
        for node in _imports(module):
            if isinstance(node, ast.Import):
                for item in node.names:
                    if _is_below(item.name, prefixes):
                        found.add(item.asname or item.name.split(".")[0])
            else:
                for item in node.names:
                    if not node.level and _is_below(f"{node.module}.{item.name}", prefixes):
                        found.add(item.asname or item.name)
                    elif item.asname:
                        handed_on.append(item)
    while True:
        more = {str(item.asname) for item in handed_on if item.name in found} - found
        if not more:
            return found
        found |= more


def _imports(module: Module) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a file, which each question about a library goes through."""
    known: list[ast.Import | ast.ImportFrom] | None = module.kept.get("imports")
    if known is None:
        known = [node for node in module.nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
        module.kept["imports"] = known
    return known


def _is_below(name: str, prefixes: tuple[str, ...]) -> bool:
    return name in prefixes or any(name.startswith(prefix) and name[len(prefix)] == "." for prefix in prefixes)


def _only_says(program: Program, module: Module, node: ast.AST) -> bool:
    """Whether it is an annotation, checks a type, or is the base of a class that nothing makes."""
    child = node
    for parent in module.ancestors(node):
        if isinstance(parent, ast.AnnAssign) and parent.annotation is child:
            return True
        if isinstance(parent, ast.Call) and child in parent.args[1:] and blocks.path_of(parent.func) == "isinstance":
            return True
        if isinstance(parent, ast.ClassDef):
            methods = [item for item in parent.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))]
            return bool(methods) and not any(program.runs(item) for item in methods)
        if isinstance(parent, ast.stmt):
            return False
        child = parent
    return False
