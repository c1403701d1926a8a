"""A rule that breaks down costs its own findings and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from amp_rules.checks import all_checks
from amp_rules.checks.numbers.const_overflow_fill import ConstOverflowFill
from amp_rules.checks.types.handrolled_softmax import HandrolledSoftmax
from amp_rules.lint import Linter, Mode
from amp_rules.source.text import source_from_bytes

TEXT = b"""import torch


def attend(q, k, mask):
    scores = (q @ k).masked_fill(mask, -1e9)
    return torch.log(torch.softmax(scores, -1))
"""


def lint(codes):
    return Linter(Mode("O3"), all_checks(), codes).lint(source_from_bytes(TEXT, Path("/nowhere/model.py")))


def test_the_other_rules_go_on_and_the_failure_is_told(monkeypatch):
    def break_down(self, op, frame):
        raise ValueError("no such thing")

    assert [item.code for item in lint({"AMP601", "AMP704"}).findings] == ["AMP601", "AMP704"]
    monkeypatch.setattr(ConstOverflowFill, "visit", break_down)
    result = lint({"AMP601", "AMP704"})
    assert [item.code for item in result.findings] == ["AMP704"]
    assert result.failures == ("AMP601 failed at line 5: ValueError: no such thing",)


def test_what_stops_the_whole_file_is_not_swallowed(monkeypatch):
    class TimeIsUp(BaseException):
        pass

    def stop(self, op, frame):
        raise TimeIsUp

    monkeypatch.setattr(HandrolledSoftmax, "visit", stop)
    with pytest.raises(TimeIsUp):
        lint({"AMP704"})
