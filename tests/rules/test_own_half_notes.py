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


@pytest.mark.parametrize(
    ("case", "is_told"), [("weights_behind_a_part_that_casts", True), ("state_of_the_wrapper", False)]
)
def test_names_behind_a_part_that_casts_are_told(case: str, is_told: bool) -> None:
    report = migrate(FIXTURES / "AMP420" / case / "before.py", Options(opt_level="O1"))
    told = " ".join(note.text for note in report.notes if note.code == "AMP481")
    assert ("saved behind `network_to_half` have `1.` before each name" in told) == is_told
