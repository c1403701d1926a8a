"""New blocks are indented as those around them, and rows that no block indents move with their statement."""

from __future__ import annotations

import ast
import io
import tokenize
import zlib
from pathlib import Path
from random import Random

import pytest
from amp_rules.plan.options import Options
from amp_rules.text.indentation import shifted
from migrating import FIXTURES, migrated_text

pytestmark = pytest.mark.heavy

STEPS = ("    ", "  ", "\t", "        ", " \t")
# Of the fixtures of single files one in so many: enough for each step to meet each kind of row.
ONE_IN = 12


def scripts() -> list[Path]:
    found = [path for family in "123" for path in sorted(FIXTURES.glob(f"AMP{family}*/*/before.py"))]
    plain = [path for path in found if not (path.parent / "options.toml").exists()]
    return [path for path in plain if zlib.crc32(path.parent.name.encode()) % ONE_IN == 0]


def indented(text: str, random: Random, below_brackets: str) -> str:
    """The script with a step of its own in each statement of its top level, and rows below brackets laid out anew."""
    depth, first, heads, inner = 0, None, {}, set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        depth += {tokenize.INDENT: 1, tokenize.DEDENT: -1}.get(token.type, 0)
        if token.type == tokenize.NEWLINE:
            first = None
        elif token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
            first = first or token.start[0]
            for row in range(token.start[0], token.end[0] + 1):
                heads.setdefault(row, (depth, first))
            inner.update(range(token.start[0] + 1, token.end[0] + 1))  # rows of a string of several lines
    steps = {node.lineno: random.choice(STEPS) for node in ast.parse(text).body}
    found, step, space = [], STEPS[0], ""
    for number, row in enumerate(text.split("\n"), 1):
        step = steps.get(number, step)
        body = row.lstrip()
        if number in inner or not body:
            found.append(row)
        elif number in heads and heads[number][1] != number:
            found.append({"kept": space + "    ", "tabs": "\t\t\t", "spaces": " " * 20}[below_brackets] + body)
        else:
            space = step * (heads[number][0] if number in heads else (len(row) - len(body)) // 4)
            found.append(space + body)
    return "\n".join(found)


def steps_of(statement: ast.stmt, rows: list[str]) -> set[str]:
    """By how much the blocks of a statement stand further right than their heads."""
    found = set()
    for node in ast.walk(statement):
        for suite in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(suite, list) and suite and suite[0].lineno > node.lineno:  # type: ignore[attr-defined]
                head, row = rows[node.lineno - 1], rows[suite[0].lineno - 1]  # type: ignore[attr-defined]
                outer = head[: len(head) - len(head.lstrip())]
                if row.startswith(outer) and not row.lstrip().startswith("elif"):
                    found.add(row[len(outer) : len(row) - len(row.lstrip())])
    return found - {""}


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.parent.name)
def test_the_edits_are_the_same_in_any_indentation(path, tmp_path):
    text = path.read_text(encoding="utf-8").replace("\r\n", "\n")
    random = Random(path.parent.name)
    laid_out = indented(text, random, random.choice(["kept", "tabs", "spaces"]))
    assert ast.dump(ast.parse(laid_out)) == ast.dump(ast.parse(text))
    report, after = migrated_text(tmp_path / "before", text, Options(ddp=True))
    other, result = migrated_text(tmp_path / "after", laid_out, Options(ddp=True))
    assert (other.precision, other.distribution) == (report.precision, report.distribution)
    assert ast.dump(ast.parse(result)) == ast.dump(ast.parse(after))
    rows = result.split("\n")
    mixed = [steps_of(statement, rows) for statement in ast.parse(result).body]
    assert [steps for steps in mixed if len(steps) > 1] == []


@pytest.mark.parametrize(
    ("space", "step", "moved"),
    [
        ("        ", "    ", "            "),
        ("\t\t", "    ", "\t\t    "),
        ("        ", "\t", "\t        "),
        ("\t    ", "\t", "\t\t    "),
        ("", "  ", "  "),
    ],
)
def test_a_row_moves_as_far_as_its_block(space, step, moved):
    assert shifted(space, step) == moved
    for width in (4, 8):
        assert len(moved.expandtabs(width)) == len(space.expandtabs(width)) + len(step.expandtabs(width))
