"""What review tools are given of a migration: annotations, SARIF, and suggestions that add up to the migrated file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from amp_migrate.out.migration_remarks import FORMATS, render
from amp_migrate.problems import Problem
from amp_migrate.run.migration import Run, Update
from amp_rules.plan.report import Edit, Refusal, Report
from amp_rules.source.spans import Position, Span
from amp_rules.source.text import source_from_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from properties import examples
from sarif_subset import check_sarif
from suggestions import apply_rdjson, apply_sarif

pytestmark = pytest.mark.heavy

FIXTURES = Path(__file__).parents[2] / "fixtures"
TRAIN = (FIXTURES / "runnable/flat_convnet/train.py").read_bytes()
BOM = b"\xef\xbb\xbf"
VARIANTS = {
    "as it is": lambda data: data,
    "carriage returns": lambda data: data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
    "no last newline": lambda data: data.rstrip(b"\r\n"),
    "a byte order mark": lambda data: BOM + data,
    "tabs": lambda data: data.replace(b"    ", b"\t"),
    "Chinese names": lambda data: re.sub(rb"\b(model|loss|optimizer)\b", "变量\\1".encode(), data),
    "all at once": lambda data: (
        BOM
        + re.sub(rb"\b(model|loss)\b", "变量\\1".encode(), data.replace(b"    ", b"\t")).replace(b"\n", b"\r\n")[:-2]
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("script", ["runnable/flat_convnet", "runnable/gan_two_optimizers"])
def test_all_suggestions_together_are_the_migrated_file(folder, invoke, script, variant):
    before = VARIANTS[variant]((FIXTURES / script / "train.py").read_bytes())
    (folder / "train.py").write_bytes(before)
    done = invoke("train.py", "--ddp", "-o", "migrated", "--format", "rdjson", "-q")
    after = (folder / "migrated/train.py").read_bytes()
    diagnostics = json.loads(done.stdout)["diagnostics"]
    assert len([item for item in diagnostics if "suggestions" in item]) > 2
    assert apply_rdjson(before, diagnostics) == after != before
    (run,) = check_sarif(invoke("train.py", "--ddp", "--format", "sarif", "-q").stdout)["runs"]
    assert apply_sarif(before.decode("utf-8-sig"), run["results"]) == after.decode("utf-8-sig")


def test_suggestions_of_a_project_are_those_of_each_file(folder, invoke, fixture):
    fixture("projects/shared_entries", "project")
    done = invoke("project", "--ddp", "-o", "migrated", "--format", "rdjson", "-q")
    diagnostics = json.loads(done.stdout)["diagnostics"]
    changed = sorted({item["location"]["path"] for item in diagnostics if "suggestions" in item})
    assert changed == [
        "project/common/checkpoint.py",
        "project/common/loop.py",
        "project/finetune.py",
        "project/train.py",
    ]
    for name in changed:
        mine = [item for item in diagnostics if item["location"]["path"] == name]
        after = (folder / "migrated" / Path(name).relative_to("project")).read_bytes()
        assert apply_rdjson((folder / name).read_bytes(), mine) == after


def test_a_suggestion_is_a_hunk_of_the_diff_and_names_its_rules(folder, invoke):
    (folder / "train.py").write_bytes(TRAIN)
    diff = invoke("train.py", "--ddp", "-q").stdout
    edits = json.loads(invoke("train.py", "--ddp", "-q", "--format", "json").stdout)["edits"]
    diagnostics = json.loads(invoke("train.py", "--ddp", "-q", "--format", "rdjson").stdout)["diagnostics"]
    # A note is remarked at its place, and suggests nothing.
    assert len([item for item in diagnostics if "suggestions" in item]) == diff.count("\n@@ ") > 3
    messages = "\n".join(item["message"] for item in diagnostics)
    assert all(edit["message"] in messages for edit in edits)
    step = next(item for item in diagnostics if "scaled-backward" in item["message"])
    assert "AMP104 scaler-step: " in step["message"] and step["code"] == {"value": "AMP102"}
    assert "amp.scaler.scale(loss).backward()" in step["suggestions"][0]["text"]


def test_the_last_line_of_a_suggestion_is_the_last_that_changes(folder, invoke):
    (folder / "train.py").write_bytes(TRAIN)
    lines = TRAIN.decode().splitlines()
    for item in json.loads(invoke("train.py", "-q", "--format", "rdjson").stdout)["diagnostics"]:
        (suggestion,) = item["suggestions"]
        start, end = suggestion["range"]["start"], suggestion["range"]["end"]
        old = lines[start["line"] - 1 : end["line"]] if start != end else []
        new = suggestion["text"].splitlines()
        if old:
            assert old[0] != new[0] and old[-1] != new[-1]
            assert end["column"] == len(lines[end["line"] - 1].encode()) + 1


def test_a_file_in_another_encoding_has_no_suggestions_but_is_remarked(folder, invoke):
    text = "# -*- coding: gbk -*-\n" + TRAIN.decode().replace("loss", "损失")
    (folder / "train.py").write_bytes(text.encode("gbk"))
    diagnostics = json.loads(invoke("train.py", "-q", "--format", "rdjson").stdout)["diagnostics"]
    assert len(diagnostics) > 2 and not any("suggestions" in item for item in diagnostics)
    (run,) = check_sarif(invoke("train.py", "-q", "--format", "sarif").stdout)["runs"]
    invoke("train.py", "-w", "--allow-dirty")
    assert apply_sarif(text, run["results"]).encode("gbk") == (folder / "train.py").read_bytes()


# ---- GitHub --------------------------------------------------------------------------------------------------


def commands(text):
    """The workflow commands of an output: level, properties, message."""
    found = []
    for line in text.splitlines():
        level, listed, message = re.fullmatch(r"::(\w+) (.*?)::(.*)", line).groups()
        found.append((level, dict(item.split("=", 1) for item in listed.split(",")), message))
    return found


def test_github_shows_errors_refusals_and_hunks_in_this_order(folder, invoke, fixture):
    fixture("runnable/lbfgs_closure", "closure")
    fixture("runnable/flat_convnet", "plain")
    (folder / "bad.py").write_text("x = (\n")
    done = invoke("bad.py", "closure", "plain", "--check", "--format", "github")
    assert done.exit_code == 2
    found = commands(done.stdout)
    assert [level for level, _, _ in found[:2]] == ["error", "warning"]
    assert {level for level, _, _ in found[2:]} == {"notice"}
    assert found[0][1] == {
        "file": "bad.py",
        "line": "1",
        "col": "5",
        "endLine": "1",
        "endColumn": "5",
        "title": "amp-migrate",
    }
    assert found[0][2] == "syntax error: '(' was never closed"
    _, properties, message = found[1]
    assert (properties["file"], properties["title"]) == ("closure/train.py", "AMP191 optimizer-closure")
    reason, recipe = message.split("%0A")
    assert "the loss scale could change in between" in reason and recipe.startswith("keep this optimizer in FP32")
    # What a migration consists of comes first, and the import that it needs last.
    assert "AMP102" in found[2][1]["title"] and found[-1][1]["title"] == "AMP101 init"


def test_github_shows_something_of_every_file_before_more_of_one(invoke, fixture):
    for name in ("a", "b", "c"):
        fixture("runnable/flat_convnet", name)
    files = [properties["file"] for _, properties, _ in commands(invoke(".", "--format", "github").stdout)]
    assert files[:3] == ["a/train.py", "b/train.py", "c/train.py"] == files[3:6]


def test_github_messages_are_escaped(folder, invoke):
    name = "50%, a:b.py"
    (folder / name).write_bytes(TRAIN.replace(b"model(images)", b"model(images * 100 % 7)"))
    done = invoke(name, "--format", "github")
    assert all(line.startswith("::notice file=50%25%2C a%3Ab.py,line=") for line in done.stdout.splitlines())
    assert "images * 100 %25 7" in done.stdout


# ---- SARIF ---------------------------------------------------------------------------------------------------


def test_sarif_has_the_pages_of_its_rules_and_the_problems(folder, invoke, fixture):
    fixture("runnable/lbfgs_closure", "sub dir")
    (folder / "train.py").write_bytes(TRAIN)
    (folder / "bad.py").write_text("x = (\n")
    (run,) = check_sarif(invoke("bad.py", "train.py", "sub dir", "--format", "sarif").stdout)["runs"]
    rules = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    assert rules["AMP102"]["defaultConfiguration"]["level"] == "note"
    assert rules["AMP191"]["defaultConfiguration"]["level"] == "warning"
    assert "## What it does" in rules["AMP102"]["help"]["markdown"]
    assert "## Why" in rules["AMP191"]["help"]["markdown"]
    assert {result["level"] for result in run["results"]} == {"note", "warning"}
    assert all(run["tool"]["driver"]["rules"][item["ruleIndex"]]["id"] == item["ruleId"] for item in run["results"])
    refusal = next(item for item in run["results"] if item["level"] == "warning")
    artifact = refusal["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "sub%20dir/train.py", "uriBaseId": "SRCROOT"}
    (invocation,) = run["invocations"]
    assert not invocation["executionSuccessful"]
    assert invocation["toolExecutionNotifications"][0]["message"]["text"] == "syntax error: '(' was never closed"


def test_fingerprints_survive_moved_lines(folder, invoke):
    def fingerprints(data):
        (folder / "train.py").write_bytes(data)
        (run,) = json.loads(invoke("train.py", "--format", "sarif", "-q").stdout)["runs"]
        return [item["partialFingerprints"]["ampMigrate/v1"] for item in run["results"]]

    before = fingerprints(TRAIN)
    head, rest = TRAIN.split(b"# Configuration\n")
    assert fingerprints(head + b"# More\n\n\n\n# Configuration\n" + rest) == before
    assert len(set(before)) == len(before) > 2


# ---- what is said of what ------------------------------------------------------------------------------------


@pytest.mark.parametrize("output_format", FORMATS)
def test_nothing_is_said_of_what_is_done_or_kept_on_request(folder, invoke, fixture, output_format):
    fixture("runnable/already_amp", "already")
    (folder / "kept.py").write_bytes(b"# amp: skip\n" + TRAIN)
    done = invoke("already", "kept.py", "--ddp", "--format", output_format)
    told = {"github": lambda text: text.splitlines(), "rdjson": lambda text: json.loads(text)["diagnostics"]}
    find = told.get(output_format, lambda text: json.loads(text)["runs"][0]["results"])
    paths = [str(item) for item in find(done.stdout)]
    assert not any("kept.py" in item for item in paths)
    assert "AMP190" not in done.stdout


@pytest.mark.parametrize("output_format", FORMATS)
def test_in_a_notebook_the_message_tells_the_cell(folder, invoke, output_format):
    cells = [{"cell_type": "markdown", "metadata": {}, "source": ["# Title"]}]
    cells += [
        {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": part}
        for part in re.split(r"(?m)^(?=def main)", TRAIN.decode())
    ]
    document = {"cells": cells, "metadata": {"language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 4}
    (folder / "train.ipynb").write_text(json.dumps(document))
    done = invoke("train.ipynb", "--format", output_format, "-q")
    assert done.exit_code == 0
    assert "train.ipynb:cell 2:" in done.stdout
    if output_format == "github":
        assert {properties["line"] for _, properties, _ in commands(done.stdout)} == {"1"}
    elif output_format == "rdjson":
        for item in json.loads(done.stdout)["diagnostics"]:
            assert item["location"] == {"path": "train.ipynb"} and "suggestions" not in item
    else:
        for item in check_sarif(done.stdout)["runs"][0]["results"]:
            assert set(item["locations"][0]["physicalLocation"]) == {"artifactLocation"} and "fixes" not in item


def test_standard_input_has_the_name_that_it_is_given(invoke):
    text = TRAIN.replace(b"Train a small", "训练 a small".encode())
    done = invoke("-", "--stdin-filename", "there/train.py", "--format", "rdjson", "-q", input=text)
    diagnostics = json.loads(done.stdout)["diagnostics"]
    assert {item["location"]["path"] for item in diagnostics} == {"there/train.py"}
    migrated = invoke("-", "--stdin-filename", "there/train.py", "-w", "-q", input=text).stdout_bytes
    assert apply_rdjson(text, diagnostics) == migrated


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_document_and_the_text_do_not_share_standard_output(folder, invoke, output_format):
    (folder / "train.py").write_bytes(TRAIN)
    done = invoke("train.py", "-o", "-", "--format", output_format)
    assert done.exit_code == 2 and f"--format {output_format}" in done.stderr
    assert invoke("--undo", "--format", output_format).exit_code == 2


# ---- any change ----------------------------------------------------------------------------------------------

LINES = st.sampled_from(["a", "b = 1", "\tc", "变量 = '中文'", "", "x\x0cy", "\u2028", "lone\rreturn", "😀"])
TEXTS = st.lists(st.tuples(LINES, st.sampled_from(["\n", "\n", "\r\n"])), max_size=24)


@st.composite
def updates(draw):
    """A text before and after, the latter made of the former or altogether new."""
    before = draw(TEXTS)
    after = list(before)
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(after)))
        after[at : at + draw(st.integers(0, 3))] = draw(TEXTS)[:3]
    texts = ["".join(line + end for line, end in lines) for lines in (before, after)]
    texts = [text.rstrip("\r\n") if draw(st.booleans()) else text for text in texts]
    mark = draw(st.sampled_from([b"", BOM]))
    return tuple(mark + text.encode() for text in texts)


@settings(deadline=None, max_examples=examples(300))
@given(updates(), st.lists(st.integers(1, 30), max_size=4), st.booleans())
def test_the_suggestions_of_any_change_make_it(update, lines, broken):
    path = Path.cwd() / "a.py"
    before, after = (source_from_bytes(data, path) for data in update)
    spans = [Span(Position(line, 1), Position(line, 2)) for line in lines]
    edits = tuple(Edit(path, span, "AMP102", "autocast-region", "runs under autocast") for span in spans)
    refusals = tuple(Refusal(path, span, "AMP196", "unknown-model", "precision", "why\r\n", "how") for span in spans)
    report = Report(path, "migrated", "not requested", (), edits, refusals)
    changed = {path: Update(before, after.text, after.data)} if before.data != after.data else {}
    problems = [Problem(path, "odd \x00\n", 3)] if broken else []
    run = Run([report], changed, problems)
    texts = {name: "".join(render(run, name)) for name in FORMATS}
    diagnostics = json.loads(texts["rdjson"])["diagnostics"]
    assert apply_rdjson(before.data, diagnostics) == after.data
    assert apply_sarif(before.text, check_sarif(texts["sarif"])["runs"][0]["results"]) == after.text
    assert len(commands(texts["github"])) == len(diagnostics)
