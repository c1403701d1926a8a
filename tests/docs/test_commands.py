"""Every command in README.md and docs/ is executed, and prints what is shown below it.

How a page says what its commands need: see doc_pages.py. A page that says nothing runs in a git repository with a
training script ``train.py``, a folder ``project/`` with one in several files, and a folder ``src/``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from doc_pages import PAGES, ROOT, blocks, commands, named, parts, parts_of
from doc_sandbox import Run, Sandbox, pattern, stripped

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

SKIPPED = {
    "pip install": "it would install packages",
    "scripts/demo.sh": "it makes a virtual environment first",
    "scripts/test.sh": "it makes a virtual environment, and runs this test",
    "scripts/docs.sh": "it makes a virtual environment first",
    "pre-commit": "it fetches the hooks over the network",
    "git push": "there is nowhere to push to",
}
"""Commands that a test cannot run, and why; what they name is looked at below."""

FINDINGS = re.compile(r"^(AMP_\w+=\S+ )*(amp-lint\b|amp-migrate\b.* --check\b|amp-migrate verify\b)")
"""Commands whose exit status 1 is an answer and no error."""

# A translation has the commands of its original, which are run there.
TRANSLATED = {page: page.parents[1] / page.name for page in PAGES if page.parent == ROOT / "docs/zh"}
RUN = [page for page in PAGES if any(b.language == "console" for b in blocks(page)) and page not in TRANSLATED]


TRAINS = re.compile(r"^(AMP_\w+=\S+ )*(torchrun|python|amp-migrate verify)\b")


def by_length(page: Path) -> ParameterSet:
    """A page with the marker of the runs that it goes into: the README in each that is not quick, before all others."""
    texts = [command.text for block in blocks(page) if block.language == "console" for command in commands(block)]
    trains = any(map(TRAINS.match, texts))
    marks = [pytest.mark.slow] if trains and page.name != "README.md" else [pytest.mark.heavy]
    return pytest.param(page, id=named(page), marks=marks)


def wrong(run: Run) -> str | None:
    """Say what is not as the page has it."""
    printed = stripped(run.printed)
    where = f"line {run.command.line}: $ {run.command.text}"
    if run.status is None:
        return f"{where}\nwas not reached\n{printed}"
    if any(line.strip() for line in run.command.shown):
        if not pattern(stripped("\n".join(run.command.shown)).splitlines()).fullmatch(printed):
            return f"{where}\nprints, with status {run.status}\n{printed}"
    else:
        answered = run.status == 0 or (run.status == 1 and FINDINGS.search(run.command.text))
        if not answered or re.search(r"^(Traceback|error: |Error: )", printed, re.MULTILINE):
            return f"{where}\nends with status {run.status}\n{printed}"
    for shown in run.quoted:
        if not pattern(shown.text.splitlines()).search(printed):
            return f"{where}\ndoes not print what line {shown.line} shows, but\n{printed}"
    return None


@pytest.mark.parametrize("page", list(map(by_length, RUN)))
def test_the_commands_of_a_page_do_what_it_says(page, tmp_path):
    runs = Sandbox(tmp_path, tuple(SKIPPED)).run(parts(page))
    problems = [problem for run in runs if (problem := wrong(run))]
    assert not problems, "\n\n".join(problems)


def test_what_is_wrong_with_a_command_is_noticed(tmp_path):
    lines = ["$ true", "$ echo one", "one", "$ echo two", "three", "$ false", "$ echo $?", "1", "$ echo 'error: no'"]
    runs = Sandbox(tmp_path, ()).run(list(parts_of("\n".join(["```console", *lines, "```"]))))
    assert [run.command.text for run in runs if wrong(run)] == ["echo two", "false", "echo 'error: no'"]


def test_dots_stand_for_text_and_for_lines(tmp_path):
    lines = ["$ seq 5", "1", "...", "5", "$ echo a b c", "a ... c", "$ seq 3", "1", "3"]
    text = "\n".join(["```console", *lines, "```", "<!-- test: output -->", "```", "2", "3", "```"])
    runs = Sandbox(tmp_path, ()).run(list(parts_of(text)))
    assert [run.command.text for run in runs if wrong(run)] == ["seq 3"]
    assert [shown.text for shown in runs[-1].quoted] == ["2\n3\n"]
