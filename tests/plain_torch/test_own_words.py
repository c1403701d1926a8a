"""Messages about a draft have the words of the script."""

from __future__ import annotations

from pathlib import Path

import pytest
from amp_rules.plain_torch.own_words import in_own_words
from amp_rules.source.modules import parse
from amp_rules.source.text import SourceFile


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("`amp.scaler.scale(loss).backward()` has", "`loss.backward()` has"),
        ("`amp.scaler.scale(a + f(b)).backward(retain_graph=True)`", "`(a + f(b)).backward(retain_graph=True)`"),
        ("`amp.scaler.step(optimizer)` and `x`", "`optimizer.step()` and `x`"),
        ("`model = amp.prepare_model(Net())` is", "`model = Net()` is"),
        ("`amp.optim.SGD(model.parameters())`", "`torch.optim.SGD(model.parameters())`"),
        ("`amp.optim.SGD(model.parameters(), lr=...`", "`torch.optim.SGD(model.parameters(), lr=...`"),
        ("`camp.scaler.step(optimizer)`, `'amp.x'`", "`camp.scaler.step(optimizer)`, `'amp.x'`"),
        ("`model(x, 'a')` is as it was", "`model(x, 'a')` is as it was"),
    ],
)
def test_the_calls_of_the_runtime_are_taken_off(message: str, wanted: str) -> None:
    """What the script has is left."""
    text = "import amp_runtime as amp\n"
    module = parse(SourceFile(Path("x.py"), text.encode(), text, "utf-8"))
    assert in_own_words(message, module) == wanted


def test_a_file_without_the_runtime_is_quoted_as_it_is() -> None:
    """Its `amp` is another one."""
    text = "from apex import amp\n"
    module = parse(SourceFile(Path("x.py"), text.encode(), text, "utf-8"))
    assert in_own_words("`amp.scaler.step(optimizer)`", module) == "`amp.scaler.step(optimizer)`"
