"""Comments that keep code as it is: ``# amp: skip``, ``# amp: skip[AMP301]``, each with a reason if one likes.

At the end of a line the comment holds for its statement, or for the head of a block; on a line of its own for the
statement below. At a ``def`` or a ``class``, above it or at one of its decorators, it holds for the whole body, and on
a line of its own above all code of a file for the file.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from amp_rules.source.modules import Module

MARK = "amp:"
_SKIP = re.compile(r"#\s*amp:\s*skip(?![\w-])(?P<rest>[^#]*)", re.IGNORECASE)
_CODES = re.compile(r"\s*\[(?P<codes>[^\]]*)\]")
_BARE_CODE = re.compile(r"\s*[:=(]?\s*AMP\d", re.IGNORECASE)
_CODE = re.compile(r"AMP\d{0,3}")
_LAYOUT = frozenset({tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Scope = Literal["line", "body", "file", "nothing"]


@dataclass(frozen=True)
class Skip:
    """One comment.

    Attributes:
        line: on which it stands, from 1.
        codes: the codes that it names, or their beginnings; empty for all.
        scope: what it holds for.
        first: the first of the lines that it holds for.
        last: the last one.
        problem: what is wrong with how it is written.
    """

    line: int
    codes: tuple[str, ...]
    scope: Scope
    first: int
    last: int
    problem: str = ""

    @property
    def text(self) -> str:
        """The comment without its reason."""
        return f"# amp: skip[{', '.join(self.codes)}]" if self.codes else "# amp: skip"

    def names(self, code: str) -> bool:
        """Whether the comment means a rewrite."""
        return not self.codes or code.startswith(self.codes)

    def holds_for(self, first: int, last: int) -> bool:
        """Whether it means one of some lines."""
        return self.scope != "nothing" and first <= self.last and last >= self.first


@dataclass(frozen=True)
class _Comment:
    line: int
    column: int
    text: str
    alone: bool


def skips_in(module: Module) -> tuple[Skip, ...]:
    """The comments of a file that keep code as it is."""
    text = module.source.text
    if MARK not in text and MARK not in text.lower():
        return ()
    comments, statements = _tokens(module)
    found = [(comment, match) for comment in comments for match in _SKIP.finditer(comment.text)]
    if not found:
        return ()
    bodies = dict(_bodies(module))
    return tuple(_skip(module, comment, match, statements, bodies) for comment, match in found)


def _tokens(module: Module) -> tuple[list[_Comment], list[tuple[int, int]]]:
    """The comments, and the first and last line of each logical line."""
    comments: list[_Comment] = []
    statements: list[tuple[int, int]] = []
    first = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join(module.lines)).readline):
            if token.type == tokenize.COMMENT:
                alone = not first and not token.line[: token.start[1]].strip()
                comments.append(_Comment(token.start[0], token.start[1], token.string, alone))
            elif token.type == tokenize.NEWLINE:
                statements.append((first, token.start[0]))
                first = 0
            elif not first and token.type not in _LAYOUT:
                first = token.start[0]
    except (tokenize.TokenError, SyntaxError):
        # The parser took the text; what is missing are statements at its very end.
        pass
    return comments, statements


def _bodies(module: Module) -> Iterator[tuple[int, tuple[int, int]]]:
    """For each line of the head of a definition, its decorators included: the lines of the whole."""
    for node in module.nodes:
        if not isinstance(node, _DEFINITIONS):
            continue
        first = first_line(node)
        whole = first, node.end_lineno or node.lineno
        head = first_line(node.body[0])
        # ``def f(): return 1`` has its body on the line of its head.
        for line in range(first, max(head, node.lineno + 1)):
            yield line, whole


def _skip(
    module: Module,
    comment: _Comment,
    match: re.Match[str],
    statements: list[tuple[int, int]],
    bodies: dict[int, tuple[int, int]],
) -> Skip:
    codes, problem = _codes(match["rest"])
    if comment.alone and comment.line < _head(module):
        return Skip(comment.line, codes, "file", 1, len(module.lines), problem)
    lines = _lines(module, comment, statements)
    if lines is None:
        return Skip(comment.line, codes, "nothing", 0, 0, problem or "stands at no statement")
    whole = bodies.get(lines[0]) or bodies.get(lines[1])
    if whole is not None:
        return Skip(comment.line, codes, "body", *whole, problem)
    return Skip(comment.line, codes, "line", *lines, problem)


def first_line(node: ast.expr | ast.stmt) -> int:
    """The line on which a statement begins, with its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(item.lineno for item in decorators)])


def _head(module: Module) -> int:
    """The first line of code, below the file's docstring."""
    for index, node in enumerate(module.tree.body):
        is_docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_docstring:
            return first_line(node)
    return len(module.lines) + 1


def _lines(module: Module, comment: _Comment, statements: list[tuple[int, int]]) -> tuple[int, int] | None:
    """The logical line that the comment stands at; below it where it has a line of its own."""
    if not comment.alone:
        return next((item for item in statements if item[0] <= comment.line <= item[1]), None)
    below = next((item for item in statements if item[0] > comment.line), None)
    if below is None:
        return None
    between = module.lines[comment.line : below[0] - 1]
    row = module.lines[below[0] - 1]
    is_next = all(line.strip().startswith("#") for line in between)
    return below if is_next and len(row) - len(row.lstrip()) == comment.column else None


def _codes(rest: str) -> tuple[tuple[str, ...], str]:
    """The codes in brackets, and what is wrong with how they are written."""
    match = _CODES.match(rest)
    if match is None:
        if rest.lstrip().startswith("["):
            return (), "has a bracket that is not closed, and so holds for every rewrite"
        if _BARE_CODE.match(rest):
            return (), "holds for every rewrite; codes stand in brackets: `# amp: skip[AMP301]`"
        return (), ""
    words = [word.upper() for word in re.findall(r"[\w-]+", match["codes"])]
    wrong = [word for word in words if not _CODE.fullmatch(word)]
    if not words:
        return (), "names nothing in its brackets, and so holds for every rewrite"
    if wrong:
        return tuple(words), f"names {', '.join(f'`{word}`' for word in wrong)}, which is no code such as AMP301"
    return tuple(words), ""
