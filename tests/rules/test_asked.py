"""What is left out on request leaves either a right program, or all of it as it was."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from amp_rules.plan.options import Options
from amp_rules.plan.report import Report
from amp_rules.plan.skip_comments import skips_in
from amp_rules.plan.wanted import effective, wants, wants_any
from amp_rules.rewrites import all_rules
from amp_rules.source.modules import parse
from amp_rules.source.text import SourceFile
from migrating import ENTRY, cases, declined_scripts, files_of, migrated, migrated_text

RULES = [rule for rule in all_rules() if rule.code < "AMP5"]
# Those of old PyTorch stand each for itself, and are tested beside their fixtures.
OPTIONAL = [rule.code for rule in RULES if rule.optional and rule.code < "AMP5"]
ESSENTIAL = [rule for rule in RULES if not rule.optional]

TRAINING = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

data = TensorDataset(torch.randn(80, 4), torch.randint(0, 3, (80,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in tqdm(loader):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""


def codes(report: Report) -> set[str]:
    return {edit.code for edit in report.edits}


def told(report: Report) -> tuple[str, ...]:
    """The notes on comments, with their places; what several processes change is none of them."""
    return tuple(
        f"{note.path.name}:{note.line}: {note.text}" for note in report.notes if not note.code.startswith("AMP28")
    )


def with_comment(after: str, comment: str) -> str:
    assert TRAINING.count(after) == 1
    return TRAINING.replace(after, f"{after}  {comment}")


# ---- select and ignore ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("select", "ignore", "wanted", "unwanted"),
    [
        ((), (), "AMP101 AMP301 AMP502", ""),
        ((), ("AMP3",), "AMP101", "AMP301"),
        (("AMP1",), (), "AMP101 AMP105", "AMP301 AMP201 AMP402"),
        (("AMP1",), ("AMP105",), "AMP104", "AMP105"),
        (("AMP105",), ("AMP1",), "AMP105", "AMP104"),
        (("AMP2",), (), "AMP101 AMP108 AMP205", "AMP102"),
        (("AMP2",), ("AMP101",), "AMP108", "AMP101"),
        (("AMP5",), (), "AMP503", "AMP101 AMP301 AMP402"),
        (("AMP4",), (), "AMP407", "AMP101 AMP503"),
        (("AMP",), ("AMP4",), "AMP101", "AMP401"),
    ],
)
def test_the_longest_code_that_fits_decides(select, ignore, wanted, unwanted):
    options = Options(select=select, ignore=ignore)
    shared = {rule.code for rule in RULES if rule.shared}
    assert all(wants(options, code, shared=code in shared) for code in wanted.split())
    assert not any(wants(options, code, shared=code in shared) for code in unwanted.split())


def test_one_code_of_a_family_asks_for_the_family():
    assert wants_any(Options(select=("AMP105",)), "AMP1")
    assert not wants_any(Options(select=("AMP105",)), "AMP2")
    assert not wants_any(Options(ignore=("AMP2",)), "AMP2")
    assert wants_any(Options(ignore=("AMP205",)), "AMP2")


def test_selecting_the_modern_rewrites_turns_them_on_and_leaving_them_out_turns_them_off():
    assert effective(Options(select=("AMP5",))).modernize
    assert not effective(Options(select=("AMP1",))).modernize
    assert not effective(Options(modernize=True, ignore=("AMP5",))).modernize


@pytest.mark.heavy
@pytest.mark.parametrize("code", OPTIONAL)
def test_without_an_optional_rewrite_every_script_is_right_and_stays(code, tmp_path):
    """Parses, holds no edit of the rule, keeps all other edits, and a second run finds nothing to do."""
    scripts = [(str(case), case.before, case.options) for case in cases() if case.code < "AMP5"]
    scripts += [
        (str(path), files_of(path) or {ENTRY: path.read_bytes()}, Options(ddp=True)) for path in plain_declined()
    ]
    for name, before, options in scripts:
        if not any(word in data for data in before.values() for word in WORDS.get(code, [b""])):
            continue
        whole, _ = migrated(tmp_path / "whole", before, options)
        if code not in codes(whole):
            continue
        without = Options(**{**vars(options), "ignore": (code,)})
        report, result = migrated(tmp_path / "part", before, without)
        reason = NEEDED.get((code, Path(name)))
        if reason is not None:
            assert (report.precision, report.distribution) == (whole.precision, "declined"), name
            assert [item.code for item in report.refusals if item.unit == "distribution"] == [reason], name
            continue
        gone = {code, "AMP101", *RESTS_ON_IT.get(code, ())}
        assert codes(report) - gone == codes(whole) - gone, name
        assert report.precision == whole.precision, name
        # Nothing else may have been missing; without its wrapper, the gradients are averaged by nothing.
        left = "declined" if code == "AMP235" else "already"
        assert report.distribution in {whole.distribution, whole.distribution.replace("extended", left)}, name
        for file, data in result.items():
            compile(data, file, "exec", dont_inherit=True)
        again, unchanged = migrated(tmp_path / "again", result, without)
        assert again.changes == () and unchanged == result, name


# What a script must hold for the rule to have anything to do in it: most fixtures have nothing for most rules. A rule
# without words here is tried on every fixture, which takes longer.
WORDS = {
    "AMP115": [b"add_argument"],
    **{f"AMP23{number}": [b"init_process_group"] for number in range(9)},
    "AMP206": [b"tqdm", b"trange"],
    "AMP210": [b"SummaryWriter", b"isdom", b"Logger", b"wandb"],
    "AMP301": [b"torch.optim", b"import optim", b"Adam", b"SGD"],
    "AMP409": [b"local_rank", b"local-rank"],
    "AMP411": [b"cuda.amp", b"cpu.amp", b"cuda import amp"],
    "AMP412": [b"apex.optimizers", b"from apex import optimizers"],
}


# Where the script is not right without an edit of the rule, and the reason that is given then.
NEEDED = {
    ("AMP210", Path("AMP210/folder_is_made_up")): "AMP299",
    ("AMP210", Path("AMP210/folder_is_made_up_in_a_trainer")): "AMP299",
    ("AMP210", Path("AMP210/folder_of_a_writer_of_batches")): "AMP299",
    ("AMP411", Path("AMP202/own_scaler_for_an_older_torch")): "AMP193",  # steps by a class of its own
}

# What has nothing to do without the rule.
RESTS_ON_IT = {"AMP232": ["AMP231"]}


def plain_declined() -> list[Path]:
    return [path for path in declined_scripts() if path.suffix == ".py"]


@pytest.mark.heavy
@pytest.mark.parametrize(
    "rule", [rule for rule in ESSENTIAL if rule.code[:4] in ("AMP1", "AMP2")], ids=lambda r: r.code
)
def test_without_an_essential_rewrite_its_unit_is_declined(rule, tmp_path):
    for case in cases():
        if case.code != rule.code or case.is_noop or any(b"import amp\n" in text for text in case.before.values()):
            continue  # of a script for Apex its interface is left, as below
        whole, _ = migrated(tmp_path / "whole", case.before, case.options)
        without = Options(**{**vars(case.options), "ignore": (rule.code,)})
        report, result = migrated(tmp_path / "part", case.before, without)
        assert rule.code not in codes(report)
        if rule.unit == "precision" and whole.precision == "migrated":
            assert report.precision == "declined"
            # What the script's own processes lack, and Apex's classes for them, is written all the same.
            assert result == case.before or report.distribution in ("extended", "already")
            assert "AMP199" in {refusal.code for refusal in report.refusals}
        else:
            assert report.distribution == "declined"
            assert [refusal.code for refusal in report.refusals if refusal.unit == "distribution"] == ["AMP299"]
            alone, expected = migrated(tmp_path / "alone", case.before, Options(**{**vars(case.options), "ddp": False}))
            assert result == expected and report.precision == alone.precision


@pytest.mark.heavy
@pytest.mark.parametrize("rule", [rule for rule in ESSENTIAL if rule.code[:4] == "AMP4"], ids=lambda r: r.code)
@pytest.mark.parametrize("apex", ["auto", "idiom"])
def test_without_an_essential_rewrite_of_apex_nothing_of_it_is_half_done(rule, apex, tmp_path):
    for case in cases():
        if case.code != rule.code or case.is_noop:
            continue
        # What the script's own processes lack is written all the same, if it is not left out.
        without = Options(**{**vars(case.options), "ignore": (rule.code, "AMP23", "AMP409"), "apex": apex})
        report, result = migrated(tmp_path / "part", case.before, without)
        assert rule.code not in codes(report)
        if report.precision == "declined":
            assert result == case.before
            assert "AMP499" in {refusal.code for refusal in report.refusals} or rule.code == "AMP410"
        else:
            # Its interface stays, from the runtime.
            assert "AMP410" in codes(report) or rule.code == "AMP410"


def test_ignoring_the_distribution_is_not_asking_for_it(tmp_path):
    ignored, result = migrated_text(tmp_path / "one", TRAINING, Options(ddp=True, ignore=("AMP2",)))
    assert ignored.distribution == "not requested"
    assert result == migrated_text(tmp_path / "two", TRAINING, Options())[1]


def test_ignoring_the_fused_optimizers_is_no_fused(tmp_path):
    _, one = migrated_text(tmp_path / "one", TRAINING, Options(ignore=("AMP3",)))
    _, two = migrated_text(tmp_path / "two", TRAINING, Options(fused=False))
    assert one == two


@pytest.mark.parametrize("family", ["AMP3", "AMP4", "AMP5"])
def test_selecting_another_family_leaves_the_step_alone(family, tmp_path):
    report, result = migrated_text(tmp_path / "one", TRAINING, Options(ddp=True, select=(family,)))
    assert (report.precision, report.distribution, result) == ("not requested", "not requested", TRAINING)
    assert report.refusals == ()


def test_several_processes_alone_are_declined_with_the_way_to_full_precision(tmp_path):
    report, result = migrated_text(tmp_path / "one", TRAINING, Options(ddp=True, select=("AMP2",)))
    assert (report.precision, report.distribution, result) == ("not requested", "declined", TRAINING)
    assert [refusal.code for refusal in report.refusals] == ["AMP299"]
    assert "--opt-level O0" in report.refusals[0].recipe


def test_one_selected_rewrite_of_a_step_is_declined_by_the_name_of_what_is_missing(tmp_path):
    report, result = migrated_text(tmp_path / "one", TRAINING, Options(select=("AMP105",)))
    assert (report.precision, result) == ("declined", TRAINING)
    (refusal,) = report.refusals
    assert refusal.code == "AMP199" and "AMP102" in refusal.message and "--select AMP105" in refusal.message


def test_selecting_precision_leaves_the_other_families_out(tmp_path):
    report, _ = migrated_text(tmp_path / "one", TRAINING, Options(ddp=True, select=("AMP1",)))
    assert report.precision == "migrated" and {code[:4] for code in codes(report)} == {"AMP1"}


APEX = """\
import torch
from apex import amp
from torch import nn

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
FUSED = """\
import torch
from apex.optimizers import FusedAdam
from torch import nn

model = nn.Linear(4, 1).cuda()
optimizer = FusedAdam(model.parameters(), lr=0.1)
for _ in range(10):
    loss = model(torch.randn(8, 4).cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_selecting_apex_alone_keeps_its_interface_where_the_step_needs_more(tmp_path):
    report, result = migrated_text(tmp_path / "one", APEX, Options(select=("AMP4",)))
    assert report.precision == "migrated" and codes(report) == {"AMP410"}
    assert "from amp_runtime.apex import amp" in result and "autocast" not in result


def test_selecting_apex_alone_rewrites_what_is_apexs_alone(tmp_path):
    report, result = migrated_text(tmp_path / "one", FUSED, Options(select=("AMP4",)))
    assert {code[:4] for code in codes(report)} == {"AMP4"}
    assert "amp.optim.FusedAdam(" in result and "import amp_runtime as amp" in result
    assert "apex" not in result and "autocast" not in result


def test_ignoring_apex_leaves_a_script_with_apex_alone(tmp_path):
    report, result = migrated_text(tmp_path / "one", APEX, Options(ignore=("AMP4",)))
    assert (report.precision, result) == ("declined", APEX)
    assert {refusal.code for refusal in report.refusals} == {"AMP499"}


# ---- pages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_page_says_whether_it_can_be_left_out(rule):
    section = rule.page.partition("\n## Leaving it out\n")[2].partition("\n## ")[0]
    if rule.optional:
        assert section.startswith("Yes: ")
    else:
        assert section.startswith("No: ")


def test_rewrites_of_old_pytorch_stand_each_for_itself():
    assert all(rule.optional for rule in all_rules() if rule.code.startswith("AMP5"))


# ---- comments ----------------------------------------------------------------------------------------------


def skips(text: str) -> list[tuple[str, tuple[str, ...], int, int]]:
    module = parse(SourceFile(Path("/x.py"), text.encode(), text, "utf-8"))
    return [(item.scope, item.codes, item.first, item.last) for item in skips_in(module)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f()  # amp: skip\n", [("line", (), 1, 1)]),
        ("f()  #amp:skip because\n", [("line", (), 1, 1)]),
        ("f()  # AMP: Skip[amp105, AMP3]: why\n", [("line", ("AMP105", "AMP3"), 1, 1)]),
        ("f()  # noqa  # amp: skip [AMP1]\n", [("line", ("AMP1",), 1, 1)]),
        ("f()  # amp: skipped\n", []),
        ("f()  # amp: skip-file\n", []),
        ("f('# amp: skip')\n", []),
        ('"""# amp: skip"""\nf()\n', []),
        ("f(\n    1,  # amp: skip\n)\n", [("line", (), 1, 3)]),
        ("f(\n    # amp: skip\n    1,\n)\n", [("line", (), 1, 4)]),
        ("a()\n# amp: skip\n# why\nf()\n", [("line", (), 4, 4)]),
        ("a()\n# amp: skip\n\nf()\n", [("nothing", (), 0, 0)]),
        ("if a:\n    b()\n    # amp: skip\nf()\n", [("nothing", (), 0, 0)]),
        ("a()\nfor x in y:  # amp: skip\n    b()\n", [("line", (), 2, 2)]),
        ("a()\ndef f():  # amp: skip\n    b()\n    c()\n", [("body", (), 2, 4)]),
        ("a()\ndef f(\n    x,\n):  # amp: skip\n    b()\n", [("body", (), 2, 5)]),
        ("a()\n# amp: skip\n@b\nclass F:\n    c = 1\n", [("body", (), 3, 5)]),
        ("a()\n@b  # amp: skip\ndef f():\n    c()\n", [("body", (), 2, 4)]),
        ("a()\n@b\n# amp: skip\ndef f():\n    c()\n", [("body", (), 2, 5)]),
        ("a()\ndef f(): return 1  # amp: skip\n", [("body", (), 2, 2)]),
        ("a()\ndef f():\n    b()  # amp: skip\n", [("line", (), 3, 3)]),
        ("#!/usr/bin/env python\n# amp: skip\n\nimport a\n", [("file", (), 1, 5)]),
        ('"""Text."""\n# amp: skip[AMP2]\nimport a\n', [("file", ("AMP2",), 1, 4)]),
        ("import a  # amp: skip\n", [("line", (), 1, 1)]),
        ("# amp: skip\r\nimport a\r\n", [("file", (), 1, 3)]),
    ],
)
def test_what_a_comment_holds_for(text, expected):
    assert skips(text) == expected


LINES = [
    "data = TensorDataset(torch.randn(80, 4), torch.randint(0, 3, (80,)))",
    "from torch import nn",
    "    optimizer.zero_grad()",
]


@pytest.mark.parametrize("line", LINES)
def test_a_comment_at_a_line_without_edits_changes_nothing_and_is_told(line, tmp_path):
    text = with_comment(line, "# amp: skip")
    _, plain = migrated_text(tmp_path / "one", TRAINING, Options(ddp=True))
    report, result = migrated_text(tmp_path / "two", text, Options(ddp=True))
    assert result == plain.replace(line, f"{line}  # amp: skip")
    (note,) = told(report)
    number = text.split("\n").index(f"{line}  # amp: skip") + 1
    assert note == f"train.py:{number}: `# amp: skip` leaves nothing out"


@pytest.mark.parametrize(
    ("line", "comment", "unit"),
    [
        ("model = nn.Linear(4, 3)", "# amp: skip", "precision"),
        ("    loss = F.cross_entropy(model(x), y)", "# amp: skip[AMP102]", "precision"),
        ("    loss.backward()", "# amp: skip[AMP1] for a reason", "precision"),
        ("    optimizer.step()", "# amp: skip", "precision"),
        ("    nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "# amp: skip", "precision"),
        ("loader = DataLoader(data, batch_size=8, shuffle=True)", "# amp: skip", "distribution"),
        ('torch.save(model.state_dict(), "model.pt")', "# amp: skip", "distribution"),
    ],
)
def test_a_comment_at_what_a_unit_needs_declines_the_unit_there(line, comment, unit, tmp_path):
    text = with_comment(line, comment)
    report, result = migrated_text(tmp_path / "one", text, Options(ddp=True))
    reason = next(refusal for refusal in report.refusals if refusal.unit == unit)
    assert reason.code == {"precision": "AMP199", "distribution": "AMP299"}[unit]
    assert reason.span is not None
    assert text.split("\n")[reason.span.start.line - 1] == f"{line}  {comment}"
    if unit == "precision":
        assert result == text
    else:
        assert result == migrated_text(tmp_path / "two", text, Options())[1] != text


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", "AMP301"),
        ("for x, y in tqdm(loader):", "AMP206"),
    ],
)
@pytest.mark.parametrize("brackets", ["", "[{code}]", "[AMP7, {code}] and why"])
def test_a_comment_leaves_an_optional_edit_out(line, code, brackets, tmp_path):
    text = with_comment(line, "# amp: skip" + brackets.format(code=code))
    whole, _ = migrated_text(tmp_path / "one", TRAINING, Options(ddp=True))
    report, result = migrated_text(tmp_path / "two", text, Options(ddp=True))
    assert codes(report) == codes(whole) - {code}
    assert told(report) == ()
    assert text.split("\n")[TRAINING.split("\n").index(line)] in result.split("\n")
    again, unchanged = migrated_text(tmp_path / "three", result, Options(ddp=True))
    assert again.changes == () and unchanged == result


def test_a_comment_for_other_codes_changes_nothing(tmp_path):
    text = with_comment("    optimizer.step()", "# amp: skip[AMP301]")
    report, _ = migrated_text(tmp_path / "one", text, Options(ddp=True))
    assert report.precision == "migrated"
    assert told(report) == ("train.py:16: `# amp: skip[AMP301]` leaves nothing out",)


def test_a_comment_about_processes_is_not_idle_where_one_was_asked_for(tmp_path):
    line = "loader = DataLoader(data, batch_size=8, shuffle=True)"
    report, _ = migrated_text(tmp_path / "one", with_comment(line, "# amp: skip[AMP2]"), Options())
    assert report.precision == "migrated" and told(report) == ()
    report, _ = migrated_text(tmp_path / "two", with_comment(line, "# amp: skip"), Options())
    assert told(report) == ("train.py:8: `# amp: skip` leaves nothing out (without --ddp)",)


@pytest.mark.parametrize(
    ("comment", "problem"),
    [
        ("# amp: skip AMP301", "codes stand in brackets"),
        ("# amp: skip[AMP301", "a bracket that is not closed"),
        ("# amp: skip[]", "names nothing in its brackets"),
        ("# amp: skip[fused]", "no code such as AMP301"),
    ],
)
def test_a_comment_that_nobody_can_follow_is_told(comment, problem, tmp_path):
    line = "data = TensorDataset(torch.randn(80, 4), torch.randint(0, 3, (80,)))"
    report, _ = migrated_text(tmp_path / "one", with_comment(line, comment), Options())
    (note,) = told(report)
    assert note.startswith("train.py:7: ") and problem in note


def test_a_file_whose_head_says_so_is_never_changed(tmp_path):
    helper = (
        b"# amp: skip\nimport torch\n\n\ndef make(model):\n    return torch.optim.SGD(model.parameters(), lr=0.1)\n"
    )
    text = TRAINING.replace("torch.optim.SGD(model.parameters(), lr=0.1)", "make(model)")
    text = text.replace("from tqdm", "from helper import make\nfrom tqdm")
    report, result = migrated(tmp_path / "one", {ENTRY: text.encode(), "helper.py": helper}, Options(ddp=True))
    assert (report.precision, report.distribution) == ("migrated", "migrated")
    assert result["helper.py"] == helper and "AMP301" not in codes(report)
    report, result = migrated_text(tmp_path / "two", "# amp: skip\n" + TRAINING, Options(ddp=True))
    assert report.precision == report.distribution == "declined"
    assert result == "# amp: skip\n" + TRAINING


def test_an_optional_rewrite_of_apex_is_left_out_in_the_whole_file(tmp_path):
    text = """\
import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast

model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler()
for _ in range(10):
    with autocast():  # amp: skip[AMP411]
        loss = model(torch.randn(8, 4).cuda()).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
    report, result = migrated_text(tmp_path, text, Options())
    assert (report.precision, result) == ("already", text)


def test_a_comment_in_a_script_for_apex_holds_where_it_stood_at_first(tmp_path):
    text = APEX.replace("    optimizer.step()", "    optimizer.step()  # amp: skip[AMP104]")
    report, result = migrated_text(tmp_path, text, Options(apex="idiom"))
    assert (report.precision, result) == ("declined", text)
    assert [(item.code, item.span.start.line) for item in report.refusals if item.span] == [("AMP199", 13)]
    report, result = migrated_text(tmp_path, text, Options())
    assert codes(report) == {"AMP410"} and "train.py:13" in told(report)[0]


@pytest.mark.heavy
def test_every_edit_of_a_marked_script_is_outside_of_what_is_marked(tmp_path):
    """Over all fixtures: a comment at each statement in turn keeps that statement, whatever else happens."""
    for case in cases():
        if case.code not in ("AMP105", "AMP205") or set(case.before) != {ENTRY}:
            continue
        text = case.before[ENTRY].decode()
        rows = text.split("\n")
        for node in ast.walk(ast.parse(text)):
            simple = isinstance(node, ast.stmt) and not hasattr(node, "body") and node.lineno == node.end_lineno
            if not simple or "#" in rows[node.lineno - 1] or ";" in rows[node.lineno - 1]:
                continue
            row = rows[node.lineno - 1] + "  # amp: skip"
            marked = "\n".join([*rows[: node.lineno - 1], row, *rows[node.lineno :]])
            report, result = migrated_text(tmp_path, marked, case.options)
            assert row in result.split("\n"), (str(case), row, report)


def test_a_comment_below_modernised_lines_is_judged_where_it_stands_on_disk(tmp_path):
    text = "from torch.autograd import Variable\n" + TRAINING.replace(
        "    loss = F.cross_entropy(model(x), y)",
        "    x, y = Variable(x), Variable(y)\n    loss = F.cross_entropy(model(x), y)",
    )
    marked = text.replace("lr=0.1)", "lr=0.1)  # amp: skip[AMP301]").replace("data =", "# amp: skip\ndata =")
    report, result = migrated_text(tmp_path, marked, Options(ddp=True, modernize=True))
    assert "Variable" not in result and "AMP301" not in codes(report)
    assert told(report) == ("train.py:8: `# amp: skip` leaves nothing out",)


def test_a_comment_keeps_an_old_name_too(tmp_path):
    text = "from torch.autograd import Variable\n" + TRAINING.replace(
        "    loss = F.cross_entropy(model(x), y)",
        "    x = Variable(x)  # amp: skip[AMP5] the course is about it\n    loss = F.cross_entropy(model(x), y)",
    )
    report, result = migrated_text(tmp_path, text, Options(modernize=True))
    assert "x = Variable(x)  # amp: skip[AMP5] the course is about it" in result and "import Variable" in result
    assert report.precision == "migrated" and told(report) == ()


def test_selecting_the_modern_rewrites_does_those_alone(tmp_path):
    text = "from torch.autograd import Variable\n" + TRAINING.replace(
        "    loss = F.cross_entropy(model(x), y)",
        "    x, y = Variable(x), Variable(y)\n    loss = F.cross_entropy(model(x), y)",
    )
    report, result = migrated_text(tmp_path, text, Options(ddp=True, select=("AMP5",)))
    assert {code[:4] for code in codes(report)} == {"AMP5"} and "Variable" not in result
    assert (report.precision, report.distribution) == ("not requested", "not requested")


def test_one_comment_keeps_all_changes_that_hang_together_and_no_comment_is_idle(tmp_path):
    text = """\
import torch
from torch.cuda.amp import GradScaler, autocast  # amp: skip[AMP411]

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler()  # amp: skip[AMP411]
for _ in range(3):
    with autocast():
        loss = model(torch.ones(2, 4)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
    report, after = migrated_text(tmp_path, text, Options())
    assert after == text
    assert not [note for note in told(report) if "leaves nothing out" in note]
