"""Every rule can be looked up: a code of the scheme, a page, fixtures."""

from __future__ import annotations

import re

import pytest
from amp_rules.plan import declining, notes
from amp_rules.plan.rule import Rule
from amp_rules.rewrites import all_rules
from migrating import FIXTURES, cases, declined_scripts

RULES = all_rules()
REFUSALS = declining.ALL
HEADINGS = ["What it does", "Why", "Before", "After", "When it declines", "Source"]
OPTIONALITY = "Leaving it out"

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
each_refusal = pytest.mark.parametrize("rule", REFUSALS, ids=lambda rule: rule.code)


def test_rules_are_found():
    assert [rule.code for rule in RULES] == sorted(rule.code for rule in RULES)
    assert len(RULES) >= 19 and len(REFUSALS) >= 12


def test_codes_and_names_are_unique():
    every = [*RULES, *REFUSALS, *notes.ALL]
    assert len({rule.code for rule in every}) == len(every)
    assert len({rule.name for rule in every}) == len(every)


@pytest.mark.parametrize("rule", [*RULES, *REFUSALS, *notes.ALL], ids=lambda rule: rule.code)
def test_codes_names_and_messages_follow_the_scheme(rule):
    # Rules for Apex (AMP4..) are of either unit.
    family = {"precision": "134", "distribution": "24", "modern": "5"}[rule.unit]
    assert re.fullmatch(rf"AMP[{family}]\d\d", rule.code)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    assert rule.message[0].isupper() and rule.message.endswith(".") and "\n" not in rule.message


@each_rule
def test_rewrites_are_not_among_the_reasons(rule):
    assert rule.code[4] != "9"


@each_refusal
def test_reasons_have_codes_of_their_own(rule):
    assert rule.code[4] == "9"


@each_rule
def test_the_page_has_all_headings(rule):
    title, _, rest = rule.page.partition("\n")
    assert title.endswith(".") and len(title) <= 80
    found = re.findall(r"^## (.*)$", rule.page, re.MULTILINE)
    assert [heading for heading in found if heading != OPTIONALITY] == HEADINGS
    for heading in HEADINGS:
        section = rest.partition(f"## {heading}\n")[2].partition("\n## ")[0].strip()
        assert section, f"{heading} is empty"
    assert "https://" in rule.page.partition("## Source")[2]


@each_rule
def test_the_page_names_reasons_that_exist(rule):
    mentioned = set(re.findall(r"AMP\d\d\d", rule.page))
    assert mentioned <= {item.code for item in (*RULES, *REFUSALS, *notes.ALL)}


@each_rule
def test_a_rule_has_two_cases_and_a_near_miss(rule: Rule):
    own = [case for case in cases() if case.code == rule.code]
    assert len([case for case in own if not case.is_noop]) >= 2
    assert any(case.is_noop for case in own)


def test_every_case_is_complete():
    for case in cases():
        names = {path.name for path in case.folder.iterdir()}
        assert names <= {"before.py", "after.py", "before", "after", "options.toml"}, case
        assert ("before.py" in names) != ("before" in names), case
        assert "after.py" in names or "after" in names or case.is_noop, case


@each_refusal
def test_a_reason_has_a_declined_script(rule):
    assert any(path.parent.name == rule.code for path in declined_scripts())


def test_every_declined_script_is_of_a_reason():
    assert {path.name for path in (FIXTURES / "declines").iterdir()} <= {rule.code for rule in REFUSALS}
