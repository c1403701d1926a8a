"""A call that adds an option, written as its neighbours are: quotes, spaces, width, and how they are broken."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from amp_rules.source.modules import Module
from amp_rules.text.line_width import width_of


@dataclass(frozen=True)
class Neighbour:
    """A call that adds an option."""

    module: Module
    call: ast.Call

    @property
    def function(self) -> str:
        """What is called: ``parser.add_argument``."""
        return self.module.text(self.call.func)

    @property
    def rows(self) -> list[str]:
        """Its lines."""
        return self.module.lines[self.call.lineno - 1 : self.call.end_lineno]

    @property
    def is_broken(self) -> bool:
        """Whether its arguments stand on several lines."""
        return len(self.rows) > 1 and len({item.lineno for item in self.starts} | {self.call.func.end_lineno}) > 1

    @property
    def indentation(self) -> int:
        """The columns before the statement that it begins, or is a part of."""
        return len(self.rows[0]) - len(self.rows[0].lstrip())

    @property
    def given(self) -> list[ast.expr]:
        """The values of its arguments."""
        return [*self.call.args, *(item.value for item in self.call.keywords)]

    @property
    def starts(self) -> list[ast.expr | ast.keyword]:
        """Its arguments, with their names."""
        return [*self.call.args, *self.call.keywords]


def option_line(
    neighbours: Sequence[Neighbour], above: Neighbour, flag: str, choices: Sequence[str], help_text: str
) -> str:
    """The call for a new option below another.

    Args:
        neighbours: the calls of the file that add options to the same parser.
        above: the one below which it goes.
        flag: what it is called.
        choices: what it takes.
        help_text: what ``--help`` says of it.
    """
    quote = _quote(above, neighbours)
    equals = " = " if _sets_apart(neighbours) else "="
    if _begins_upper(neighbours):
        help_text = help_text[0].upper() + help_text[1:]
    parts = [
        f"{quote}{flag}{quote}",
        f"choices{equals}[{', '.join(f'{quote}{item}{quote}' for item in choices)}]",
        f"help{equals}{quote}{help_text}{quote}",
    ]
    _, column = above.module.start(above.call)
    whole = f"{above.function}({', '.join(parts)})"
    width = _width(above.module, neighbours)
    if column + len(whole) <= width:
        return whole
    return _broken(neighbours, above, parts, width - column)


def _broken(neighbours: Sequence[Neighbour], above: Neighbour, parts: list[str], width: int) -> str:
    """The call on several lines, as the nearest neighbour that has several."""
    line = above.call.lineno
    of_several = [item for item in neighbours if item.is_broken] or list(_broken_calls(above.module))
    like = min(of_several, key=lambda item: abs(item.call.lineno - line), default=None)
    head = f"{above.function}("
    if like is None or like.starts[0].lineno == like.call.func.end_lineno:
        indent = " " * len(head)
        if like is not None:
            indent = _indent_of_rows(like, above) or indent
        return head + _filled(parts, indent, width, len(head)) + ")"
    indent = " " * max(1, like.module.start(like.starts[0])[1] - like.indentation)
    is_closed_below = like.rows[-1].strip().startswith(")")
    is_one_each = len({item.lineno for item in like.starts}) == len(like.starts) > 1
    end = "," if re.search(r",\s*\)", "".join(like.rows)) else ""
    one = indent + ", ".join(parts)
    if not is_one_each and len(one) <= width:
        body = one
    else:
        body, end = indent + f",\n{indent}".join(parts), end or ("," if is_closed_below else "")
    return f"{head}\n{body}{end}" + ("\n)" if is_closed_below else ")")


def _width(module: Module, neighbours: Sequence[Neighbour]) -> int:
    return width_of(module, max(len(row) for item in neighbours for row in item.rows))


def _broken_calls(module: Module) -> Iterator[Neighbour]:
    """Yield the calls of a file that stand on several lines, one argument in each at most."""
    for node in module.nodes:
        if isinstance(node, ast.Call):
            found = Neighbour(module, node)
            starts = found.starts
            if found.is_broken and len(starts) > 1 and all(item.lineno == item.end_lineno for item in starts):
                yield found


def _indent_of_rows(like: Neighbour, above: Neighbour) -> str:
    """What stands before the second row of a call whose first argument is in its first row; aligned where that is."""
    second = like.rows[1]
    indent = len(second) - len(second.lstrip())
    start = like.module.start(like.starts[0])[1]
    if indent == start:
        return " " * len(f"{above.function}(")
    return " " * max(0, indent - like.indentation)


def _filled(parts: list[str], indent: str, width: int, first: int) -> str:
    """The arguments on as few rows as they fit on; the first row begins at a column."""
    rows: list[str] = []
    row, column = "", first
    for index, part in enumerate(parts):
        more = part + ("," if index + 1 < len(parts) else ")")
        if row and column + len(row) + 1 + len(more) > width:
            rows.append(row)
            row, column = more, len(indent)
        else:
            row = f"{row} {more}" if row else more
    return f"\n{indent}".join([*rows, row]).removesuffix(")")


def _quote(above: Neighbour, neighbours: Sequence[Neighbour]) -> str:
    """The quotes of the nearest neighbour's strings."""
    for item in (above, *neighbours):
        for node in item.given:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                line, column = item.module.start(node)
                sign = item.module.lines[line - 1][column : column + 1]
                if sign in ("'", '"'):
                    return sign
    return '"'


def _sets_apart(neighbours: Sequence[Neighbour]) -> bool:
    """Whether most keywords have spaces around their sign: ``type = int``."""
    names = [item.arg for one in neighbours for item in one.call.keywords if item.arg is not None]
    text = "\n".join(row for one in neighbours for row in one.rows)
    apart = sum(bool(re.search(rf"\b{name} = ", text)) for name in names)
    return 2 * apart > len(names)


def _begins_upper(neighbours: Sequence[Neighbour]) -> bool:
    """Whether most help texts begin with a capital letter."""
    texts = [
        item.value.value
        for one in neighbours
        for item in one.call.keywords
        if item.arg == "help" and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)
    ]
    return 2 * sum(text[:1].isupper() for text in texts) > len(texts)
