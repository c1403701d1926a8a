"""What calls give to parameters: one that gives a half tensor is enough for a finding in the function."""

from __future__ import annotations

import pytest
from abstractly import CUDA, HALF, IMPORTS, Mode, source
from amp_rules.checks import all_checks
from amp_rules.lint import Linter


def found(text: str, mode: Mode = CUDA, code: str = "AMP605") -> list[str]:
    """The lines at which a rule finds something."""
    whole = IMPORTS + text
    findings = Linter(mode, all_checks(), {code}).lint(source(whole)).findings
    return [whole.splitlines()[item.span.start.line - 1].strip() for item in findings]


HELPERS = """
def unit(x):
    return x / (x.std(-1, keepdim=True) + 1e-9)

class Norm(nn.Module):
    def forward(self, x):
        return x / (x.std(-1, keepdim=True) + 2e-9)

class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = Norm()
        self.norms = nn.ModuleList([Norm()])

    def forward(self, x):
        h = self.fc(x)
        return {call}

    def _unit(self, x):
        return x / (x.std(-1, keepdim=True) + 3e-9)
"""


@pytest.mark.parametrize(
    ("call", "epsilon"),
    [
        ("unit(h)", "1e-9"),
        ("unit(x=h)", "1e-9"),
        ("unit(h.float()) + unit(h)", "1e-9"),
        ("self.norm(h)", "2e-9"),
        ("self.norms[0](h)", "2e-9"),
        ("self._unit(h)", "3e-9"),
    ],
)
def test_a_call_gives_half(call: str, epsilon: str):
    lines = found(HELPERS.format(call=call))
    assert len(lines) == 1
    assert epsilon in lines[0]


@pytest.mark.parametrize(
    "call",
    ["unit(h.float())", "unit(x)", "self.norm(h.float())", "self._unit(h.double())", "h", "unit", "unit(*[h])"],
)
def test_a_call_gives_something_else(call: str):
    assert found(HELPERS.format(call=call)) == []


def test_a_call_with_autocast_off_gives_what_it_is_given():
    text = (
        HELPERS.format(call="h")
        + """
    def other(self, x):
        h = self.fc(x)
        with torch.autocast("cuda", enabled=False):
            return unit({given})
"""
    )
    assert found(text.format(given="h.float()")) == []


def test_a_trial_is_not_believed():
    text = """
def unit(x):
    return x / (x.std(-1, keepdim=True) + 1e-9)

def test_unit():
    assert unit(torch.ones(4).half()).sum() == 0
"""
    assert found(text) == []
    assert found(text.replace("test_unit", "measure")) != []


def test_what_is_said_without_callers_is_said_once():
    text = """
def unit(x):
    x = x.half()
    return x / (x.std(-1, keepdim=True) + 1e-9)

def use(x):
    return unit(x.half())
"""
    assert len(found(text)) == 1
    assert len(found(text, HALF)) == 1
