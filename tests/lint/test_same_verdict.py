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
from rewording import DEFINITIONS, RETURNED, WAYS, Reworded, function_as_module

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


def _is_cast_the_same(case: Case, reworded: Reworded) -> bool:
    """Whether autocast casts the same: a function may be called in any region, a file runs in those that it opens."""
    own = [item for item in ast.fix_missing_locations(reworded.tree).body if not isinstance(item, DEFINITIONS)]
    return not case.mode.autocast or any("autocast(" in ast.unparse(item) for item in own) or case.code > "AMP8"


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_says_the_same_however_a_program_is_written(case: Case, way: Callable[[ast.Module], Reworded | None]):
    reworded = way(_parsed(case))
    if reworded is None or (way is function_as_module and not _is_cast_the_same(case, reworded)):
        return
    expected = _verdict(case, Reworded(_parsed(case)))
    assert _verdict(case, reworded) == expected, ast.unparse(reworded.tree)
