"""What is said where half precision by hand is taken out, and something is not as it was."""

from __future__ import annotations

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options
from migrating import FIXTURES

STATE, FUNCTIONS = "what `FP16_Optimizer` saved does not load", "backward pass of its own, computes in float32"


@pytest.mark.parametrize(("case", "is_told"), [("state_of_the_wrapper", True), ("model_of_each_round", False)])
def test_what_is_not_as_it_was_is_told(case: str, is_told: bool) -> None:
    report = migrate(FIXTURES / "AMP420" / case / "before.py", Options(opt_level="O1"))
    told = " ".join(note.text for note in report.notes if note.code == "AMP481")
    assert "the level stays" in told
    assert [text in told for text in (STATE, FUNCTIONS)] == [is_told, is_told]
