"""Copies of the runtime for scripts, and how many lines of code they have."""

from __future__ import annotations

import ast
import functools
import io
import tokenize
from collections.abc import Iterable
from pathlib import Path

from amp_migrate.vendoring.choosing import Source, files_for, read_source, relevant
from amp_migrate.vendoring.uses import Uses, uses_of

RUNTIME = Path(__file__).parent.parent.parent / "runtime" / "amp_runtime"
_BESIDE_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@functools.cache
def source() -> Source:
    return read_source(RUNTIME)


def used(texts: Iterable[str], *levels: str) -> Uses:
    return relevant(uses_of(texts) | Uses(levels=frozenset(levels)), source())


def copied(uses: Uses) -> dict[str, str]:
    """The modules of the copy that these uses need."""
    files = files_for(uses, source(), "amp-migrate --vendor -w train.py")
    return {path: data.decode() for path, data in files.items() if path.endswith(".py")}


def lines_of_code(text: str) -> int:
    """The lines of a module without docstrings, comments and empty ones."""
    tree = ast.parse(text)
    texts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _BESIDE_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - texts)


def statements(text: str) -> int:
    """The statements of a module, docstrings apart: what stands on several lines counts once."""
    found = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt))
    return sum(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in found)


def write(files: dict[str, str], folder: Path) -> None:
    """Writes a copy below ``folder``."""
    for path, text in files.items():
        file = folder / "amp_runtime" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
