"""The README shows what the tool does, not what it once did."""

from __future__ import annotations

import re
from pathlib import Path

from amp_rules.rewrites import all_rules
from click.testing import CliRunner

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REWRITES = (ROOT / "docs/rewrites.md").read_text(encoding="utf-8")


def test_the_diff_at_its_head_is_the_real_one():
    from amp_migrate.commands.migrate import main

    script = ROOT / "fixtures/runnable/flat_convnet/train.py"
    done = CliRunner().invoke(main, [str(script), "--opt-level", "O1", "--ddp", "-q"])
    shown = re.search(r"```diff\n(.*?)```", README, re.DOTALL)
    assert done.exit_code == 0 and shown is not None
    assert shown[1].count("@@") >= 2 and shown[1] in done.stdout


def test_the_table_of_rewrites_lists_every_one():
    listed = re.findall(r"^\| (AMP\d+) \| ([\w-]+) \|", REWRITES, re.MULTILINE)
    assert listed == [(rule.code, rule.name) for rule in all_rules()]


def test_it_is_short_and_says_first_what_was_not_run():
    assert README.count("\n") <= 150
    for page in (README, (ROOT / "docs/index.md").read_text(encoding="utf-8")):
        assert "Nothing here has been run on CUDA" in "\n".join(page.splitlines()[:10])


def test_the_number_of_lint_rules_is_the_real_one():
    from amp_migrate.lint.catalogue import load_rules

    assert re.findall(r"(\d+) rules", README) == [str(len(load_rules()))]


def test_the_scripts_that_it_names_exist():
    named = set(re.findall(r"^\$ (scripts/\S+)", README, re.MULTILINE))
    assert named == {"scripts/demo.sh", "scripts/test.sh"}
    assert all((ROOT / name).stat().st_mode & 0o111 for name in named)
