"""The pages of the documentation, taken apart: code blocks, and the comments that say how commands are run.

Comments are invisible on GitHub and in the built site. They stand on lines of their own::

    <!-- test: file train.py -->               the next block is the content of that file
    <!-- test: copy fixtures/x/train.py -->     files or folders of this repository, by their own names in the sandbox
    <!-- test: copy fixtures/x to project -->   under another name
    <!-- test: run git commit -qam "..." -->    a command that the page does not show
    <!-- test: each -->                         each command of the next block starts from the same files
    <!-- test: output -->                       the next block is part of what the last command printed
    <!-- test: empty -->                        the sandbox starts without the files that it has by default

In what a command prints, ``...`` within a line stands for any text, and on a line of its own for any lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from pathspec import GitIgnoreSpec

ROOT = Path(__file__).parents[2]
# Pages that the build of the site makes are not committed.
_MADE = GitIgnoreSpec.from_lines((ROOT / ".gitignore").read_text(encoding="utf-8").splitlines())
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if not _MADE.match_file(page.relative_to(ROOT))),
]


def is_made(page: Path, path: Path) -> bool:
    """Whether a page of the site leads to one that the build makes; README is read without a build."""
    made = path.is_relative_to(ROOT) and _MADE.match_file(path.relative_to(ROOT))
    return made and page.is_relative_to(ROOT / "docs")


VERBS = ("file", "copy", "run", "each", "output", "empty")


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        language: what stands behind its fence; None for an indented block.
        text: its content.
        line: the line of the page on which its content begins.
    """

    language: str | None
    text: str
    line: int


@dataclass(frozen=True)
class Order:
    """A comment that says how commands are run: a verb and what it is about."""

    verb: str
    about: str
    line: int


@dataclass
class Command:
    """A line behind ``$``, which may end in a backslash and go on, with the lines that follow it."""

    text: str
    line: int
    shown: list[str] = field(default_factory=list)


@cache
def parts(page: Path) -> tuple[Block | Order, ...]:
    """Return the code blocks of a page and the comments about them, in their order."""
    return tuple(parts_of(page.read_text(encoding="utf-8")))


def parts_of(text: str) -> Iterator[Block | Order]:
    """Yield the code blocks of a text and the comments about them."""
    for token in MarkdownIt("commonmark").parse(text):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "fence":
            yield Block(token.info.strip(), token.content, line + 1)
        elif token.type == "code_block":
            yield Block(None, token.content, line)
        elif token.type == "html_block":
            for number, comment in enumerate(token.content.splitlines(), line):
                order = re.fullmatch(r"<!-- test: (\w+) ?(.*?) -->", comment.strip())
                if order:
                    yield Order(order[1], order[2], number)


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page."""
    return [part for part in parts(page) if isinstance(part, Block)]


def files(page: Path) -> list[Block]:
    """Return the blocks that are the content of a file."""
    found, waiting = [], False
    for part in parts(page):
        if isinstance(part, Order):
            waiting = waiting or part.verb == "file"
        elif waiting:
            found.append(part)
            waiting = False
    return found


def commands(block: Block) -> list[Command]:
    """Take a console block apart."""
    found: list[Command] = []
    for number, line in enumerate(block.text.splitlines(), block.line):
        if line.startswith("$ "):
            found.append(Command(line[2:], number))
        elif found and found[-1].text.endswith("\\") and not found[-1].shown:
            found[-1].text += "\n" + line
        elif found:
            found[-1].shown.append(line)
        else:
            raise ValueError(f"line {number}: a console block begins with a command, as in `$ amp-migrate train.py`")
    return found


def spans(page: Path) -> list[str]:
    """Return the pieces of code within the text of a page."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
    return [child.content for token in tokens for child in token.children or () if child.type == "code_inline"]


def named(page: Path) -> str:
    """Return the name of a page within the repository."""
    return page.relative_to(ROOT).as_posix()
