"""The pages for those who come from another library: every name that their tables give for here exists here."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import amp_runtime as amp
import pytest
import torch
from doc_pages import ROOT, named
from torch.distributed.run import get_args_parser

PAGES = sorted((ROOT / "docs").glob("from_*.md"))
TRANSLATIONS = [(page, page.parent / "zh" / page.name) for page in PAGES]
_ROOTS = {"amp": amp, "torch": torch}


def rows(page: Path) -> Iterator[list[str]]:
    """The cells of every row of the page's tables, without heads."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for line in text.splitlines():
        if line.startswith("|") and not re.fullmatch(r"[|\-: ]+", line):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def spans(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def here(page: Path) -> list[str]:
    return [span for cells in rows(page) for span in spans(cells[1])]


def problems(span: str) -> list[str]:
    """What in a piece of code, or the beginning of a command, is not there."""
    if span.startswith("torchrun "):
        known = {option for action in get_args_parser()._actions for option in action.option_strings}
        return [word for word in span.split() if word.startswith("--") and word.replace("_", "-") not in known]
    if span.startswith(("amp-migrate", "amp-lint")):
        return []  # test_commands.py and test_blocks.py know their options
    code = f"{span}: pass" if span.startswith(("for ", "with ")) else span
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            found += _unknown_keywords(node)
        elif isinstance(node, ast.Attribute) and "(" not in ast.unparse(node) and _is_missing(ast.unparse(node)):
            found.append(ast.unparse(node))
    return found


def _value(text: str) -> Any:
    root, *names = text.split(".")
    value = _ROOTS[root] if root in _ROOTS else importlib.import_module(root)
    for position, name in enumerate(names):
        if inspect.ismodule(value) and not hasattr(value, name):
            importlib.import_module(".".join([value.__name__, *names[position : position + 1]]))
        value = getattr(value, name)
    return value


def _is_missing(text: str) -> bool:
    if text.split(".")[0] not in {*_ROOTS, "amp_runtime"}:
        return False
    try:
        _value(text)
    except (AttributeError, ImportError):
        return True
    return False


def _unknown_keywords(call: ast.Call) -> list[str]:
    name = ast.unparse(call.func)
    if name.split(".")[0] not in _ROOTS or _is_missing(name):
        return []
    parameters = inspect.signature(_value(name)).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return []
    return [f"{name}({word.arg}=)" for word in call.keywords if word.arg not in parameters]


def test_there_are_pages() -> None:
    assert {page.stem for page in PAGES} >= {"from_paddle", "from_ascend", "from_others"}
    assert all(len(here(page)) > 20 for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_what_the_tables_name_exists(page: Path) -> None:
    assert [(span, found) for span in here(page) if (found := problems(span))] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_row_says_what_is_here_or_why_nothing_is(page: Path) -> None:
    table = list(rows(page))
    assert all(len(cells) == 3 for cells in table)
    assert [cells for cells in table if not spans(cells[1]) and not cells[2]] == []


@pytest.mark.parametrize(("page", "translation"), TRANSLATIONS, ids=lambda page: named(page))
def test_the_translation_has_the_same_rows(page: Path, translation: Path) -> None:
    ours, theirs = list(rows(page)), list(rows(translation))
    assert [[spans(cell) for cell in cells] for cells in ours] == [[spans(cell) for cell in cells] for cells in theirs]


@pytest.mark.parametrize(
    "wrong",
    [
        "amp.prepare_modle(model)",
        "amp.init(leve=1)",
        "torch.optim.Sgd",
        "amp.scaler.scle(loss).backward()",
        "torchrun --nproc_per_nod 2",
    ],
)
def test_a_name_that_is_not_there_is_noticed(wrong: str) -> None:
    assert problems(wrong)
