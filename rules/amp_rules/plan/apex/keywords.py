"""Keywords that a call is given as a dictionary: ``amp.initialize(model, optimizer, **settings)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.apex.file import ApexFile
from amp_rules.source import blocks
from amp_rules.source.syntax import walk

Keywords = dict[str, ast.expr]


def written_out(file: ApexFile, mapping: ast.expr) -> tuple[list[ast.stmt], Keywords] | None:
    """The keywords that ``**mapping`` gives, and the statements that make the mapping, which nothing else reads.

    Their values are constants and variables that stay as they are until the call. A keyword that is added under a
    condition is None where that does not hold.
    """
    if not isinstance(mapping, ast.Name):
        found = _keywords(file, mapping)
        return ([], found) if found is not None and all(map(_is_constant, found.values())) else None
    owner = file.references.scope_of(mapping).owner(mapping.id)
    uses = [
        node
        for node in file.module.parents
        if isinstance(node, ast.Name)
        and node.id == mapping.id
        and file.references.scope_of(node).owner(node.id) is owner
        and node is not mapping
    ]
    uses.sort(key=file.module.start)
    if not uses or mapping.id in file.wanted_elsewhere:
        return None
    first = blocks.statement_of(file.module, uses[0])
    if not isinstance(first, ast.Assign) or first.targets != [uses[0]]:
        return None
    keywords = _keywords(file, first.value)
    if keywords is None:
        return None
    statements: list[ast.stmt] = [first]
    for use in uses[1:]:
        added = _added(file, use)
        if added is None or added[1] in keywords:
            return None
        statement, name, value = added
        keywords[name] = value
        statements.append(statement)
    last = blocks.statement_of(file.module, mapping)
    if not all(map(_is_constant, keywords.values())) and not _is_unchanged(file, statements, last, keywords):
        return None
    return statements, keywords


def _keywords(file: ApexFile, mapping: ast.expr) -> Keywords | None:
    """The items of ``{"opt_level": "O1"}`` or ``dict(opt_level="O1")``."""
    pairs: Iterator[tuple[str | None, ast.expr]]
    if isinstance(mapping, ast.Dict):
        pairs = zip(map(_text, mapping.keys), mapping.values, strict=True)
    elif isinstance(mapping, ast.Call) and not mapping.args and _is_dict(file, mapping.func):
        pairs = ((item.arg, item.value) for item in mapping.keywords)
    else:
        return None
    found: Keywords = {}
    for name, value in pairs:
        if name is None or not _is_plain(value):
            return None
        found[name] = value
    return found


def _is_dict(file: ApexFile, node: ast.expr) -> bool:
    """Whether a name is Python's own ``dict``."""
    return isinstance(node, ast.Name) and node.id == "dict" and "dict" not in file.names.scope_of(node).top.bound


def _added(file: ApexFile, use: ast.Name) -> tuple[ast.stmt, str, ast.expr] | None:
    """``settings["master_weights"] = value``, by itself or as all that stands under a condition."""
    item = file.module.parents[use]
    statement = blocks.statement_of(file.module, use)
    if not (isinstance(item, ast.Subscript) and item.value is use and isinstance(statement, ast.Assign)):
        return None
    name = _text(item.slice)
    if statement.targets != [item] or name is None or not _is_plain(statement.value):
        return None
    parent = blocks.place(file.module, statement).parent
    if not isinstance(parent, ast.If):
        return statement, name, statement.value
    is_pure = not any(isinstance(node, (ast.Call, ast.NamedExpr, ast.Await)) for node in walk(parent.test))
    if parent.body != [statement] or parent.orelse or not is_pure:
        return None
    return parent, name, ast.IfExp(parent.test, statement.value, ast.Constant(None))


def _is_unchanged(file: ApexFile, statements: list[ast.stmt], last: ast.stmt, keywords: Keywords) -> bool:
    """Whether the statements follow each other up to the call, and nothing in between changes what they read."""
    suite = blocks.place(file.module, last).suite
    if not all(item in suite for item in statements):
        return False
    read = {path for value in keywords.values() for path in blocks.reads(value)}
    between = suite[suite.index(statements[0]) + 1 : suite.index(last)]
    return not any(blocks.touches(read, blocks.writes(item)) for item in between if item not in statements)


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def _is_plain(node: ast.expr) -> bool:
    return _is_constant(node) or (isinstance(node, (ast.Name, ast.Attribute)) and blocks.path_of(node) is not None)
