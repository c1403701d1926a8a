"""Findings that are known already."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from amp_migrate.lint.baseline import Baseline, read_baseline, render_baseline
from amp_migrate.lint.diagnostics import Diagnostic
from amp_rules.lint.finding import Finding
from amp_rules.source.spans import Position, Span
from hypothesis import given, settings
from hypothesis import strategies as st
from properties import examples


def test_known_findings_are_not_reported_and_new_ones_are(write, invoke):
    write(a="fill(x, 1)\nlog(y)\n")
    done = invoke("a.py", "--write-baseline", "known.json")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "wrote 2 findings to known.json\n")
    done = invoke("a.py", "--baseline", "known.json")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "nothing found in 1 file (2 in the baseline)\n"
    write(a="import torch\n\nif x:\n    fill(x,  1)\nlog(y)\nlog(z)\n")
    done = invoke("a.py", "--baseline", "known.json", "--format", "concise")
    assert done.exit_code == 1
    assert [line.split(":")[1] for line in done.stdout.splitlines()] == ["6"]


def test_of_equal_findings_as_many_are_known_as_were_listed(write, invoke):
    write(a="log(y)\nlog(y)\n")
    invoke("a.py", "--write-baseline", "known.json")
    write(a="log(y)\nlog(y)\nlog(y)\n")
    done = invoke("a.py", "--baseline", "known.json", "--format", "concise")
    assert [line.split(":")[1] for line in done.stdout.splitlines()] == ["3"]


def test_stale_entries_are_mentioned_where_they_could_have_been_found(write, invoke):
    write(a="log(y)\n", b="log(y)\n")
    invoke(".", "--write-baseline", "known.json")
    write(a="x = 1\n")
    note = "note: known.json: 1 stale entry; --write-baseline renews it\n"
    assert note in invoke(".", "--baseline", "known.json").stderr
    assert "stale" not in invoke("b.py", "--baseline", "known.json").stderr
    for options in (["--select", "AMP7"], ["--opt-level", "O3"]):
        assert "stale" not in invoke(".", "--baseline", "known.json", *options).stderr
    assert note in invoke(".", "--baseline", "known.json", "--severity", "error").stderr


def test_paths_are_relative_to_the_baseline(write, invoke, monkeypatch, folder):
    write({"src/a.py": "log(y)\n"})
    (folder / "ci").mkdir()
    invoke("src", "--write-baseline", "ci/known.json")
    assert list(json.loads((folder / "ci/known.json").read_text())["files"]) == ["../src/a.py"]
    monkeypatch.chdir(folder / "src")
    assert invoke("a.py", "--baseline", "../ci/known.json").exit_code == 0


def test_writing_lists_what_another_baseline_knows_too(write, invoke):
    write({"pyproject.toml": '[tool.amp-lint]\nbaseline = "known.json"\n', "a.py": "log(y)\n", "known.json": ""})
    invoke("a.py", "--write-baseline", "known.json")
    before = Path("known.json").read_text()
    invoke("a.py", "--write-baseline", "known.json")
    assert Path("known.json").read_text() == before
    assert invoke("a.py").exit_code == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2, "files": {}}',
        '{"version": 1}',
        '{"version": 1, "files": {}}',
        '{"version": 1, "files": 3}',
    ],
)
def test_a_file_that_is_no_baseline_is_an_error(write, invoke, text):
    write({"a.py": "log(y)\n", "known.json": text})
    done = invoke("a.py", "--baseline", "known.json")
    assert done.exit_code == 2
    assert "error: known.json: is not a baseline" in done.stderr


def diagnostic(line, text, code="AMP601", path="/src/a.py"):
    finding = Finding(Path(path), Span(Position(line, 1), Position(line, 2)), code, "n", "error", "m", "O1")
    return Diagnostic(finding, {line: text})


BOTH = frozenset({"AMP601", "AMP602"})
LINES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=8)
ROWS = st.lists(st.tuples(st.integers(1, 50), LINES, st.sampled_from(["AMP601", "AMP602"])), max_size=8)


@settings(max_examples=examples(100), deadline=None)
@given(ROWS, st.integers(0, 20), st.booleans())
def test_a_baseline_survives_moved_and_indented_lines(tmp_path_factory, rows, moved, indented):
    path = tmp_path_factory.mktemp("baseline") / "known.json"
    path.write_text(render_baseline(path, "O1", [diagnostic(*row) for row in rows]), encoding="utf-8")
    baseline = read_baseline(path)
    indent = "    " if indented else ""
    later = [diagnostic(line + moved, indent + text, code) for line, text, code in rows]
    assert list(baseline.new(later)) == []
    assert baseline.stale(later, [Path("/src/a.py")], BOTH, "O1").total() == 0
    more = [*later, diagnostic(99, "something new")]
    assert len(list(baseline.new(more))) == 1
    assert baseline.stale([], [Path("/src/a.py")], BOTH, "O1").total() == len(rows)


@settings(max_examples=examples(100), deadline=None)
@given(ROWS)
def test_the_file_does_not_depend_on_the_order(rows):
    path = Path("/known.json")
    items = [diagnostic(*row) for row in rows]
    assert render_baseline(path, "O1", items) == render_baseline(path, "O1", items[::-1])
    assert Baseline(path).known.total() == 0
