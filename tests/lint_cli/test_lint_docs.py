"""docs/lint.md shows what the tool does, not what it once did."""

from __future__ import annotations

import re
from pathlib import Path

from amp_migrate.commands.lint import main
from amp_migrate.lint.catalogue import load_rules

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/lint.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_table_lists_every_rule():
    listed = re.findall(
        r"^\| (AMP\d+) \| ([\w-]+)( \(preview\))? \| (.*?) \| (\w+) \| (.*?) \| (\w*) \|$", PAGE, re.MULTILINE
    )
    assert listed == [
        (
            rule.code,
            rule.name,
            " (preview)" if rule.preview else "",
            rule.message,
            rule.severity,
            rule.modes_text,
            rule.fix_safety or "",
        )
        for rule in load_rules()
    ]


def test_options_that_the_pages_name_exist():
    known = {option for parameter in main.params for option in (*parameter.opts, *parameter.secondary_opts)}
    of_lint = "\n".join(re.findall(r"^\$ amp-lint .*", README, re.MULTILINE))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE + of_lint))
    assert named <= known | {"--check"}
    assert {"--opt-level", "--fix", "--unsafe-fixes", "--baseline", "--explain"} <= named
