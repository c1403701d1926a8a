"""The shape of what changes in fixtures/projects: few files, few lines, no signature. The runs are in test_proof."""

from __future__ import annotations

import ast
import difflib
from typing import Any

import pytest
from proofs import PROJECTS, Proofs, Script, all_scripts, param

pytestmark = pytest.mark.heavy

SCRIPTS = all_scripts(PROJECTS)


def scripts(keep: Any = lambda script: True) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("script", [param(script) for script in SCRIPTS if keep(script)])


@scripts()
def test_a_project_has_three_to_eight_files(script: Script) -> None:
    files = [path for path in script.folder.rglob("*.py") if path.stat().st_size]
    assert 3 <= len(files) <= 8


@scripts()
def test_only_the_stated_files_change(script: Script, proofs: Proofs) -> None:
    migrated = proofs.migrated(script)
    names = [change.path.relative_to(migrated.folder).as_posix() for change in migrated.report.changes]
    assert tuple(names) == tuple(sorted(script.changed))


@scripts(lambda script: bool(script.because))
def test_a_refusal_names_what_was_not_understood(script: Script, proofs: Proofs) -> None:
    messages = [refusal.message for refusal in proofs.migrated(script).report.refusals]
    assert any(script.because in message for message in messages), messages


@scripts(lambda script: script.precision == "absent")
def test_a_script_that_only_shares_modules_runs_as_before(script: Script, proofs: Proofs) -> None:
    original = proofs.original(script).check()
    for run in proofs.alone(script).values():
        assert run.check().stdout == original.stdout


@scripts()
def test_no_parameter_is_added_to_a_function(script: Script, proofs: Proofs) -> None:
    for change in proofs.migrated(script).report.changes:
        assert signatures(change.after) == signatures(change.before)


@scripts()
def test_lines_that_no_edit_names_stay_or_move_as_a_block(script: Script, proofs: Proofs) -> None:
    report = proofs.migrated(script).report
    for change in report.changes:
        named = {
            line
            for edit in report.edits
            if edit.path == change.path and edit.span is not None
            for line in range(edit.span.start.line, edit.span.end.line + 1)
        }
        # What is left to one process alone below a condition has it joined.
        tests = [node for node in ast.walk(ast.parse(change.before)) if isinstance(node, ast.If)]
        named |= {node.lineno for node in tests if not node.orelse and node.body[0].lineno in named}
        before, after = change.before.splitlines(), change.after.splitlines()
        for tag, start, end, new_start, new_end in difflib.SequenceMatcher(None, before, after, False).get_opcodes():
            if tag in ("replace", "delete"):
                added = {line.strip() for line in after[new_start:new_end]}
                lost = [index for index in range(start, end) if before[index].strip() not in added]
                assert not [before[index] for index in lost if index + 1 not in named]


def signatures(text: str) -> list[str]:
    return [
        f"{node.name}({ast.unparse(node.args)})"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
