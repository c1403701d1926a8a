"""What fixes make of the fixtures is as shown, and leaves nothing of it to find."""

from __future__ import annotations

import pytest
from amp_rules.checks import all_checks
from amp_rules.lint.check import Check
from amp_rules.lint.fixes import apply_fixes
from amp_rules.source.text import SourceFile, read_source, source_from_bytes
from linting import Case, cases, linter

FIXING = [check for check in all_checks() if check.fix_title]
SHOWN = [case for case in cases() if case.fixed.exists()]


def mended(case: Case) -> tuple[SourceFile, list[str]]:
    """The text after all fixes of the rule, and the safety of each that was carried out."""
    source = read_source(case.path)
    safeties: list[str] = []
    for _ in range(10):
        fixes = [item.fix for item in linter(case.mode, case.code).lint(source).findings if item.fix]
        done = apply_fixes(source, fixes) if fixes else None
        if done is None or not done.applied:
            break
        safeties += [fix.safety for fix in done.applied]
        source = source_from_bytes(done.text.encode(), case.path)
    return source, safeties


@pytest.mark.parametrize("case", [case for case in cases() if case.fires or case.fixed.exists()], ids=str)
def test_fixes_are_as_shown_and_as_safe_as_the_rule_says_and_leave_no_fix_to_make(case: Case):
    source, _ = mended(case)
    if case.fixed.exists():
        # Marks of what is expected move with their lines; they are no part of the fix.
        assert source.text == read_source(case.fixed).text
    compile(source.text, str(case.path), "exec", dont_inherit=True)
    left = linter(case.mode, case.code).lint(source).findings
    before = linter(case.mode, case.code).lint(read_source(case.path)).findings
    assert not [item for item in left if item.fix]
    assert len(left) <= len(before)
    check = next(check for check in all_checks() if check.code == case.code)
    # A safe rule may have a place where its fix wants a reader, never the other way round.
    assert all(item.fix is None or item.fix.safety == "unsafe" or check.fix_safety == "safe" for item in before)


@pytest.mark.parametrize("check", FIXING, ids=lambda check: check.code)
def test_a_rule_with_a_fix_shows_it(check: Check):
    own = [case for case in SHOWN if case.code == check.code]
    assert any(mended(case)[1] for case in own), "no fixture in fixed/ shows a fix"
