"""Every rule does to its fixtures what they show, and nothing else."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options
from amp_rules.plan.report import Report
from amp_rules.rewrites import all_rules
from amp_rules.source.modules import parse
from amp_rules.source.text import read_source
from amp_rules.text.applying import apply
from migrating import ENTRY, FIXTURES, Case, cases, declined_scripts, files_of, migrated, write
from turns import has_its_turn

CASES = cases()
DECLINED = declined_scripts()
MAX_NOTES = 5
"""More of them would not be read."""
DISTRIBUTED = ("migrated", "extended", "already")
LINE_ENDS = re.compile(rb"(?<=\n)|(?<=\r)(?!\n)")


def by_code(case: Case) -> object:
    """A fixture, with those of its rule on one worker: one file for all would keep the others waiting."""
    return pytest.param(case, id=str(case), marks=pytest.mark.xdist_group(f"fixtures of {case.code}"))


@dataclass(frozen=True)
class Migration:
    """A fixture in a folder of its own, what was reported about it, and all files as they come out."""

    case: Case
    folder: Path
    report: Report
    result: dict[str, bytes]


@pytest.mark.parametrize("case", list(map(by_code, CASES)))
def test_a_fixture_becomes_what_it_shows(case, tmp_path):
    """It is migrated once, and once more as it came out; all that must hold of both is looked at in turn."""
    folder = tmp_path / "project"
    migration = Migration(case, folder, *migrated(folder, case.before, case.options))
    the_result_is_as_shown(migration)
    the_rule_edits_its_cases_and_no_near_miss(migration)
    messages_are_one_line_and_spans_lie_in_the_file(migration)
    notes_on_several_processes_are_few(migration)
    if case.after != case.before:
        lines_that_no_edit_names_keep_their_bytes(migration)
        the_result_is_python(migration)
        # Of every fourth, where others have their turn with the next commit.
        if has_its_turn(str(case), 4):
            a_second_run_changes_nothing(migration)


def the_result_is_as_shown(migration: Migration) -> None:
    result, after = migration.result, migration.case.after
    assert result.keys() == after.keys()
    for name, wanted in after.items():
        assert result[name].decode().splitlines(True) == wanted.decode().splitlines(True), name
        assert result[name] == wanted


def the_rule_edits_its_cases_and_no_near_miss(migration: Migration) -> None:
    case, report = migration.case, migration.report
    assert (case.code in {edit.code for edit in report.edits}) is not case.is_noop
    if not case.is_noop:
        already = keeps_its_scaler(report)
        assert report.precision == ("already" if already else "migrated")
        own = {"AMP290"} if report.distribution == "already" else set()
        assert {refusal.code for refusal in report.refusals} <= own | ({"AMP190", "AMP197"} if already else set())


def keeps_its_scaler(report: Report) -> bool:
    """Whether the script has PyTorch's own mixed precision, which stays."""
    codes = {edit.code for edit in report.edits}
    return bool(codes & {"AMP411", "AMP414"}) and "AMP410" not in codes


def messages_are_one_line_and_spans_lie_in_the_file(migration: Migration) -> None:
    report = migration.report
    for edit in report.edits:
        rows = edit.path.read_text(encoding="utf-8").split("\n")
        assert edit.message and "\n" not in edit.message and not edit.message.endswith(".")
        assert 1 <= edit.span.start.line <= edit.span.end.line <= len(rows)
        assert 1 <= edit.span.start.column <= len(rows[edit.span.start.line - 1]) + 1
        assert edit.span.start < edit.span.end
    assert list(report.edits) == sorted(report.edits, key=lambda edit: (str(edit.path), edit.span, edit.code))


def notes_on_several_processes_are_few(migration: Migration) -> None:
    """Of one script, besides those on what was asked for; each file of a project may have some."""
    notes = [note.code for note in migration.report.notes if note.code.startswith("AMP28")]
    usual = [code for code in notes if code not in ("AMP285", "AMP286", "AMP287")]
    assert len(usual) <= MAX_NOTES or len(migration.case.before) > 1
    assert not notes or migration.case.options.ddp


def lines_that_no_edit_names_keep_their_bytes(migration: Migration) -> None:
    for name, before in migration.case.before.items():
        data = migration.result[name]
        named = named_lines(migration.report, migration.folder / name, before)
        kept = [line for number, line in enumerate(lines(before), 1) if number not in named]
        remaining = iter(lines(data))
        for line in kept:
            found = next((other for other in remaining if other.lstrip(b" \t") == line.lstrip(b" \t")), None)
            assert found is not None, f"{name} lost {line!r}, or holds it elsewhere"
            # What moves into a block is indented further, with the indentation that it had: a tab goes before spaces.
            kept_space, space = indentation(line), indentation(found)
            # A comment at the foot of a block comes along when the block goes left.
            at_foot = line.strip() == b"" or line.strip().startswith(b"#")
            assert space.startswith(kept_space) or space.endswith(b"\t" + kept_space) or at_foot
        # Words of the original are still there, other than those of lines that an edit names.
        words = Counter(word for line in kept for word in line.split())
        assert not words - Counter(data.split()), f"{name} lost words"


def the_result_is_python(migration: Migration) -> None:
    for name, data in migration.result.items():
        compile(data, name, "exec", dont_inherit=True)


def a_second_run_changes_nothing(migration: Migration) -> None:
    """Of what came out, which is what the fixture shows."""
    again, unchanged = migrated(migration.folder, migration.result, migration.case.options)
    assert again.changes == () and again.edits == () and unchanged == migration.result
    assert again.precision == "already"
    before = migration.report.distribution
    assert again.distribution == ("already" if before in DISTRIBUTED else "not requested")
    assert not any(note.code == "AMP180" for note in again.notes)


def named_lines(report: Report, path: Path, data: bytes) -> set[int]:
    """The lines of a file that the report's edits speak of."""
    spans = [edit.span for edit in report.edits if edit.path == path.resolve()]
    found = {line for span in spans for line in range(span.start.line, span.end.line + 1)}
    # An import at the head of a block takes the blank line below it along.
    rows = dict(enumerate(lines(data), 1))
    found |= {span.end.line + 1 for span in spans if not rows.get(span.end.line + 1, b"x").strip()}
    removed = {edit.span.start.line for edit in report.edits if edit.code == "AMP203"}
    for node in ast.walk(ast.parse(data.replace(b"async=True", b"a_sync=True"))):
        # A condition or a loop goes with the ``DataParallel`` that was alone in it, and so does a comment above that.
        if isinstance(node, ast.If | ast.For) and any(row in removed for row in heads(node)):
            found |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        # What is left to one process alone below a condition has it joined.
        if isinstance(node, ast.If) and not node.orelse and node.body[0].lineno in found:
            found |= set(range(node.lineno, (node.test.end_lineno or node.lineno) + 1))
        # Of ``x = f(\n  y\n)`` the last line is the edit's too; a call's end may gain an argument.
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and node.lineno in found:
            found.add(node.end_lineno or node.lineno)
    return found


def heads(node: ast.If | ast.For) -> list[int]:
    """The lines on which the statements of a block begin; those of the block that is alone in it."""
    only = node.body[0]
    return heads(only) if isinstance(only, ast.If | ast.For) else [item.lineno for item in node.body]


def lines(data: bytes) -> list[bytes]:
    # The last line may have no end of its own; that of the file stays as it is.
    return [line for line in LINE_ENDS.split(data) if line]


def indentation(line: bytes) -> bytes:
    return line[: len(line) - len(line.lstrip(b" \t"))]


# What does not parse: for another reason than ours, or before a rewrite of the text itself.
UNPARSED = {"AMP198", "AMP504"}
SCRIPTS = sorted(path for path in FIXTURES.rglob("*.py") if not UNPARSED & set(path.parts))


def of_a_rule(path: Path) -> str:
    """The folder of a rule's fixtures, or of those of one kind, that a script lies in."""
    parts = path.relative_to(FIXTURES).parts
    return "/".join(parts[: 1 if parts[0].startswith("AMP") else 2])


BY_RULE = {name: list(group) for name, group in groupby(SCRIPTS, key=of_a_rule)}


@pytest.mark.heavy
@pytest.mark.parametrize("folder", BY_RULE)
def test_rewriting_without_edits_gives_the_same_text(folder):
    for path in BY_RULE[folder]:
        source = read_source(path)
        assert apply(parse(source), []) == source.text, path
        assert source.encode(source.text) == source.data, path


def by_reason(path: Path) -> object:
    code = path.parent.name
    return pytest.param(path, id=f"{code}/{path.stem}", marks=pytest.mark.xdist_group(f"declined for {code}"))


@pytest.mark.parametrize("path", list(map(by_reason, DECLINED)))
def test_what_is_declined_says_where_and_leaves_no_trace(path, tmp_path):
    files = files_of(path) if path.is_dir() else {ENTRY: path.read_bytes()}
    options = declining(path)
    report, result = migrated(tmp_path / "project", files, options)
    what_is_declined_says_where(path, tmp_path / "project", files, report)
    if any(refusal.unit == "precision" for refusal in report.refusals):
        assert result == files and report.edits == ()
    if path.parent.name != "AMP590":
        assert report.distribution != "migrated", "the distribution was not declined"
        _, without = migrated(tmp_path / "project", files, replace(options, ddp=False))
        assert result == without


def what_is_declined_says_where(path: Path, folder: Path, files: dict[str, bytes], report: Report) -> None:
    expected = expected_refusals(files)
    assert path.parent.name in {code for code, _, _ in expected}
    found = {
        (refusal.code, str(refusal.path.relative_to(folder.resolve())), refusal.span.start.line)
        for refusal in report.refusals
        if refusal.span is not None
    }
    assert expected <= found
    # The distribution falls with the step; that needs no mark of its own.
    assert {code for code, _, _ in found - expected} <= {"AMP292", "AMP299"}
    for refusal in report.refusals:
        assert refusal.message and "\n" not in refusal.message
        # What a comment skips asks for nothing.
        assert refusal.recipe or refusal.message.startswith("skipped by `# amp: skip")
        if refusal.unit == "modern":
            continue  # a place of its own, which decides about nothing else
        outcome = report.precision if refusal.unit == "precision" else report.distribution
        assert outcome in ("declined", "already")


def declining(path: Path) -> Options:
    """With the idiom left to it alone, since the other way always works for Apex."""
    code = path.parent.name
    return Options(
        ddp=True,
        apex="idiom" if code in ("AMP490", "AMP499") else "auto",
        modernize=code == "AMP590",
        target="torch" if code == "AMP392" else "runtime",
        shard=code == "AMP295",
        shard_embeddings=1000 if code == "AMP298" else None,
    )


def expected_refusals(files: dict[str, bytes]) -> set[tuple[str, str, int]]:
    found = set()
    for name, data in files.items():
        for number, line in enumerate(data.decode().splitlines(), 1):
            _, mark, codes = line.partition("# declined:")
            if mark:
                found |= {(code.strip(), name, number) for code in codes.split(",")}
    return found


def test_migrating_twice_in_one_process_gives_the_same(tmp_path):
    case = Case(FIXTURES / "AMP104" / "two_optimizers")
    entry = write(tmp_path, case.before)
    assert migrate(entry, case.options) == migrate(entry, case.options)


def test_the_entry_may_be_given_as_a_relative_path(tmp_path, monkeypatch):
    case = Case(FIXTURES / "AMP101" / "module_without_imports")
    entry = write(tmp_path, case.before)
    monkeypatch.chdir(tmp_path)
    here = migrate(Path(ENTRY), case.options)
    assert [change.after for change in here.changes] == [
        change.after for change in migrate(entry, case.options).changes
    ]


def test_every_fixture_is_of_a_rule():
    assert {case.code for case in CASES} <= {rule.code for rule in all_rules()}
