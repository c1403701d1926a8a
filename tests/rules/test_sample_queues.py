"""A queue of earlier samples declines distribution, unless what it is given is gathered."""

from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

QUEUE = Path(__file__).parents[2] / "fixtures/declines/AMP291/a_queue_of_earlier_keys.py"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), "declined"),
        (
            (("import torch\n", "import amp_runtime as amp\nimport torch\n"), ("keys.t()", "amp.gather(keys).t()")),
            "migrated",
        ),
        ((("self.queue.clone()", "torch.ones(4, 32)"),), "migrated"),
    ],
    ids=["as it is", "gathered", "not read"],
)
def test_only_a_queue_that_differs_declines(changes, expected, tmp_path):
    text = QUEUE.read_text(encoding="utf-8")
    for before, after in changes:
        assert before in text
        text = text.replace(before, after, 1)
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    assert migrate(path, Options(ddp=True)).distribution == expected
