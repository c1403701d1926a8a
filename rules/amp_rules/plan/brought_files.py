"""Files that the user of a script brings: an option names them, and they are read before a run has written any.

Or in place of what it writes: under ``if opt.pretrained:``, where it trains under ``if not opt.pretrained:``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import walk

_SETS_BY_NAME = frozenset({"setattr", "vars"})


def is_brought(program: Program, site: Site, path: ast.expr) -> bool:
    """Whether a path is a setting of the file that nothing changes, and settings alone decide whether it is read.

    Args:
        program: the program.
        site: the place that reads, which in its function comes before all that writes.
        path: what it reads: ``opt.pretrained``.
    """
    if not isinstance(path, ast.Attribute):
        return False
    asked = [path]
    inner: ast.AST = site.node
    for parent in site.module.ancestors(site.node):
        if parent is site.body:
            break
        if isinstance(parent, (*blocks.LOOPS, ast.Try, ast.IfExp, ast.BoolOp, ast.comprehension)):
            return False
        if isinstance(parent, ast.If) and inner is not parent.test:
            parts = [node for node in walk(parent.test) if isinstance(node, ast.expr)]
            if any(not isinstance(node, (ast.Name, ast.Attribute, ast.UnaryOp)) for node in parts):
                return False
            asked += [node for node in parts if isinstance(node, ast.Attribute)]
            if not any(isinstance(node, ast.Attribute) for node in parts):
                return False
        inner = parent
    return all(_never_changes(program, site.scope, node) for node in asked)


def hold_apart(program: Program, one: Site, other: Site) -> bool:
    """Whether two places of one body stand under a setting of the file that must hold, and that must not."""
    if one.body is not other.body:
        return False
    asked = dict(_asked(one))
    return any(
        path in asked and asked[path] is not holds and _never_changes(program, one.scope, setting)
        for setting, path, holds in _settings(other)
    )


def _asked(site: Site) -> Iterator[tuple[str, bool]]:
    yield from ((path, holds) for _, path, holds in _settings(site))


def _settings(site: Site) -> Iterator[tuple[ast.Attribute, str, bool]]:
    """The attributes that must hold around a place, or must not: alone in their tests."""
    inner: ast.AST = site.node
    for parent in site.module.ancestors(site.node):
        if parent is site.body:
            return
        if isinstance(parent, ast.If) and inner is not parent.test:
            denied = isinstance(parent.test, ast.UnaryOp) and isinstance(parent.test.op, ast.Not)
            setting = parent.test.operand if isinstance(parent.test, ast.UnaryOp) and denied else parent.test
            path = blocks.path_of(setting)
            if isinstance(setting, ast.Attribute) and path is not None:
                yield setting, path, (inner in parent.body) is not denied
        inner = parent


def _never_changes(program: Program, scope: Scope, setting: ast.Attribute) -> bool:
    """Whether an attribute of a variable of the file is given once, where that is made."""
    owner = scope.owner(setting.value.id) if isinstance(setting.value, ast.Name) else None
    if owner is None or not isinstance(setting.value, ast.Name) or isinstance(owner.node, (FunctionNode, ast.ClassDef)):
        return False
    made = 0
    for node, _, where in program.nodes():
        if isinstance(node, ast.Call) and blocks.path_of(node.func) in _SETS_BY_NAME:
            return False
        if isinstance(node, ast.Attribute) and node.attr == "__dict__":
            return False
        if isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            if isinstance(node, ast.Attribute) and node.attr == setting.attr:
                return False  # of another object it may be
            name = setting.value.id
            made += isinstance(node, ast.Name) and node.id == name and where.owner(name) is owner
    return made == 1
