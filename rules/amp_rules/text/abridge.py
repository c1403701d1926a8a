"""A file's text without the statements that no edit is about: LibCST reads the rest in a fraction of the time.

Each long statement that stays as it is becomes a string over the same lines, so that everything else keeps its place;
after the edits, the statements come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence

from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.text.indentation import steps

_PLACEHOLDER = re.compile(r'"""amp-hidden-(\d+)[\r\n]*"""')
_NEWLINES = re.compile(r"\r\n|\r|\n")
_SHORT = 3


class Abridged:
    """The abridged text of a file.

    Args:
        module: the file.
        edited: the nodes that edits name; the statements around them stay.
        whole: statements that edits move, with all that is in them.

    Attributes:
        text: the text.
        indent: one step of indentation in the file.
        newline: its line ends.
    """

    def __init__(self, module: Module, edited: Iterable[ast.AST], whole: Iterable[ast.stmt], indent: str, newline: str):
        self.indent, self.newline = indent, newline
        self._module = module
        self._whole = set(whole)
        self._kept: set[ast.AST] = set(self._whole)
        for node in edited:
            self._kept.add(node)
            self._kept.update(module.ancestors(node))
        self._hidden: list[str] = []
        self._rows = _NEWLINES.split(module.source.text)
        self._ends = _NEWLINES.findall(module.source.text)
        self._suite(module.tree.body)
        ends = [*self._ends, ""]
        self.text = "".join(row + end for row, end in zip(self._rows, ends, strict=True))

    def restored(self, text: str) -> str:
        """The edited text with all statements in their places."""
        return _PLACEHOLDER.sub(lambda match: self._hidden[int(match[1])], text)

    def _suite(self, suite: Sequence[ast.stmt]) -> None:
        for index, statement in enumerate(suite):
            if statement in self._whole:
                continue
            if statement in self._kept:
                for inner in blocks.suites(statement):
                    if inner[0].lineno > statement.lineno:
                        self._suite(inner)
                continue
            before = suite[index - 1].end_lineno or 0 if index else 0
            after = suite[index + 1].lineno if index + 1 < len(suite) else None
            self._hide(statement, before, after)

    def _hide(self, statement: ast.stmt, before: int, after: int | None) -> None:
        decorators = getattr(statement, "decorator_list", [])
        line, column = self._module.start(decorators[0] if decorators else statement)
        column -= 1 if decorators else 0
        last, end = self._module.end(statement)
        if last - line < _SHORT or line <= before or (after is not None and after <= last):
            return
        if self._rows[line - 1][:column].strip() or self._rows[line - 1][column:].startswith("elif"):
            return
        rows = [*self._rows[line - 1 : last]]
        rows[-1] = rows[-1][:end]
        rows[0] = rows[0][column:]
        ends = self._ends[line - 1 : last - 1]
        number = len(self._hidden)
        self._hidden.append("".join(row + newline for row, newline in zip(rows, [*ends, ""], strict=True)))
        self._rows[last - 1] = '"""' + self._rows[last - 1][end:]
        self._rows[line - 1] = self._rows[line - 1][:column] + f'"""amp-hidden-{number}'
        for index in range(line, last - 1):
            self._rows[index] = ""


def abridged(module: Module, edited: Iterable[ast.AST], whole: Iterable[ast.stmt]) -> Abridged | None:
    """The file abridged; None where its indentation or its line ends differ from place to place."""
    text = module.source.text
    newlines = set(_NEWLINES.findall(text))
    indents = {step.text for step in steps(module)}
    if len(newlines) != 1 or len(indents) != 1 or '"""amp-hidden-' in text or "\f" in text:
        return None
    return Abridged(module, edited, whole, next(iter(indents)), next(iter(newlines)))
