"""A rule says the same of a program however it is written: in a function, a method or the file itself, in ``try``,
in ``with``, under other names, with its body in a helper."""

from __future__ import annotations

import ast
import re
from collections import Counter
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
    # People write 1e32 for what is unparsed as 1e+32, and triggers are texts.
    text = re.sub(r"(\de)\+(\d)", r"\1\2", ast.unparse(ast.fix_missing_locations(reworded.tree)) + "\n")
    lines = text.split("\n")
    found: Counter[str] = Counter()
    for item in findings_in(text, case.code, case.mode):
        line = lines[item.span.start.line - 1].strip().replace("(self, ", "(")
        line = re.sub(rf"^(return|{RETURNED} =) ", "", line)
        for old, new in reworded.names.items():
            line = re.sub(rf"(?<![\w.]){re.escape(new)}(?!\w)", old, line)
        found[line] += 1
    return found


def _has_the_same_types(case: Case, reworded: Reworded) -> bool:
    """Whether types are the same: a function may be called in any region and with half tensors, where the mode says so;
    a file runs in the regions that it opens, and with what it reads."""
    own = [item for item in ast.fix_missing_locations(reworded.tree).body if not isinstance(item, DEFINITIONS)]
    return case.code > "AMP8" or (case.mode.autocast and any("autocast(" in ast.unparse(item) for item in own))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_says_the_same_however_a_program_is_written(case: Case):
    expected = _verdict(case, Reworded(_parsed(case)))
    for way in WAYS:
        reworded = way(_parsed(case))
        if reworded is None or (way is function_as_module and not _has_the_same_types(case, reworded)):
            continue
        assert _verdict(case, reworded) == expected, f"{way.__name__}:\n{ast.unparse(reworded.tree)}"
