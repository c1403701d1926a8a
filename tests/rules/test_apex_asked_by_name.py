"""Questions for Apex by its name, where its interface stays, and names that only a handler binds."""

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

LOOP = """
model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
for _ in range(10):
    loss = model(torch.randn(8, 4).cuda()).square().mean()
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
"""
QUESTIONS = [
    '"apex" in sys.modules',
    'find_spec("apex") is not None',
    'find_spec("apex.amp")',
    'bool(find_spec("apex"))',
]
HEAD = "import sys\nfrom importlib.util import find_spec\nimport torch\nfrom apex import amp\nfrom torch import nn\n"


def migrated(path, text, **options):
    path.write_text(text, encoding="utf-8")
    report = migrate(path, Options(**options))
    return report, "".join(change.after for change in report.changes)


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_answer_takes_the_place_of_the_question(tmp_path, question):
    text = f"{HEAD}if not ({question}):\n    raise SystemExit('install apex')\n{LOOP}"
    report, after = migrated(tmp_path / "train.py", text, apex="idiom")
    assert report.precision == "migrated"
    assert '"apex' not in after


def test_what_is_found_is_no_truth_value_elsewhere(tmp_path):
    text = f"{HEAD}place = find_spec('apex')\nif place is None:\n    raise SystemExit('install apex')\n{LOOP}"
    assert migrated(tmp_path / "train.py", text)[0].precision == "declined"


def test_another_package_may_be_asked_for(tmp_path):
    text = f"{HEAD}if 'tensorboard' in sys.modules:\n    print('logs')\n{LOOP}"
    assert "'tensorboard' in sys.modules" in migrated(tmp_path / "train.py", text)[1]


def test_no_import_of_the_runtime_answers_the_question(tmp_path):
    text = f"{HEAD}if 'apex' not in sys.modules:\n    raise SystemExit('install apex')\n{LOOP}"
    report, _ = migrated(tmp_path / "train.py", text, apex="compat")
    assert report.precision == "declined"
    assert "by its name" in report.refusals[-1].message


@pytest.mark.parametrize(
    "handler", ["ImportError as missing:\n    amp = None", "ImportError:\n    missing, amp = 1, None"]
)
def test_a_name_of_the_handler_that_is_still_read(tmp_path, handler):
    guarded = f"try:\n    from apex import amp\nexcept {handler}\n"
    text = f"import torch\nfrom torch import nn\n{guarded}{LOOP}\n\ndef why():\n    return missing\n"
    assert migrated(tmp_path / "train.py", text, apex="idiom")[0].precision == "declined"
