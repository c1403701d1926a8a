"""A script is said to compute in full precision where that holds of all that its regions run."""

from __future__ import annotations

from amp_rules import migrate
from amp_rules.plan.options import Options
from migrating import FIXTURES

SCRIPT = FIXTURES / "AMP116" / "kernels_that_are_solved_for" / "before.py"


def test_a_layer_in_an_operand_of_an_exact_product_is_lowered(tmp_path):
    entry = tmp_path / "train.py"
    text = SCRIPT.read_text(encoding="utf-8")
    found = []
    for given in ("self.body(x)", "x"):
        entry.write_text(text.replace("self.body(x)", given), encoding="utf-8")
        found.append([note.code for note in migrate(entry, Options()).notes if note.code == "AMP186"])
    assert found == [[], ["AMP186"]]
