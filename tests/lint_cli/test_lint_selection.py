"""Which rules are asked, and in which files."""

from __future__ import annotations

import json

import pytest
from amp_migrate.lint.catalogue import load_rules
from amp_migrate.settings.selected_rules import Layer, Selector
from hypothesis import given, settings
from hypothesis import strategies as st
from lint_standin import CHECKS
from properties import examples

DEFAULT = {"AMP601", "AMP602", "AMP701", "AMP801", "AMP901", "AMP902", "AMP980"}
ALL = "fill(x, 1)\nlog(x)\npreview(x)\nhalf(x)\n"


@pytest.fixture
def selector(folder):
    return Selector(load_rules())


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([], DEFAULT),
        ([Layer(("AMP6",))], {"AMP601", "AMP602"}),
        ([Layer(("amp601", "NEEDLESS-HALF"))], {"AMP601", "AMP701"}),
        ([Layer(("ALL",), ("AMP9",))], DEFAULT - {"AMP901", "AMP902", "AMP980"}),
        ([Layer(None, ("AMP6",))], DEFAULT - {"AMP601", "AMP602"}),
        ([Layer(("AMP6",), ("AMP601",))], {"AMP602"}),
        ([Layer(("AMP601",), ("AMP6",))], {"AMP601"}),
        ([Layer(("ALL",), ("AMP",))], set()),
        ([Layer(("AMP650",))], {"AMP650"}),
        ([Layer(("in-preview",))], {"AMP650"}),
        ([Layer(("AMP65",))], set()),
        ([Layer(None, (), ("AMP650",))], DEFAULT | {"AMP650"}),
        ([Layer(("AMP6",)), Layer(None, ("AMP602",), ("AMP7",))], {"AMP601", "AMP701"}),
        ([Layer(None, ("AMP601",)), Layer(("AMP601",))], {"AMP601"}),
        ([Layer(("AMP6",)), Layer(("AMP7",))], {"AMP701"}),
        ([Layer(())], set()),
    ],
)
def test_longer_selectors_and_later_layers_hold(selector, layers, expected):
    assert selector.codes(layers, preview=False) == expected


def test_preview_adds_the_rules_in_preview(selector):
    assert selector.codes([], preview=True) == DEFAULT | {"AMP650"}
    assert selector.codes([Layer(("AMP6",))], preview=True) == {"AMP601", "AMP602", "AMP650"}
    assert "AMP650" not in selector.codes([Layer(None, ("AMP6",))], preview=True)


@pytest.mark.parametrize(
    ("selected", "hint"),
    [
        ("AMP6O1", "did you mean 'AMP601'?"),
        ("const-overflow", "did you mean 'const-overflow-fill'?"),
        ("quux", "--list-rules shows all rules"),
        ("AMP101", "did you mean"),
        ("AM", "did you mean"),
    ],
)
def test_an_unknown_selector_is_an_error_with_a_hint(write, invoke, selected, hint):
    write(a=ALL)
    done = invoke("a.py", "--select", selected)
    assert done.exit_code == 2
    assert f"unknown rule {selected!r} in the command line" in done.stderr
    assert hint in done.stderr


def found(done):
    return sorted(item["code"] for item in json.loads(done.stdout)["findings"])


def test_options_take_lists_and_come_more_than_once(write, invoke):
    write(a=ALL)
    assert found(invoke("a.py", "--select", "AMP601, AMP7", "--format", "json")) == ["AMP601", "AMP701"]
    assert found(invoke("a.py", "--select", "AMP6", "--select", "AMP7", "--format", "json")) == [
        "AMP601",
        "AMP602",
        "AMP701",
    ]
    assert found(invoke("a.py", "--ignore", "AMP6", "--format", "json")) == ["AMP701"]
    assert found(invoke("a.py", "--preview", "--format", "json")) == ["AMP601", "AMP602", "AMP650", "AMP701"]
    assert "AMP650" in found(invoke("a.py", "--extend-select", "AMP650", "--format", "json"))


def test_per_file_ignores_follow_the_patterns(write, invoke):
    write({"pyproject.toml": '[tool.amp-lint.per-file-ignores]\n"tests/*" = ["AMP6"]\n"*_old.py" = ["ALL"]\n'})
    write({"tests/a.py": ALL, "src/b.py": ALL, "src/c_old.py": ALL})
    done = invoke(".", "--format", "json")
    rows = [(item["file"], item["code"]) for item in json.loads(done.stdout)["findings"]]
    assert rows == [("src/b.py", "AMP601"), ("src/b.py", "AMP602"), ("src/b.py", "AMP701"), ("tests/a.py", "AMP701")]


def test_an_unknown_code_in_per_file_ignores_is_an_error(write, invoke):
    write({"pyproject.toml": '[tool.amp-lint.per-file-ignores]\n"tests/*" = ["AMP6", "AMP606"]\n', "a.py": ALL})
    done = invoke("a.py")
    assert done.exit_code == 2
    assert "unknown rule 'AMP606' in per-file-ignores of [tool.amp-lint]; did you mean 'AMP6" in done.stderr


WORDS = [word for check in CHECKS for word in (check.code, check.name, check.code[:4], check.code[:5])] + ["ALL", "amp"]
SELECTORS = st.lists(st.sampled_from(WORDS), max_size=4).map(tuple)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.builds(Layer, st.none() | SELECTORS, SELECTORS, SELECTORS), max_size=3), st.booleans())
def test_what_is_selected_is_known_and_does_not_depend_on_the_order(layers, preview):
    from amp_migrate.lint.catalogue import RuleInfo

    rules = [RuleInfo(check.code, check.name, check.severity, "", preview=check.preview) for check in CHECKS]
    selector = Selector(rules)
    codes = selector.codes(layers, preview)
    assert codes <= {rule.code for rule in rules}
    turned = [
        Layer(None if layer.select is None else layer.select[::-1], layer.ignore[::-1], layer.extend[::-1])
        for layer in layers
    ]
    assert selector.codes(turned, preview) == codes
    assert codes == Selector(rules[::-1]).codes(layers, preview)
