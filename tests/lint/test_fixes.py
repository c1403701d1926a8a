"""What fixes make of the fixtures is as shown, and leaves nothing of it to find."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from amp_rules.checks import all_checks
from amp_rules.lint import Finding
from amp_rules.lint.check import Check
from amp_rules.lint.fixes import apply_fixes
from amp_rules.source.text import SourceFile, read_source, source_from_bytes
from linting import Case, cases, linter

FIXING = [check for check in all_checks() if check.fix_title]
SHOWN = [case for case in cases() if case.fixed.exists()]


@dataclass
class Mended:
    """The text after all fixes of a rule, what was found each time, and the safety of each fix that was carried out."""

    source: SourceFile
    rounds: list[tuple[Finding, ...]] = field(default_factory=list)
    safeties: list[str] = field(default_factory=list)


def mended(case: Case) -> Mended:
    result = Mended(read_source(case.path))
    for _ in range(10):
        result.rounds.append(linter(case.mode, case.code).lint(result.source).findings)
        fixes = [item.fix for item in result.rounds[-1] if item.fix]
        done = apply_fixes(result.source, fixes) if fixes else None
        if done is None or not done.applied:
            break
        result.safeties += [fix.safety for fix in done.applied]
        result.source = source_from_bytes(done.text.encode(), case.path)
    return result


@pytest.mark.parametrize("case", [case for case in cases() if case.fires or case.fixed.exists()], ids=str)
def test_fixes_are_as_shown_and_as_safe_as_the_rule_says_and_leave_no_fix_to_make(case: Case):
    result = mended(case)
    if case.fixed.exists():
        # Marks of what is expected move with their lines; they are no part of the fix.
        assert result.source.text == read_source(case.fixed).text
    compile(result.source.text, str(case.path), "exec", dont_inherit=True)
    before, left = result.rounds[0], result.rounds[-1]
    assert not [item for item in left if item.fix]
    assert len(left) <= len(before)
    check = next(check for check in all_checks() if check.code == case.code)
    # A safe rule may have a place where its fix wants a reader, never the other way round.
    assert all(item.fix is None or item.fix.safety == "unsafe" or check.fix_safety == "safe" for item in before)


@pytest.mark.parametrize("check", FIXING, ids=lambda check: check.code)
def test_a_rule_with_a_fix_shows_it(check: Check):
    own = [case for case in SHOWN if case.code == check.code]
    assert any(mended(case).safeties for case in own), "no fixture in fixed/ shows a fix"
