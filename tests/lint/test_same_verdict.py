"""A rule says the same of a program however it is written: in a function, a method or the file itself, in ``try``,
in ``with``, under other names, with its body in a helper."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
from linting import Case, cases, findings_in
from rewording import RETURNED, WAYS, Reworded, function_as_module

CASES = [case for case in cases() if case.fires]


@cache
def _parsed(case: Case) -> ast.Module:
    return ast.parse(case.text)


def _verdict(case: Case, reworded: Reworded) -> Counter[str]:
    """The lines that are found, as texts in the words of the original."""
    text = ast.unparse(ast.fix_missing_locations(reworded.tree)) + "\n"
    lines = text.split("\n")
    found: Counter[str] = Counter()
    for item in findings_in(text, case.code, case.mode):
        line = lines[item.span.start.line - 1].strip().replace("(self, ", "(")
        line = re.sub(rf"^(return|{RETURNED} =) ", "", line)
        for old, new in reworded.names.items():
            line = re.sub(rf"(?<![\w.]){re.escape(new)}(?!\w)", old, line)
        found[line] += 1
    return found


def _is_cast_in_a_module(case: Case) -> bool:
    """Whether it is the same in a function and in the file itself, which runs in no autocast region but its own."""
    return not case.mode.autocast or "autocast(" in case.text or ".backward(" in case.text


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_says_the_same_however_a_program_is_written(case: Case, way: Callable[[ast.Module], Reworded | None]):
    reworded = way(_parsed(case))
    if reworded is None or (way is function_as_module and not _is_cast_in_a_module(case)):
        return
    expected = _verdict(case, Reworded(_parsed(case)))
    assert _verdict(case, reworded) == expected, ast.unparse(reworded.tree)
