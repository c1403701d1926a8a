"""Bringing old PyTorch up to date: what is decided where, and how it joins the migration."""

from __future__ import annotations

from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.old_torch.async_argument import repaired
from amp_rules.plan.options import Options
from amp_rules.source.text import SourceError, source_from_bytes
from migrating import ENTRY, migrated, migrated_text, write

MODERN = Options(modernize=True)

STEP = """
import torch
import torch.nn as nn
from torch.autograd import Variable

model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss(size_average=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for data, target in torch.utils.data.DataLoader(dataset):
    optimizer.zero_grad()
    loss = criterion(model(Variable(data)), Variable(target))
    loss.backward()
    optimizer.step()
    print(loss.data[0])
"""


def codes(report):
    return {edit.code for edit in report.edits}


def modern(tmp_path, text, **options):
    """The text with nothing but the modern rewrites, and the report."""
    wanted = Options(modernize=True, ignore=("AMP1", "AMP2", "AMP3", "AMP4"), **options)
    report, result = migrated_text(tmp_path / "project", text, wanted)
    return result, report


# ---- joining the migration ---------------------------------------------------------------------------------


def test_old_pytorch_is_kept_without_the_option(tmp_path):
    report, result = migrated_text(tmp_path / "project", STEP, Options())
    assert report.precision == "migrated" and "Variable(data)" in result
    assert not {code for code in codes(report) if code.startswith("AMP5")}


def test_edits_stand_at_their_places_in_the_file_on_disk(tmp_path):
    report, result = migrated_text(tmp_path / "project", STEP, MODERN)
    assert report.precision == "migrated" and "amp.scaler.scale(loss).backward()" in result
    lines = STEP.split("\n")
    found = {edit.code: lines[edit.span.start.line - 1] for edit in report.edits}
    assert found["AMP502"] == "from torch.autograd import Variable"
    assert "size_average" in found["AMP506"] and "data[0]" in found["AMP505"]
    assert "backward" in found["AMP103"] and "optimizer.step" in found["AMP104"]


def test_a_script_without_a_training_step_is_brought_up_to_date(tmp_path):
    report, result = migrated_text(tmp_path / "project", "import torch\nprint(torch.range(0, 3))\n", MODERN)
    assert (report.precision, report.distribution) == ("absent", "not requested")
    assert result == "import torch\nprint(torch.arange(0.0, 4.0))\n" and codes(report) == {"AMP522"}


def test_the_modern_edits_stay_where_the_step_is_declined(tmp_path):
    text = STEP.replace("    optimizer.step()", "    optimizer.step(lambda: loss)")
    report, result = migrated_text(tmp_path / "project", text, MODERN)
    plain, _ = migrated_text(tmp_path / "plain", text, Options())
    assert report.precision == plain.precision == "declined"
    assert "Variable" not in result and "amp." not in result
    assert {code[:4] for code in codes(report)} == {"AMP5"}
    assert [item.span.start.line for item in report.refusals] == [item.span.start.line for item in plain.refusals]


def test_a_script_with_mixed_precision_of_its_own_stays_already(tmp_path):
    text = STEP.replace("    loss = ", "    with torch.cuda.amp.autocast():\n        loss = ")
    report, result = migrated_text(tmp_path / "project", text, MODERN)
    assert report.precision == "already"
    assert 'torch.amp.autocast("cuda")' in result and "Variable" not in result
    again, _ = migrated_text(tmp_path / "again", result, MODERN)
    assert again.changes == () and again.edits == ()


@pytest.mark.parametrize("mode", ["auto", "compat"])
def test_a_script_for_apex_is_brought_up_to_date_first(mode, tmp_path):
    text = STEP.replace("optimizer = torch", "from apex import amp\noptimizer = torch")
    text = text.replace("for data", "model, optimizer = amp.initialize(model, optimizer)\nfor data")
    text = text.replace(
        "    loss.backward()", "    with amp.scale_loss(loss, optimizer) as scaled:\n        scaled.backward()"
    )
    report, result = migrated_text(tmp_path / "project", text, Options(modernize=True, apex=mode))
    assert report.precision == "migrated"
    assert "Variable" not in result and "from apex import" not in result and "loss.item()" in result
    lines = text.split("\n")
    for edit in report.edits:
        assert edit.span.end.column <= len(lines[edit.span.end.line - 1]) + 1
    again, unchanged = migrated_text(tmp_path / "again", result, Options(modernize=True, apex=mode))
    assert again.changes == () and unchanged == result


def test_a_script_that_was_migrated_before_is_brought_up_to_date(tmp_path):
    _, first = migrated_text(tmp_path / "one", STEP, Options())
    report, second = migrated_text(tmp_path / "two", first, MODERN)
    assert report.precision == "already" and "Variable" not in second and "amp.scaler" in second


def test_every_file_of_the_program_is_brought_up_to_date(tmp_path):
    files = {
        ENTRY: b"from helper import noise\n\nprint(noise(2))\n",
        "helper.py": b"import torch\nfrom torch.autograd import Variable\n\n\ndef noise(n):\n"
        b"    return Variable(torch.randn(n))\n",
        "other.py": b"from torch.autograd import Variable\n",
    }
    report, result = migrated(tmp_path / "project", files, MODERN)
    assert result["helper.py"] == b"import torch\n\n\ndef noise(n):\n    return torch.randn(n)\n"
    assert result["other.py"] == files["other.py"]  # the program does not reach it
    assert {edit.path.name for edit in report.edits} == {"helper.py"}


def test_what_is_not_asked_for_stays(tmp_path):
    report, result = migrated_text(tmp_path / "project", STEP, Options(modernize=True, ignore=("AMP501",)))
    assert "Variable(data)" in result and "loss.item()" in result and "AMP501" not in codes(report)
    report, result = migrated_text(tmp_path / "other", STEP, Options(select=("AMP506",)))
    assert codes(report) == {"AMP506"} and 'reduction="sum"' in result


def test_a_comment_keeps_a_line_as_it_is(tmp_path):
    text = STEP.replace("print(loss.data[0])", "print(loss.data[0])  # amp: skip[AMP505]")
    report, result = migrated_text(tmp_path / "project", text, MODERN)
    assert "loss.data[0]" in result and "AMP505" not in codes(report) and "AMP501" in codes(report)


def test_a_file_that_cannot_be_rewritten_stays_with_a_reason(tmp_path):
    text = b"import torch\n\x0cprint(torch.range(0, 3))\n"
    report, result = migrated(tmp_path / "project", {ENTRY: text}, MODERN)
    assert result[ENTRY] == text and "form feed" in report.refusals[0].message


# ---- async -------------------------------------------------------------------------------------------------


def fixed(text):
    found = repaired(source_from_bytes(text.encode(), Path("train.py")))
    return None if found is None else found[0].text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = x.cuda(async=True)\n", "x = x.cuda(non_blocking=True)\n"),
        ("x = x.cuda(0, async = flag)\n", "x = x.cuda(0, non_blocking = flag)\n"),
        ("x = f(x.cuda(\n    async=True,\n))\r\n", "x = f(x.cuda(\n    non_blocking=True,\n))\r\n"),
        ("é = 'async=True'; y.copy_(x, async=True)\n", "é = 'async=True'; y.copy_(x, non_blocking=True)\n"),
    ],
)
def test_async_becomes_non_blocking(before, after):
    assert fixed(before) == after


@pytest.mark.parametrize(
    "text",
    [
        "start(async=True)\n",
        "x.cuda(f(async=True))\n",
        "async = 3\n",
        "x = 'x.cuda(async=True)'\n",
        "x.cuda(async==True)\n",
    ],
)
def test_other_uses_of_async_stay(text):
    assert fixed(text) is None


def test_python_2_keeps_its_clear_error(tmp_path):
    entry = write(tmp_path, {ENTRY: b"x = x.cuda(async=True)\nprint 'loss', x\n"})
    with pytest.raises(SourceError) as found:
        migrate(entry, MODERN)
    assert "Python 2" in found.value.message
    with pytest.raises(SourceError):
        migrate(write(tmp_path, {ENTRY: b"x = x.cuda(async=True)\n"}), Options())


# ---- Variable ----------------------------------------------------------------------------------------------

IMPORTS = "import torch\nfrom torch.autograd import Variable\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y = Variable(torch.ones(2))", "y = torch.ones(2)"),
        ("y = Variable(torch.ones(2) + 1).sum()", "y = (torch.ones(2) + 1).sum()"),
        ("y = Variable(x)", "y = x.detach()"),  # nobody knows what x is
        ("y = Variable(x.data)", "y = x.data"),
        ("y = Variable(data=x, requires_grad=flag)", "y = x.detach().requires_grad_(flag)"),
        ("y = Variable(torch.ones(2), True)", "y = torch.ones(2).requires_grad_()"),
        (
            "x = torch.ones(2)\ny = Variable(x)\ny.requires_grad = True",
            "x = torch.ones(2)\ny = x.detach()\ny.requires_grad = True",
        ),
        (
            "x = torch.ones(2, requires_grad=True)\ny = Variable(x)",
            "x = torch.ones(2, requires_grad=True)\ny = x.detach()",
        ),
        (
            "x = torch.ones(2)\nx.requires_grad_()\ny = Variable(x)",
            "x = torch.ones(2)\nx.requires_grad_()\ny = x.detach()",
        ),
        ("def f(x):\n    return Variable(x)\nf(torch.ones(1))", "def f(x):\n    return x\nf(torch.ones(1))"),
        ("def f(x):\n    return Variable(x)\nf(net(1))", "def f(x):\n    return x.detach()\nf(net(1))"),
        (
            "T = torch.cuda.FloatTensor if c else torch.FloatTensor\ny = Variable(T(3))",
            "T = torch.cuda.FloatTensor if c else torch.FloatTensor\ny = T(3)",
        ),
        ("y = Variable(torch.ones(2) if c else torch.zeros(2))", "y = torch.ones(2) if c else torch.zeros(2)"),
        ("y = [Variable(t.long()) for t in x]", "y = [t.long() for t in x]"),
    ],
)
def test_variable_gives_way_to_the_tensor(before, after, tmp_path):
    result, report = modern(tmp_path, f"{IMPORTS}{before}\n")
    assert result == f"import torch\n{after}\n"
    assert report.refusals == ()


def test_variable_stays_where_comments_would_be_lost(tmp_path):
    text = f"{IMPORTS}y = Variable(\n    torch.ones(2),  # ones\n    requires_grad=True,\n)\n"
    result, report = modern(tmp_path, text)
    assert result == text and [item.code for item in report.refusals] == ["AMP590"]


def test_an_import_that_another_file_takes_stays(tmp_path):
    files = {
        ENTRY: b"from helper import *\n\nprint(map(Variable, []))\n",
        "helper.py": b"from torch.autograd import Variable\n",
    }
    _, result = migrated(tmp_path / "project", files, MODERN)
    assert result["helper.py"] == files["helper.py"]


# ---- volatile ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return Variable(x, volatile=True)\n",
        "def f(x):\n    x = Variable(x, volatile=True)\n    return x, 1\n",
        "x = Variable(x, volatile=True)\nloss = net(x).sum()\nloss.backward()\n",
        "x = Variable(x, volatile=flag)\n",
    ],
)
def test_volatile_stays_where_no_block_can_take_its_place(text, tmp_path):
    result, report = modern(tmp_path, IMPORTS + text)
    assert result == IMPORTS + text
    assert [item.code for item in report.refusals] == ["AMP590"]


# ---- single numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "single"),
    [
        ("x.sum().data[0]", True),
        ("(x.mean() + 2 * x.sum()).data[0]", True),
        ("torch.nn.functional.mse_loss(x, y).data[0]", True),
        ("torch.nn.functional.mse_loss(x, y, reduction='none').data[0]", False),
        ("torch.nn.functional.mse_loss(x, y, reduce=flag).data[0]", False),
        ("x.sum(1).data[0]", False),
        ("x.data[0]", False),
        ("(x.sum() * y).data[0]", False),
    ],
)
def test_only_single_numbers_are_taken_out(expression, single, tmp_path):
    result, _ = modern(tmp_path, f"import torch\nprint({expression})\n")
    assert (".item()" in result) is single


def test_what_has_dimensions_is_not_a_single_number_though_backward_is_called_on_it(tmp_path):
    text = "import torch\nx = torch.zeros(1, 1)\nx.backward()\nprint(x.data[0])\n"
    result, report = modern(tmp_path, text)
    assert result == text and report.refusals == ()


def test_a_reduction_that_is_computed_is_left_with_a_reason(tmp_path):
    head = "import torch.nn.functional as F\n\n\ndef f(x, y, average=True):\n"
    text = head + "    return F.mse_loss(x, y, size_average=average)\n"
    result, report = modern(tmp_path, text)
    assert result == text and "computes its size_average" in report.refusals[0].message


# ---- what is only told -------------------------------------------------------------------------------------


def test_a_scheduler_at_the_head_of_an_epoch_is_told(tmp_path):
    text = STEP.replace("for data", "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)\nfor data")
    indented = text.replace("for data", "for epoch in range(3):\n    scheduler.step()\n    for data")
    head, _, tail = indented.partition("    for data")
    text = head + "    for data" + "\n    ".join(tail.split("\n")).rstrip() + "\n"
    report, result = migrated_text(tmp_path / "project", text, MODERN)
    assert report.precision == "migrated" and "    scheduler.step()\n" in result
    assert [item.code for item in report.refusals] == ["AMP590"] and "1.1" in report.refusals[0].message


@pytest.mark.parametrize(
    "line",
    [
        "import torch.utils.ffi",
        "from torchtext.legacy import data",
        "from torch.utils.data.dataloader import _DataLoaderIter",
        "x = __import__('torch'); import torch; torch.gels(x, x)",
    ],
)
def test_what_is_gone_is_told(line, tmp_path):
    result, report = modern(tmp_path, line + "\n")
    assert result == line + "\n" and [item.code for item in report.refusals] == ["AMP590"]
    assert report.refusals[0].recipe


# ---- scripts for Apex ----------------------------------------------------------------------------------------

APEX_STEP = """
import torch
import torch.nn as nn
from torch._six import inf
from apex import amp

model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer)
for data, target in torch.utils.data.DataLoader(dataset):
    optimizer.zero_grad()
    output = model(data)
    loss = criterion(output, target)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    right = output.topk(2, 1)[1].t().eq(target)
    print(right[:1].view(-1).float().sum(0), inf)
"""


def of_modernizing(report):
    return [item.text for item in report.notes if item.code == "AMP482"]


@pytest.mark.parametrize("apex", ["idiom", "compat"])
def test_a_script_for_apex_is_brought_up_to_date_unless_told_otherwise(tmp_path, apex):
    report, result = migrated_text(tmp_path / "project", APEX_STEP, Options(apex=apex))
    assert "from math import inf" in result and "right[:1].reshape(-1)" in result and "from apex" not in result
    assert {"AMP521", "AMP523"} <= codes(report)
    (text,) = of_modernizing(report)
    assert "AMP521, AMP523" in text and "--no-modernize" in text and "a current PyTorch refuses" in text
    of_numpy = APEX_STEP.replace(
        "import torch\n", "import numpy as np\nimport torch\n\nkept = np.zeros(3, dtype=np.bool)\n", 1
    )
    (text,) = of_modernizing(migrated_text(tmp_path / "numpy", of_numpy, Options(apex=apex))[0])
    assert "AMP514" in text and "a current PyTorch or NumPy refuses" in text
    report, result = migrated_text(tmp_path / "left", APEX_STEP, Options(apex=apex, modernize=False))
    assert "torch._six" in result and "right[:1].view(-1)" in result and not of_modernizing(report)
    report, _ = migrated_text(tmp_path / "asked", APEX_STEP, Options(apex=apex, modernize=True))
    assert {"AMP521", "AMP523"} <= codes(report) and not of_modernizing(report)


def test_what_stays_of_old_pytorch_is_counted(tmp_path):
    text = APEX_STEP + "print(torch._six.PY3, torch._six.moves)\n"
    report, result = migrated_text(tmp_path, text, Options())
    assert "print(True, torch._six.moves)" in result
    line = text.count("\n")
    assert of_modernizing(report)[0].endswith(f"; one place stays (train.py:{line}), which --modernize tells about")


@pytest.mark.parametrize("options", [{"ignore": ("AMP5",)}, {"select": ("AMP1", "AMP4")}])
def test_the_modern_rewrites_of_a_script_for_apex_can_be_left_out(tmp_path, options):
    report, result = migrated_text(tmp_path / "project", APEX_STEP, Options(**options))
    assert report.precision == "migrated" and "torch._six" in result and not of_modernizing(report)


def test_a_script_for_apex_that_is_declined_stays_byte_for_byte(tmp_path):
    text = APEX_STEP.replace("    optimizer.step()", "    optimizer.step(lambda: loss)")
    report, result = migrated_text(tmp_path / "project", text, Options(apex="idiom"))
    assert report.precision == "declined" and result == text and not report.edits and not of_modernizing(report)
    assert all(item.unit != "modern" for item in report.refusals)
