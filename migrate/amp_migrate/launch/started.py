"""How Python is told to run a script: by its path, or as a module where it imports from its own package."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

from amp_migrate.problems import shown


def started(script: Path) -> str:
    """What follows ``python`` to run a script, as a shell takes it.

    ``from . import data`` raises in a file that is run by its path: ``-m package.train`` runs that.
    """
    path = shown(script)
    parts = Path(path).with_suffix("").parts
    levels = _levels(script)
    if levels and len(parts) > levels and all(part.isidentifier() for part in parts):
        return f"-m {'.'.join(parts)}"
    return shlex.quote(path)


def _levels(script: Path) -> int:
    """How far up a file's imports from its own package go; 0 where it has none, or is no Python."""
    if script.suffix != ".py":
        return 0
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return 0
    return max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)
