"""Programs with something done to them: what people, merges, formatters and bad days leave behind.

A mutation takes a text and returns another one, or None where it finds nothing to do; the result need not be Python.
"""

from __future__ import annotations

import ast
import keyword
import re
import tokenize
from collections.abc import Callable
from itertools import pairwise
from random import Random

from decoration import encoded, tokens_of, with_blank_lines, with_broken_lines, with_comments, with_indentation
from odd_code import NAMES, ODD, WRAPPERS

COMPOUND = re.compile(r"\s*(if|for|while|with|def|class|try|@|async|match)\b")
Mutation = Callable[[Random, str], "str | None"]

# ---- lines -----------------------------------------------------------------------------------------------------


def lose_line(random: Random, text: str) -> str:
    rows = text.split("\n")
    del rows[random.randrange(len(rows))]
    return "\n".join(rows)


def double_line(random: Random, text: str) -> str:
    rows = text.split("\n")
    at = random.randrange(len(rows))
    rows.insert(at, rows[at])
    return "\n".join(rows)


def swap_lines(random: Random, text: str) -> str:
    rows = text.split("\n")
    one, other = random.randrange(len(rows)), random.randrange(len(rows))
    rows[one], rows[other] = rows[other], rows[one]
    return "\n".join(rows)


def truncate(random: Random, text: str) -> str:
    at = random.randrange(len(text) + 1)
    return text[:at] if random.random() < 0.5 else text[: text.rfind("\n", 0, at) + 1]


# ---- statements ------------------------------------------------------------------------------------------------


def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _suites(tree: ast.Module) -> list[list[ast.stmt]]:
    found = []
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            suite = getattr(node, name, None)
            if isinstance(suite, list) and suite and isinstance(suite[0], ast.stmt):
                found.append(suite)
    return found


def _range(node: ast.stmt) -> tuple[int, int]:
    """The first and the last line of a statement, from 0, the end excluded."""
    first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", []))])
    return first - 1, node.end_lineno or node.lineno


def _statements(text: str) -> list[list[tuple[int, int]]]:
    """The suites of a text, as the lines of their statements; only what has lines of its own."""
    tree = _tree(text)
    found = []
    for suite in _suites(tree) if tree is not None else []:
        ranges = [_range(node) for node in suite]
        rows = text.split("\n")
        whole = all(first >= before for (_, before), (first, _) in pairwise(ranges))
        if whole and all(
            not rows[first][: node.col_offset - 1].strip(" \t@") for (first, _), node in zip(ranges, suite, strict=True)
        ):
            found.append(ranges)
    return found


def _indent(row: str) -> str:
    return row[: len(row) - len(row.lstrip())]


def lose_statement(random: Random, text: str) -> str | None:
    suites = [suite for suite in _statements(text) if len(suite) > 1]
    if not suites:
        return None
    first, last = random.choice(random.choice(suites))
    rows = text.split("\n")
    return "\n".join(rows[:first] + rows[last:])


def double_statement(random: Random, text: str) -> str | None:
    suites = _statements(text)
    if not suites:
        return None
    first, last = random.choice(random.choice(suites))
    rows = text.split("\n")
    return "\n".join(rows[:last] + rows[first:last] + rows[last:])


def swap_statements(random: Random, text: str) -> str | None:
    suites = [suite for suite in _statements(text) if len(suite) > 1]
    if not suites:
        return None
    suite = random.choice(suites)
    at = random.randrange(len(suite) - 1)
    (first, end), (start, last) = suite[at], suite[at + 1]
    rows = text.split("\n")
    return "\n".join(rows[:first] + rows[start:last] + rows[end:start] + rows[first:end] + rows[last:])


def wrap_statements(random: Random, text: str) -> str | None:
    """Put some statements of a suite into a compound statement."""
    suites = _statements(text)
    if not suites:
        return None
    suite = random.choice(suites)
    at = random.randrange(len(suite))
    first, last = suite[at][0], suite[min(len(suite) - 1, at + random.choice([0, 0, 1, 3]))][1]
    rows = text.split("\n")
    indent = _indent(rows[first])
    head, *rest = random.choice(WRAPPERS)
    more = "        " if head.startswith("match") else "    "
    if any('"""' in row or "'''" in row for row in rows[first:last]):
        return None
    inner = [more + row if row.strip() else row for row in rows[first:last]]
    below = [indent + row.format(indent) for row in rest]
    return "\n".join([*rows[:first], indent + head.format(indent), *inner, *below, *rows[last:]])


def odd_statement(random: Random, text: str) -> str | None:
    suites = _statements(text)
    if not suites:
        return None
    first, _ = random.choice(random.choice(suites))
    rows = text.split("\n")
    indent = _indent(rows[first])
    odd = indent + random.choice(ODD).format(indent)
    return "\n".join([*rows[:first], odd, *rows[first:]])


def join_statements(random: Random, text: str) -> str | None:
    """``a`` and ``b`` on two lines become ``a; b``."""
    pairs = [
        (one, other)
        for suite in _statements(text)
        for one, other in pairwise(suite)
        if one[1] - one[0] == 1 and other[1] - other[0] == 1 and one[1] == other[0]
    ]
    rows = text.split("\n")
    pairs = [pair for pair in pairs if not any("#" in rows[at[0]] or rows[at[0]].rstrip().endswith(":") for at in pair)]
    simple = [pair for pair in pairs if not any(COMPOUND.match(rows[at[0]]) for at in pair)]
    if not simple:
        return None
    one, other = random.choice(simple)
    joined = (
        rows[one[0]].rstrip() + random.choice(["; ", ";", " ; "]) + rows[other[0]].strip() + random.choice(["", ";"])
    )
    return "\n".join([*rows[: one[0]], joined, *rows[other[1] :]])


def one_line_suite(random: Random, text: str) -> str | None:
    """The only statement of a suite goes behind its colon."""
    rows = text.split("\n")
    places = [
        suite[0][0]
        for suite in _statements(text)
        if len(suite) == 1 and suite[0][1] - suite[0][0] == 1 and rows[suite[0][0] - 1].rstrip().endswith(":")
    ]
    if not places:
        return None
    at = random.choice(places)
    if COMPOUND.match(rows[at]):
        return None
    return "\n".join(
        [*rows[: at - 1], rows[at - 1].rstrip() + random.choice([" ", ""]) + rows[at].strip(), *rows[at + 1 :]]
    )


# ---- words -----------------------------------------------------------------------------------------------------


def rename(random: Random, text: str) -> str | None:
    """One name becomes another, everywhere."""
    names = sorted(
        {
            token.string
            for token in tokens_of(text)
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string)
        }
    )
    if not names:
        return None
    old = random.choice(names)
    new = random.choice([*NAMES, *names])
    return re.sub(rf"\b{re.escape(old)}\b", new, text)


def lose_token(random: Random, text: str) -> str | None:
    tokens = [token for token in tokens_of(text) if token.string.strip() and token.start[0] == token.end[0]]
    if not tokens:
        return None
    token = random.choice(tokens)
    rows = text.split("\n")
    row = rows[token.start[0] - 1]
    rows[token.start[0] - 1] = row[: token.start[1]] + row[token.end[1] :]
    return "\n".join(rows)


def parenthesize(random: Random, text: str) -> str | None:
    """An expression gets parentheses, on one line or on several, with a comment or not."""
    tree = _tree(text)
    if tree is None:
        return None
    nodes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.Call, ast.Name, ast.Attribute, ast.BinOp))
        and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        and node.lineno == node.end_lineno
    ]
    if not nodes:
        return None
    node = random.choice(nodes)
    rows = text.split("\n")
    raw = rows[node.lineno - 1].encode()
    start, end = node.col_offset, node.end_col_offset or 0
    left, right = random.choice(
        [("(", ")"), ("((", "))"), ("( ", " )"), ("(\n  ", "\n)"), ("(  # why\n", "  # so\n  )")]
    )
    before, inner, after = raw[:start].decode(), raw[start:end].decode(), raw[end:].decode()
    rows[node.lineno - 1] = before + left + inner + right + after
    return "\n".join(rows)


def spread_call(random: Random, text: str) -> str | None:
    """The arguments of a call on lines of their own."""
    tree = _tree(text)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None else []
    calls = [call for call in calls if call.lineno == call.end_lineno]
    if not calls:
        return None
    call = random.choice(calls)
    rows = text.split("\n")
    raw = rows[call.lineno - 1].encode()
    end = call.end_col_offset or 0
    indent = _indent(rows[call.lineno - 1])
    gap = f"\n{indent}{random.choice(['', '    ', '        '])}"
    spots = sorted(
        {item.col_offset for item in call.args if not isinstance(item, ast.Starred)} | {end - 1}, reverse=True
    )
    for spot in spots:
        left = raw[:spot].rstrip()
        remark = random.choice(["", "", "  # here"])
        if (
            spot == end - 1
            and call.args
            and not left.endswith((b",", b"("))
            and not isinstance(call.args[0], ast.GeneratorExp)
        ):
            left += random.choice([b"", b","])
        raw = left + (remark + gap).encode() + raw[spot:]
    rows[call.lineno - 1] = raw.decode()
    return "\n".join(rows)


def nest_deeply(random: Random, text: str) -> str | None:
    depth = random.choice([15, 60, 150, 400])
    kind = random.choice(["parentheses", "blocks", "chain", "attributes", "sum"])
    if kind == "parentheses":
        return text + "\ndeep = " + "(" * depth + "1" + ")" * depth + "\n"
    if kind == "blocks":
        depth = min(depth, 90)
        return (
            text + "\n" + "\n".join(" " * level + "if True:" for level in range(depth)) + "\n" + " " * depth + "pass\n"
        )
    if kind == "chain":
        return text + "\ndeep = " + "f(" * depth + ")" * depth + "\n"
    if kind == "attributes":
        return text + "\ndeep = torch" + ".x" * depth + "\n"
    return text + "\ndeep = " + " + ".join(["1"] * depth * 5) + "\n"


# ---- the whole -------------------------------------------------------------------------------------------------


def comment(random: Random, text: str) -> str:
    return with_comments(random, text, random.choice([0.02, 0.1, 0.5]))


def break_lines(random: Random, text: str) -> str:
    return with_broken_lines(random, text, 0.1)


def comment_decorators(random: Random, text: str) -> str | None:
    rows = text.split("\n")
    places = [at for at, row in enumerate(rows) if row.lstrip().startswith("@")]
    if not places:
        return None
    at = random.choice(places)
    return "\n".join([*rows[: at + 1], _indent(rows[at]) + "# under the decorator", "", *rows[at + 1 :]])


def form_feed(random: Random, text: str) -> str:
    rows = text.split("\n")
    at = random.randrange(len(rows))
    rows[at] = random.choice(["\x0c" + rows[at], rows[at] + "\x0c", rows[at] + "\n\x0c"])
    return "\n".join(rows)


def trailing_blanks(random: Random, text: str) -> str:
    return re.sub(r"$", lambda _: random.choice(["", "", "", " ", "\t", "  "]), text, flags=re.MULTILINE)


MUTATIONS: tuple[Mutation, ...] = (
    lose_line,
    double_line,
    swap_lines,
    truncate,
    lose_statement,
    double_statement,
    double_statement,
    swap_statements,
    swap_statements,
    wrap_statements,
    wrap_statements,
    wrap_statements,
    odd_statement,
    odd_statement,
    odd_statement,
    odd_statement,
    join_statements,
    join_statements,
    one_line_suite,
    rename,
    rename,
    lose_token,
    parenthesize,
    parenthesize,
    spread_call,
    spread_call,
    nest_deeply,
    comment,
    comment,
    break_lines,
    comment_decorators,
    form_feed,
    trailing_blanks,
    with_blank_lines,
    with_indentation,
)


def damaged(random: Random, data: bytes) -> bytes:
    """The file after a few mutations; most keep it Python."""
    text = data.decode("utf-8", "replace").lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    for _ in range(random.choice([1, 1, 2, 3, 5])):
        changed = random.choice(MUTATIONS)(random, text)
        if changed is None:
            continue
        if _tree(changed) is None and random.random() < 0.9:
            # What is no Python is told apart at once; a little of it will do.
            continue
        text = changed
    return encoded(random, text) if random.random() < 0.5 else text.encode("utf-8", "replace")
