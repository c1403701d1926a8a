"""The text of a module of which only some definitions are kept."""

from __future__ import annotations

import ast
from collections.abc import Set

from amp_migrate.vendoring.definitions import Module, Statement

_WIDTH = 120


def rendered(module: Module, kept: Set[Statement], imports: Set[str]) -> str:
    """The module's text with the statements of ``kept``; of imports what ``imports`` names.

    Comments right above a statement and texts right below it go with it. Lines that stay are not changed.
    """
    lines = module.text.splitlines()
    chosen: list[str] = []
    end = 0
    stays = True
    for number, statement in enumerate(module.statements):
        node = statement.node
        first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", ()))]) - 1
        between, own = lines[end:first], lines[first : node.end_lineno]
        end = node.end_lineno or first
        if _is_text(node):
            stays = stays if number else True  # of what stands above it
        elif _is_future(node):
            stays = bool(kept)
        else:
            stays = statement in kept or statement.acts
        if not stays:
            chosen += _apart(between)
            continue
        chosen += between
        whole = not statement.is_import or _is_future(node) or statement.binds <= imports
        chosen += own if whole else _import(node, imports)
    chosen += lines[end:]
    text = "\n".join(_spaced(chosen)).strip("\n")
    return text + "\n" if text else ""


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _apart(lines: list[str]) -> list[str]:
    """The lines above a statement that are not about it: those before the last empty one."""
    while lines and lines[-1].strip():
        lines = lines[:-1]
    return lines


def _import(node: ast.stmt, names: Set[str]) -> list[str]:
    assert isinstance(node, (ast.Import, ast.ImportFrom))
    aliases = [alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) in names]
    spelled = [alias.name + (f" as {alias.asname}" if alias.asname else "") for alias in aliases]
    if isinstance(node, ast.Import):
        return [f"import {name}" for name in spelled]
    start = f"from {'.' * node.level}{node.module or ''} import "
    line = start + ", ".join(spelled)
    return [line] if len(line) <= _WIDTH else [start + "(", *(f"    {name}," for name in spelled), ")"]


def _spaced(lines: list[str]) -> list[str]:
    """The lines with at most two empty ones in a row, and one among imports."""
    found: list[str] = []
    for line in lines:
        empty = not line.strip()
        if empty and found[-2:] == ["", ""]:
            continue
        found.append("" if empty else line)
    result: list[str] = []
    for number, line in enumerate(found):
        imports = result and result[-1] == "" and line == "" and _next(found, number).startswith(("import ", "from "))
        if not imports:
            result.append(line)
    return result


def _next(lines: list[str], number: int) -> str:
    return next((line for line in lines[number:] if line), "")
