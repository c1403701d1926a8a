"""The option that chooses the level: where it goes, how it is written, and where there is none."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options
from amp_rules.plan.report import Report

HEAD = """\
import argparse
import torch
from torch import nn
"""
STEP = """\
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(2, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
"""
PARSER = """\
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=4)
"""


def migrated(folder: Path, text: str, **options: object) -> tuple[Report, str]:
    path = folder / "train.py"
    path.write_text(text, encoding="utf-8")
    report = migrate(path, Options(switch=True, **options))
    assert report.precision == "migrated"
    return report, next(change.after for change in report.changes if change.path == path)


def on_module_level(parsing: str) -> str:
    return HEAD + parsing + "".join(line[4:] for line in STEP.splitlines(keepends=True))


def in_main(head: str, call: str, parameters: str = "") -> str:
    return f"{HEAD}{head}\ndef main({parameters}):\n{STEP}\n{call}\n"


def why_not(folder: Path, text: str, **options: object) -> str:
    """The note on a script that is migrated without a switch."""
    report, after = migrated(folder, text, **options)
    assert "override=" not in after and after.count("add_argument") == text.count("add_argument")
    (found,) = [note for note in report.notes if note.code == "AMP185"]
    return found.text


# ---- in reach ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "override"),
    [
        (on_module_level(PARSER + "args = parser.parse_args()\n"), "args.amp"),
        (on_module_level(PARSER + "args, rest = parser.parse_known_args()\n"), "args.amp"),
        (on_module_level(PARSER + "opt = parser.parse_known_args()[0]\n"), "opt.amp"),
        (in_main(PARSER, "if __name__ == '__main__':\n    main(parser.parse_args())", "config"), "config.amp"),
        (in_main(PARSER, "args = parser.parse_args()\nmain(args)", "args"), "args.amp"),
        (
            in_main(
                PARSER + "import torch.multiprocessing as mp\n",
                "if __name__ == '__main__':\n    args = parser.parse_args()\n    if args.width:\n"
                "        mp.spawn(main, nprocs=2, args=(2, args))\n    else:\n        main(0, 2, args)",
                "rank, count, args",
            ),
            "args.amp",
        ),
        (
            in_main(
                "def parsed():\n    parser = argparse.ArgumentParser()\n    parser.add_argument('--a')\n"
                "    args = parser.parse_args()\n    args.a = 3\n    return args, parser\n",
                "args, _ = parsed()\nmain(args)",
                "args",
            ),
            "args.amp",
        ),
    ],
)
def test_the_option_is_read_where_the_arguments_are(tmp_path, text, override):
    report, after = migrated(tmp_path, text)
    ast.parse(after)
    assert f'amp.init(opt_level="O1", override={override})' in after and after.count("--amp") == 1
    assert not [note for note in report.notes if note.code == "AMP185"]
    assert [edit.code for edit in report.edits].count("AMP115") == 1


@pytest.mark.parametrize(
    ("parsing", "why"),
    [
        ("args = parser.parse_args()\nif args.width:\n    args = torch.load('args.pt')\n", "no variable holds"),
        ("if torch.cuda.is_available():\n    args = parser.parse_args()\n", "no variable holds"),
        ("args = vars(parser.parse_args())\n", "no variable holds"),
        ("args = parser.parse_args()\nwith open('a') as args:\n    pass\n", "no variable holds"),
        ("args = parser.parse_args()\nnet = nn.Linear(**vars(args))\n", "would be given one more"),
        ("args = parser.parse_args()\nprint(getattr(args, 'amp', None))\n", "has the name of the option already"),
        ("args = parser.parse_args()\ngiven = dict(vars(args))\nnet = nn.Linear(**given)\n", "would be given one more"),
        (
            "if torch.cuda.is_available():\n    parser.add_argument('--fp16', action='store_true')\n"
            "args = parser.parse_args()\n",
            "`--fp16` is added under a condition",
        ),
        ("parser.set_defaults(amp=1)\nargs = parser.parse_args()\n", "has the name of the option already"),
        ("parser.add_argument('--amplitude')\nargs = parser.parse_args()\n", "`--amplitude` is an option"),
        ("parser.add_argument('-a', dest='amp')\nargs = parser.parse_args()\n", "is an option of the script's own"),
        ("parser.add_argument('--' + 'amp')\nargs = parser.parse_args()\n", "made at run time"),
        ("import library\nlibrary.add(parser)\nargs = parser.parse_args()\n", "may add options that are not seen"),
        ("parser.add_argument('--fp16', type=int)\nargs = parser.parse_args()\n", "of its own for the precision"),
    ],
)
def test_a_script_whose_arguments_are_not_certain_gets_none(tmp_path, parsing, why):
    assert why in why_not(tmp_path, on_module_level(PARSER + parsing))


def test_a_script_that_reads_its_command_line_otherwise_gets_none(tmp_path):
    text = on_module_level("").replace("import argparse", "import fire")
    assert "from fire: a switch is written for argparse alone" in why_not(tmp_path, text)
    assert "the script has no argument parser" in why_not(tmp_path, text.replace("import fire", "import math"))


# ---- options of its own ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "start"),
    [
        ("'--fp16', action='store_true'", """opt_level="O1" if args.fp16 else "O0\""""),
        ("'--use-amp', action='store_true', default=False", """opt_level="O1" if args.use_amp else "O0\""""),
        ("'--level', choices=['O0', 'O1']", """opt_level="O1", override=args.level"""),
        ("'--level', choices=['O0', 'O1'], default='O0'", "opt_level=args.level"),
        ("'--amp', type=str, default='O0'", "opt_level=args.amp"),
    ],
)
def test_an_option_that_means_the_level_is_taken(tmp_path, option, start):
    text = on_module_level(f"{PARSER}parser.add_argument({option})\nargs = parser.parse_args()\n")
    report, after = migrated(tmp_path, text)
    assert f"amp.init({start})" in after and after.count("add_argument") == 2
    assert "AMP115" not in {edit.code for edit in report.edits} and not report.notes


def test_an_option_that_something_reads_is_left_alone(tmp_path):
    parsing = PARSER + "parser.add_argument('--fp16', action='store_true')\nargs = parser.parse_args()\n"
    reading = "name = 'half' if args.fp16 else 'full'\n"
    assert "has `--fp16`, which something else reads (line 8)" in why_not(tmp_path, on_module_level(parsing + reading))
    two = parsing.replace("args =", "parser.add_argument('--amp', action='store_true')\nargs =")
    assert "both be meant" in why_not(tmp_path, on_module_level(two))


# ---- what is asked for -------------------------------------------------------------------------------------------


def test_without_the_option_or_with_its_rewrite_left_out_nothing_changes(tmp_path):
    text = on_module_level(PARSER + "args = parser.parse_args()\n")
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    plain = migrate(path, Options())
    without = migrate(path, Options(switch=True, ignore=("AMP115",)))
    assert plain.changes == without.changes and plain.notes == without.notes == ()
    assert "--amp" not in plain.changes[0].after and "override" not in plain.changes[0].after


def test_a_comment_leaves_the_option_and_its_reader_out(tmp_path):
    parsing = PARSER.rstrip("\n") + "  # amp: skip[AMP115]\nargs = parser.parse_args()\n"
    _, after = migrated(tmp_path, on_module_level(parsing))
    assert "--amp" not in after and 'amp.init(opt_level="O1")' in after


def test_plain_torch_has_two_levels_and_asks_the_option_first(tmp_path):
    _, after = migrated(tmp_path, on_module_level(PARSER + "args = parser.parse_args()\n"), target="torch")
    assert 'choices=["O0", "O1"]' in after
    assert 'use_amp = (args.amp or os.environ.get("AMP_OPT_LEVEL", "O1")) != "O0"' in after


def test_the_level_that_is_asked_for_is_the_default(tmp_path):
    _, after = migrated(tmp_path, on_module_level(PARSER + "args = parser.parse_args()\n"), opt_level="O2")
    assert 'amp.init(opt_level="O2", override=args.amp)' in after and "without it AMP_OPT_LEVEL, or O2" in after


# ---- how it is written -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("above", "written"),
    [
        (
            "parser.add_argument('--a', type=int,\n                    help='Width')\n",
            "parser.add_argument('--amp', choices=['O0', 'O1', 'O2', 'O3'],\n"
            "                    help='Mixed precision, O0 for none; without it AMP_OPT_LEVEL, or O1')\n",
        ),
        (
            'parser.add_argument(\n    "--a",\n    type=int,\n)\n',
            'parser.add_argument(\n    "--amp",\n    choices=["O0", "O1", "O2", "O3"],\n'
            '    help="mixed precision, O0 for none; without it AMP_OPT_LEVEL, or O1",\n)\n',
        ),
        (
            "parser.add_argument('--a', type=int,\n    help='width')\n",
            "parser.add_argument('--amp', choices=['O0', 'O1', 'O2', 'O3'],\n"
            "    help='mixed precision, O0 for none; without it AMP_OPT_LEVEL, or O1')\n",
        ),
        (
            "parser.add_argument('--a', type = int)\n",
            "parser.add_argument('--amp', choices = ['O0', 'O1', 'O2', 'O3'],\n"
            "                    help = 'mixed precision, O0 for none; without it AMP_OPT_LEVEL, or O1')\n",
        ),
    ],
)
def test_the_option_is_written_as_its_neighbours_are(tmp_path, above, written):
    parsing = f"parser = argparse.ArgumentParser()\n{above}args = parser.parse_args()\n"
    _, after = migrated(tmp_path, on_module_level(parsing))
    assert above + written + "args = " in after


def test_the_option_stays_within_the_parsers_own_place(tmp_path):
    """Not in a group, not under a condition, not below the call that parses."""
    parsing = PARSER + (
        "group = parser.add_argument_group('more')\ngroup.add_argument('--b')\n"
        "if torch.cuda.is_available():\n    parser.add_argument('--c')\n"
        "args = parser.parse_args()\nparser.add_argument('--d')\n"
    )
    _, after = migrated(tmp_path, on_module_level(parsing))
    above, _, _ = after.partition('parser.add_argument("--amp"')
    assert above.endswith(PARSER)


# ---- Apex --------------------------------------------------------------------------------------------------------

APEX = """\
import argparse
import torch
from apex import amp
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--level", default="O1")
parser.add_argument("--width", type=int, default=4)
args = parser.parse_args()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level=args.level)
loss = model(torch.ones(2, 4)).pow(2).mean()
with amp.scale_loss(loss, optimizer) as scaled:
    scaled.backward()
optimizer.step()
"""


def test_a_script_for_apex_keeps_the_switch_that_it_has(tmp_path):
    assert "the script has one already: `args.level` chooses the level" in why_not(tmp_path, APEX)
    assert "`amp.initialize` stays, and the level with it" in why_not(tmp_path, APEX, apex="compat")


def test_a_level_that_apex_was_given_for_good_gets_a_switch(tmp_path):
    plain = APEX.replace('parser.add_argument("--level", default="O1")\n', "").replace("args.level", '"O2"')
    _, after = migrated(tmp_path, plain)
    assert 'amp.init(opt_level="O2", override=args.amp)' in after
    assert "without it AMP_OPT_LEVEL, or O2" in after
    _, after = migrated(tmp_path, plain, target="torch")
    assert "without it AMP_OPT_LEVEL, or O1" in after
    assert 'use_amp = (args.amp or os.environ.get("AMP_OPT_LEVEL", "O1")) != "O0"' in after


def test_where_the_processes_join_first_the_option_is_read_where_the_level_was_chosen(tmp_path):
    plain = APEX.replace('parser.add_argument("--level", default="O1")\n', "").replace("args.level", '"O2"')
    loop = "loader = torch.utils.data.DataLoader(torch.ones(8, 4))\nfor x in loader:\n"
    head, step, rest = plain.partition("loss = model(")
    rows = (step + rest).replace("torch.ones(2, 4)", "x").splitlines(keepends=True)
    _, after = migrated(tmp_path, head + loop + "".join(f"    {row}" for row in rows), ddp=True)
    assert 'amp.init(opt_level="O2", override=args.amp)' in after
    assert 'amp.init(opt_level="O0", ddp=True)' in after
