"""The diff for two columns: all lines, in order, with the rules that changed them."""

from __future__ import annotations

import pytest
from amp_migrate.notebook.source import NotebookSource
from amp_migrate.report.hunks import Fold, Hunk, compare
from amp_migrate.report.pages import page
from amp_migrate.report.syntax import as_html, highlighted
from amp_rules.plan.report import Edit
from amp_rules.source.spans import Position, Span
from hypothesis import given, settings
from hypothesis import strategies as st
from properties import examples
from samples import FIXTURES, migration

PROJECTS = ["runnable/gan_two_optimizers", "projects/teacher_student", "apex/imagenet_ddp", "AMP104/two_optimizers"]
texts = st.lists(st.sampled_from(["a", "b", "    a", "", "loss.backward()", "x = 1\t"]), max_size=12).map("\n".join)


def edit(line, code="AMP102", end=None):
    return Edit(None, Span(Position(line, 1), Position(end or line, 9)), code, "a-rule", f"message of {code}")


def rows(comparison):
    for part in comparison.parts:
        if isinstance(part, Fold):
            yield from part.rows
        else:
            for block in part.blocks:
                yield from block.rows


@given(before=texts, after=texts)
@settings(max_examples=examples(150), deadline=None)
def test_every_line_stands_once_and_in_order(before, after):
    found = compare(before, after, [])
    assert [row.old.number for row in rows(found) if row.old] == list(range(1, len(found.old) + 1))
    assert [row.new.number for row in rows(found) if row.new] == list(range(1, len(found.new) + 1))
    for part in found.parts:
        blocks = part.blocks if isinstance(part, Hunk) else ()
        same = [row for block in blocks if not block.changed for row in block.rows]
        same += part.rows if isinstance(part, Fold) else ()
        assert all(found.old[row.old.number - 1] == found.new[row.new.number - 1] for row in same)
        assert not blocks or any(block.changed for block in blocks)


@given(before=texts, after=texts)
@settings(max_examples=examples(150), deadline=None)
def test_what_is_not_marked_is_the_same_on_both_sides(before, after):
    found = compare(before, after, [])
    for row in rows(found):
        if row.old and row.new and (row.old.marks or row.new.marks):
            assert rest(found.old, row.old) == rest(found.new, row.new)


def rest(lines, line):
    text, kept, at = lines[line.number - 1], "", 0
    for start, end in line.marks:
        kept, at = kept + text[at:start], end
    return kept + text[at:]


def test_indentation_that_is_added_is_all_that_is_marked():
    found = compare("    loss = f(x)\n", "    with amp.autocast():\n        loss = f(x)\n", [])
    (_, pair) = (row for row in rows(found) if row.new)
    assert (pair.old.marks, pair.new.marks) == ((), ((0, 4),))


def test_a_hunk_names_the_rule_at_its_lines_and_no_other():
    before = "".join(f"line {number}\n" for number in range(40))
    after = before.replace("line 4\n", "line four\n").replace("line 30\n", "line thirty\n")
    found = compare(before, after, [edit(5, "AMP101"), edit(31, "AMP104")])
    assert [[label.code for label in hunk.labels] for hunk in found.hunks] == [["AMP101"], ["AMP104"]]


def test_what_is_put_before_a_loop_is_not_said_of_the_changes_in_it():
    before = "a = 1\n\nfor x in y:\n" + "    pass\n" * 10 + "    step()\n"
    after = before.replace("\nfor", "\nseed()\n\nfor").replace("step()", "scaler.step()")
    found = compare(before, after, [edit(3, "AMP208", end=14), edit(14, "AMP104")])
    assert [[label.code for label in hunk.labels] for hunk in found.hunks] == [["AMP208"], ["AMP104"]]


def test_one_thing_done_twice_in_a_hunk_is_said_once():
    found = compare("a\nb\n", "c\nd\n", [edit(1), edit(2)])
    assert [label.line for label in found.hunks[0].labels] == [1]


def test_a_version_of_another_author_has_hunks_without_labels():
    (hunk,) = compare("a\n", "b\n", []).hunks
    assert hunk.labels == ()


@pytest.mark.parametrize("name", PROJECTS)
def test_every_hunk_of_a_migration_is_labelled_and_every_edit_is_told(name):
    done = migration(FIXTURES / name, ddp=True)
    hunks = [hunk for file in page(done).files for hunk in file.hunks]
    assert hunks and all(hunk.labels for hunk in hunks)
    told = {(label.code, label.message) for hunk in hunks for label in hunk.labels}
    assert told == {(edit.code, edit.message) for report in done.run.reports for edit in report.edits}


def test_a_notebook_is_compared_cell_by_cell(tmp_path):
    import json

    cells = [
        [
            "import torch\n",
            "from torch import nn\n",
            "model = nn.Linear(2, 1)\n",
            "opt = torch.optim.SGD(model.parameters(), 0.1)",
        ],
        ["%matplotlib inline"],
        [
            "for _ in range(3):\n",
            "    loss = model(torch.ones(1, 2)).sum()\n",
            "    opt.zero_grad()\n",
            "    loss.backward()\n",
            "    opt.step()",
        ],
    ]
    document = {
        "cells": [
            {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": lines}
            for lines in cells
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps(document))
    done = migration(path)
    assert isinstance(done.run.updates[path].source, NotebookSource)
    (file,) = page(done).files
    assert [comparison.cell for comparison in file.comparisons] == [1, 3] and file.cells == 3
    assert {label.code for label in file.comparisons[1].hunks[0].labels} == {"AMP102", "AMP103", "AMP104"}


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=("Cs",))), max_size=6))
@settings(max_examples=examples(100), deadline=None)
def test_highlighting_loses_no_character(lines):
    assert ["".join(piece.text for piece in pieces) for pieces in highlighted(lines)] == (lines or [])


def test_a_string_over_several_lines_is_one():
    kinds = [[piece.kind for piece in pieces] for pieces in highlighted(['x = """a', "b = 1", '"""'])]
    assert kinds[1] == ["s"]


def test_marks_do_not_break_the_markup():
    (pieces,) = highlighted(["loss.backward()  # <b>"])
    assert as_html(pieces, [(0, 6)], "del") == ('<del>loss.b</del>ackward()  <span class="c"># &lt;b&gt;</span>')
