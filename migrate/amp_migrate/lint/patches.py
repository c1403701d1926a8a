"""A fix as replacements of text: what formats show without rewriting the file.

:mod:`amp_rules.lint.fixes` carries fixes out on the syntax tree. This is the short way for the ordinary cases; in the
others a finding has a fix but no patch.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Sequence

from amp_rules.lint.finding import Fix
from amp_rules.lint.leftover_imports import leftover_imports
from amp_rules.lint.resolved_edits import EditResolver, ResolvedEdit
from amp_rules.source.modules import Module
from amp_rules.source.spans import Position, Span

from amp_migrate.lint.diagnostics import Replacement

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def patch_of(fix: Fix, resolver: EditResolver) -> tuple[Replacement, ...] | None:
    """Return the replacements that a fix comes down to, or None where it is not that simple."""
    edits = resolver.resolve(fix)
    if edits is None:
        return None
    leftover = leftover_imports(resolver, edits)
    if not all(item.whole for item in leftover):
        return None
    removed = {edit.node for edit in edits if edit.kind == "remove"}
    alone = (item.statement for item in leftover if item.statement not in removed)
    edits += [ResolvedEdit("remove", node, resolver.module.parents[node]) for node in alone]
    parts = [_replacement(edit, resolver.module) for edit in edits]
    found = tuple(sorted((part for part in parts if part is not None), key=lambda part: part.span))
    overlapping = any(one.span.end > other.span.start for one, other in itertools.pairwise(found))
    return found if len(found) == len(parts) and not overlapping else None


def apply_patch(text: str, parts: Sequence[Replacement]) -> str:
    """Return ``text`` with the replacements made."""
    lines = _LINE.findall(text)
    newline = next((end for line in lines if (end := line[len(line.rstrip("\r\n")) :])), "\n")
    for part in sorted(parts, key=lambda part: part.span, reverse=True):
        start, end = part.span.start, part.span.end
        before = lines[start.line - 1][: start.column - 1] if start.line <= len(lines) else ""
        after = lines[end.line - 1][end.column - 1 :] if end.line <= len(lines) else ""
        lines[start.line - 1 : end.line] = [before + part.text.replace("\n", newline) + after]
    return "".join(lines)


def _replacement(edit: ResolvedEdit, module: Module) -> Replacement | None:
    if edit.kind == "replace":
        return Replacement(module.span(edit.node), edit.text)
    if not _stands_alone(edit.node, module):
        return None
    (first, column), (last, _) = module.start(edit.node), module.end(edit.node)
    indent = module.lines[first - 1][:column]
    if edit.kind == "remove":
        if _is_only_statement(edit):
            return Replacement(module.span(edit.node), "pass")
        return Replacement(Span(Position(first, 1), Position(last + 1, 1)), "")
    if edit.kind == "decorate":
        return _line(first, f"{indent}@{edit.text}")
    if edit.kind == "insert after":
        return _line(last + 1, indent + edit.text)
    decorators = getattr(edit.node, "decorator_list", ())
    above = min([first, *(item.lineno for item in decorators)])
    while above > 1 and module.lines[above - 2].lstrip().startswith("#"):
        above -= 1
    # Above the first statement stand the comments that belong to the file.
    return _line(above, indent + edit.text) if above > 1 or first == 1 else None


def _line(number: int, text: str) -> Replacement:
    """Return the insertion of a line above line ``number``."""
    place = Position(number, 1)
    return Replacement(Span(place, place), text + "\n")


def _stands_alone(node: ast.AST, module: Module) -> bool:
    """Whether nothing but a comment shares the first and the last line of a statement, and a line end follows."""
    (first, column), (last, end) = module.start(node), module.end(node)
    before, after = module.lines[first - 1][:column], module.lines[last - 1][end:].strip()
    return not before.strip() and (not after or after.startswith("#")) and last < len(module.lines)


def _is_only_statement(edit: ResolvedEdit) -> bool:
    suites = (getattr(edit.parent, name, None) for name in ("body", "orelse", "finalbody"))
    return any(suite == [edit.node] for suite in suites) and not isinstance(edit.parent, ast.Module)
