"""docs/verify.md has a heading for every check, and every heading is that of a check."""

from __future__ import annotations

import re
from pathlib import Path

from amp_migrate.verify.checks import CHECKS

PAGE = Path(__file__).parents[2] / "docs" / "verify.md"
OF_A_LEVEL = re.compile(r"^o[123]-")


def test_every_check_has_a_heading_and_no_heading_is_of_something_else() -> None:
    headings = re.findall(r"^#+ .*\((`.+`)\)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for heading in headings for name in re.findall(r"`([\w-]+)`", heading)}
    # A check of the levels writes one statement for each, with the level before its own name.
    stems = {OF_A_LEVEL.sub("", name) for name in named}
    known = {value for module in CHECKS for key, value in vars(module).items() if key == "ID" or key.endswith("_ID")}
    assert known <= named | stems, known - named - stems
    assert all(name in known or OF_A_LEVEL.sub("", name) in known for name in named), named
