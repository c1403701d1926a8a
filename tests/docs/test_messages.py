"""docs/troubleshooting.md quotes messages that exist, and all that amp_runtime raises."""

from __future__ import annotations

import ast
import mmap
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from amp_rules.plan.refusal_pages import all_reasons
from doc_pages import ROOT
from markdown_it import MarkdownIt

PAGE = ROOT / "docs" / "troubleshooting.md"
SOURCES = ("migrate/amp_migrate", "rules/amp_rules", "runtime/amp_runtime")
HOLE = "\0"

# An exception says these for Python itself, or a program of the past said them.
OF_PYTHON = {"No module named 'amp_runtime'", "module 'amp_runtime' has no attribute '...'"}
# Only a build of torch with CUDA holds these.
OF_CUDA = {"CUDA out of memory.", "Watchdog caught collective operation timeout"}


def quoted() -> Iterator[tuple[str, str]]:
    """Yield the messages of the page, each with the section that it stands in."""
    tokens = MarkdownIt("commonmark").enable("table").parse(PAGE.read_text(encoding="utf-8"))
    section, listed, cell = "", False, 0
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "tr_open":
            cell = 0
        elif token.type in ("th_close", "td_close"):
            cell += 1
        if before is None or token.type != "inline" or not token.children:
            continue
        if before.type == "heading_open" and before.tag == "h2":
            section = token.content
        elif before.type == "th_open" and cell == 0:
            listed = token.content == "message"
        elif (before.type == "heading_open" and before.tag == "h3") or (
            before.type == "td_open" and cell == 0 and listed
        ):
            if token.children[0].type == "code_inline":
                yield token.children[0].content, section


@cache
def pieces(quote: str, dots: str = r"\.{3}") -> list[str]:
    return [piece for piece in re.split(dots, quote) if piece.strip()]


def quotes(quote: str, message: str) -> bool:
    """Whether a message, with holes where something is filled in, has the pieces of a quotation in their order."""
    # Of four dots one is a full stop, the first or the last.
    return any(in_order(pieces(quote, dots), message) for dots in (r"\.{3}", r"\.{3}(?!\.)"))


def in_order(wanted: list[str], message: str) -> bool:
    position = 0
    for piece in wanted:
        position = message.find(piece, position)
        if position < 0:
            return False
        position += len(piece)
    return True


def template(node: ast.AST) -> str:
    """Return what a string is made of, with a hole for each expression in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    return HOLE


def templates(folder: Path) -> Iterator[str]:
    """Yield all strings of the code below a folder."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
                yield re.sub("%[sd]", HOLE, template(node))


def raised(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield what the code below a folder raises or warns about, each with its place."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            call = node.exc if isinstance(node, ast.Raise) else node
            if not isinstance(call, ast.Call) or not call.args:
                continue
            name = ast.unparse(call.func).rpartition(".")[2]
            if not isinstance(node, ast.Raise) and name not in ("warn", "warning", "GradientOverflowError"):
                continue
            text = re.sub("%[sd]", HOLE, template(call.args[0]))
            # Without words of its own, it hands on what something else says, or answers a protocol of Python's.
            if re.search(r" [a-z]{3}", text):
                yield text, f"{file.relative_to(ROOT)}:{call.lineno}"


QUOTED = list(quoted())
OURS = [(quote, section) for quote, section in QUOTED if section != "PyTorch" and quote not in OF_PYTHON]
OF_TORCH = [quote for quote, section in QUOTED if section == "PyTorch"]


def test_quotations_say_enough_to_be_found():
    assert len(OURS) > 60 and len(OF_TORCH) > 15
    assert [quote for quote, _ in QUOTED if max(map(len, pieces(quote))) < 10] == []


@pytest.mark.heavy
def test_every_message_of_ours_exists():
    known = {text for source in SOURCES for text in templates(ROOT / source)}
    assert [quote for quote, _ in OURS if not any(quotes(quote, text) for text in known)] == []


def test_every_message_of_the_runtime_is_on_the_page():
    missing = [
        f"{place}: {text.replace(HOLE, '...')}"
        for text, place in raised(ROOT / "runtime/amp_runtime")
        if "/apex/" not in place and not any(quotes(quote, text) for quote, _ in OURS)
    ]
    assert missing == []


def test_every_reason_for_declining_is_on_the_page():
    listed = re.findall(r"^\| (AMP\d+(?:, AMP\d+)*) \| *([\w-]*) *\|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    codes = {code: name for row, name in listed for code in row.split(", ")}
    reasons = {rule.code: rule.name for rule in all_reasons()}
    assert set(codes) == set(reasons)
    assert {code: name for code, name in codes.items() if name and name != reasons[code]} == {}


@pytest.mark.skipif(torch.__version__ < "2.8", reason="messages are quoted as newer versions word them")
def test_every_message_of_torch_exists():
    package = Path(torch.__file__).parent
    wanted = {piece.encode() for quote in OF_TORCH if quote not in OF_CUDA for piece in pieces(quote)}
    for file in [*package.rglob("*.py"), *sorted((package / "lib").glob("*.so*"))]:
        if wanted and file.stat().st_size:
            with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                wanted = {piece for piece in wanted if content.find(piece) < 0}
    assert wanted == set()
