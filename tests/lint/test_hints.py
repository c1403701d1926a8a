"""Names are read word by word, and only the last one says what a thing is."""

from __future__ import annotations

import pytest
from amp_rules.lattice.abstract_values import BOOL, INT, NUM
from amp_rules.lattice.parameter_names import possible_types
from linting import findings_in


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("key_padding_mask", BOOL | INT),
        ("mask2", BOOL | INT),
        ("target", INT),
        ("targetIds", INT),
        ("input_lens", INT),
        ("pos_embed", 0),
        ("step_emb", 0),
        ("discount", 0),
        ("mask_logits", 0),
        ("silent", 0),
        ("x", 0),
        ("_", 0),
    ],
)
def test_the_last_word_speaks(name, types):
    assert possible_types(name) == types


def test_numbers_are_thought_of_where_they_may_be():
    assert possible_types("eps") == 0
    assert possible_types("eps", number=True) == NUM
    assert possible_types("num_heads", number=True) & NUM


@pytest.mark.parametrize("name", ["emb", "step_emb", "pos_embed", "num_logits"])
def test_a_word_in_the_middle_hides_nothing(name):
    text = f"""# mode: O3
import torch
import torch.nn as nn


class Gate(nn.Module):
    def forward(self, {name}):
        return torch.exp({name})
"""
    assert len(findings_in(text, "AMP703")) == 1
