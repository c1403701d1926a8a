"""Files that are made only to see whether a folder can be written to, and are taken away again."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.roles.file_effects import FileEffect
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.syntax import last_name

_FAILURES = frozenset({"PermissionError", "OSError", "IOError", "EnvironmentError", "Exception"})
_CHOOSES = (ast.Return, ast.Assign, ast.AnnAssign, ast.Continue, ast.Break)


def write_probes(effects: Iterable[FileEffect]) -> frozenset[ast.Call]:
    """The calls that make such a file, where its failure chooses another folder, and those that take it away.

    Each process has to find out alike: one that does not look goes on with the folder that another gave up.
    """
    effects = list(effects)
    removed = {_key(item) for item in effects if item.removes and item.paths}
    made = {
        _key(item) for item in effects if not item.removes and item.paths and _key(item) in removed and _chooses(item)
    }
    return frozenset(item.call for item in effects if item.paths and _key(item) in made)


def may_be_missing(effect: FileEffect) -> bool:
    """Whether a file may be gone already where a call takes it away: an error is caught, or there is none."""
    if literal(keyword(effect.call, "missing_ok")) is True:
        return True
    below: ast.AST = effect.call
    for above in blocks.enclosing(effect.module, effect.call):
        if isinstance(above, ast.Try) and below in above.body:
            if any(
                _catches(item.type, _FAILURES - {"PermissionError"} | {"FileNotFoundError"}) for item in above.handlers
            ):
                return True
        if isinstance(above, ast.With) and any("suppress" in ast.dump(item.context_expr) for item in above.items):
            return True
        below = above
    return False


def _key(effect: FileEffect) -> tuple[ast.AST, str]:
    return effect.body, ast.dump(effect.paths[0])


def _chooses(effect: FileEffect) -> bool:
    """Whether a handler of what goes wrong gives something else: ``except PermissionError: return other``."""
    below: ast.AST = effect.call
    for above in blocks.enclosing(effect.module, effect.call):
        if isinstance(above, ast.Try) and below in above.body:
            handlers = [item for item in above.handlers if _catches(item.type, _FAILURES)]
            return any(isinstance(part, _CHOOSES) for item in handlers for part in item.body)
        below = above
    return False


def _catches(caught: ast.expr | None, names: frozenset[str]) -> bool:
    items = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(item is None or last_name(item) in names for item in items)
