"""Variables that nothing reads: left over from what is commented out now."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.scopes import FunctionNode
from amp_rules.source.syntax import last_name, walk

_READS_ANY = frozenset({"eval", "exec", "globals", "locals", "vars"})
"""Functions that may read a variable without its name being written."""


def is_never_read(program: Program, site: Site) -> bool:
    """Whether a statement gives its value to plain variables alone, which nothing in the program reads."""
    statement = site.statement
    if not isinstance(statement, ast.Assign):
        return False
    names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
    if len(names) < len(statement.targets):
        return False
    if isinstance(site.body, FunctionNode):
        return not any(_reads(node, names) for node in walk(site.body))
    return not site.module.cells and not any(_reads(node, names) for node in _of_all_files(program))


def _of_all_files(program: Program) -> Iterator[ast.AST]:
    """What may read the variable of a file: what stands in any file, which may import it."""
    for module in program.flow.modules:
        yield from walk(module.tree)


def _reads(node: ast.AST, names: set[str]) -> bool:
    """Whether a node may read one of the names, in code or as a text."""
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return not names.isdisjoint(node.names)
    if isinstance(node, ast.alias):
        return node.name in names
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value in names
    if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
        return last_name(node) in names or (isinstance(node, ast.Name) and node.id in _READS_ANY)
    return isinstance(node, ast.AugAssign) and last_name(node.target) in names
