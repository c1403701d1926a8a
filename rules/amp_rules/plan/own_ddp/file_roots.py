"""In which folder of the settings a file stands: ``os.path.join(args.root, "out", name)`` is in ``out`` of one."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.syntax import last_name

_MAX_DEPTH = 8
"""Names, joins and parameters between a path and the setting that it begins with."""

_LISTING = frozenset({"glob", "iglob", "rglob", "listdir", "scandir", "walk", "iterdir"})

_OF_LISTS = frozenset({"enumerate", "sorted", "list", "tqdm"})

_Rooted = tuple[str, tuple[str, ...]]
"""The setting that a path begins with, and the folders behind it, as far as they are known."""


def stand_apart(program: Program, write: Site, reader: Site) -> bool:
    """Whether what a call writes and what another lists are in two folders of one setting, or of two settings."""
    if last_name(getattr(reader.node, "func", None)) not in _LISTING:
        return False
    ones, others = _of_call(program, write), _of_call(program, reader)
    return bool(ones) and bool(others) and all(_differ(one, other) for one in ones for other in others)


def _differ(one: _Rooted, other: _Rooted) -> bool:
    (root, behind), (other_root, other_behind) = one, other
    if root != other_root:
        return True
    return any(first != second for first, second in zip(behind, other_behind, strict=False) if first and second)


def _of_call(program: Program, site: Site) -> set[_Rooted]:
    call = site.node
    if not isinstance(call, ast.Call):
        return set()
    # ``shutil.copy(source, target)`` writes its second; anything else is named by its first.
    index = 1 if last_name(call.func) in ("copy", "copyfile", "copy2", "save") and len(call.args) > 1 else 0
    return _rooted(program, call.args[index], site, _MAX_DEPTH) if len(call.args) > index else set()


def _rooted(program: Program, node: ast.expr, site: Site, depth: int) -> set[_Rooted]:
    """The places that a path may begin at; none where one of them is not known."""
    if not depth:
        return set()
    if isinstance(node, ast.Call) and last_name(node.func) in ("join", "Path") and node.args:
        return _behind(_rooted(program, node.args[0], site, depth - 1), node.args[1:])
    if isinstance(node, ast.Call) and last_name(node.func) in _LISTING | _OF_LISTS and node.args:
        return _behind(_rooted(program, node.args[0], site, depth - 1), node.args[:1])
    if isinstance(node, ast.BinOp) and last_name(getattr(node.right, "func", None)) in _LISTING:
        ones, others = (_rooted(program, item, site, depth - 1) for item in (node.left, node.right))
        return ones | others if ones and others else set()
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Add)):
        return _behind(_rooted(program, node.left, site, depth - 1), [node.right])
    if isinstance(node, ast.JoinedStr) and node.values and isinstance(node.values[0], ast.FormattedValue):
        return _behind(_rooted(program, node.values[0].value, site, depth - 1), node.values[1:])
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return set()
    given = [
        (value, _at(program, site, value))
        for value in assigned(program, node, site.scope)
        if blocks.path_of(node) not in blocks.reads(value)
    ]
    if not given and isinstance(node, ast.Name):
        given = _elements(node, site) or _given_to_parameter(program, node, site)
    if not given:
        # A setting is read from the command line or a file, and never assigned.
        return {(node.attr, ())} if isinstance(node, ast.Attribute) else set()
    found: set[_Rooted] = set()
    for value, where in given:
        roots = _rooted(program, value, where, depth - 1)
        if not roots:
            return set()
        found |= roots
    return found


def _at(program: Program, site: Site, value: ast.expr) -> Site:
    module = site.module
    if value not in module.parents:
        return site
    body = blocks.body_of(module, value)
    return Site(module, program.flow.scopes[body], body, value)


def _elements(node: ast.Name, site: Site) -> list[tuple[ast.expr, Site]]:
    """The list that a loop takes a variable from: ``for index, folder in enumerate(folders)``."""
    return [
        (loop.iter, site)
        for loop in blocks.walk_body(site.body)
        if isinstance(loop, ast.For) and isinstance(loop.target, ast.Tuple) and node.id in blocks.writes_target(loop)
    ]


def _given_to_parameter(program: Program, node: ast.Name, site: Site) -> list[tuple[ast.expr, Site]]:
    info = program.function_of(site.body)
    if info is None or node.id not in info.parameters:
        return []
    callers = program.flow.callers(info)
    found = [(given, calling(item)) for item in callers if (given := info.argument(item.call, node.id)) is not None]
    return found if len(found) == len(callers) else []


def _behind(roots: set[_Rooted], parts: Sequence[ast.expr]) -> set[_Rooted]:
    """The same with more behind it; what follows an unknown part is unknown."""
    return {(name, _followed(known, parts)) for name, known in roots}


def _followed(known: tuple[str, ...], parts: Sequence[ast.expr]) -> tuple[str, ...]:
    found = list(known)
    for part in parts if not known or known[-1] else ():
        if not (isinstance(part, ast.Constant) and isinstance(part.value, str)):
            return (*found, "")
        found += [item for item in part.value.split("/") if item and "*" not in item]
    return tuple(found)
