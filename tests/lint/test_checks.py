"""Every rule finds in its fixtures what they mark, and nothing in the near misses."""

from __future__ import annotations

import re
import runpy

import pytest
from amp_rules.checks import all_checks
from amp_rules.lint import Finding
from amp_rules.lint.check import Check
from amp_rules.rewrites import all_rules
from amp_rules.source.text import read_source
from linting import FIXTURES, Case, cases, findings, linter

CASES = cases()
CHECKS = all_checks()
HEADINGS = ["What it does", "Why", "Example", "Use instead", "When it is silent", "Source"]

each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_finds_what_is_marked_and_nothing_else_alone_and_among_all(case: Case):
    mode, source = case.mode, read_source(case.path)
    found = findings(case.path, mode, case.code)
    assert [finding.span.start.line for finding in found] == case.expected
    assert bool(found) is case.fires
    among = [item for item in linter(mode, "ALL").lint(source).findings if item.code == case.code]
    assert among == found
    findings_name_a_place_in_one_line(case, found)


def findings_name_a_place_in_one_line(case: Case, found: list[Finding]) -> None:
    rows = case.text.split("\n")
    for finding in found:
        assert finding.message and "\n" not in finding.message and not finding.message.endswith(".")
        assert finding.span.start < finding.span.end
        assert finding.span.end.line <= len(rows)
        assert finding.advice
        assert (finding.code, finding.mode) == (case.code, str(case.mode))


@each_check
def test_a_rule_has_two_cases_and_two_near_misses(check: Check):
    own = [case for case in CASES if case.code == check.code]
    assert len([case for case in own if case.fires]) >= 2
    assert len([case for case in own if not case.fires]) >= 2


@each_check
def test_the_numeric_claim_of_a_rule_holds(check: Check):
    """The rule's ``fact.py`` runs its claim with torch."""
    fact = FIXTURES / check.code / "fact.py"
    assert "assert " in fact.read_text(encoding="utf-8")
    runpy.run_path(str(fact), run_name="__main__")


@each_check
def test_the_page_has_all_headings(check: Check):
    title, _, _ = check.page.partition("\n")
    assert title.endswith(".") and len(title) <= 100
    assert re.findall(r"^\s*## (.*)$", check.page, re.MULTILINE) == HEADINGS
    for heading in HEADINGS:
        section = check.page.partition(f"## {heading}\n")[2].partition("\n    ## ")[0].strip()
        assert section, f"{heading} is empty"


@each_check
def test_codes_names_and_messages_follow_the_scheme(check: Check):
    assert re.fullmatch(r"AMP[6-9][0-8]\d", check.code)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", check.name)
    assert check.message[0].isupper() and check.message.endswith(".") and "\n" not in check.message
    assert check.triggers
    assert bool(check.fix_title) is (check.fix_safety is not None)


def test_codes_and_names_are_unique():
    every = [*CHECKS, *all_rules()]
    assert len({item.code for item in every}) == len(every)
    assert len({item.name for item in every}) == len(every)


def test_every_fixture_is_of_a_rule():
    assert {path.name for path in FIXTURES.iterdir()} == {check.code for check in CHECKS}
