"""How findings are printed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from amp_migrate.lint.diagnostics import Cells, Diagnostic, FileResult, Replacement, from_plain, to_plain
from amp_migrate.lint.lint_run import LintRun
from amp_migrate.out.lint import FORMATS, RenderOptions, full, load_format
from amp_migrate.problems import Problem
from amp_rules.lattice.mode import Mode
from amp_rules.lint.finding import Finding, Fix, TextEdit
from amp_rules.source.spans import Position, Span
from hypothesis import given, settings
from hypothesis import strategies as st
from properties import examples
from sarif_subset import check_sarif

TEXT = """\
import torch

def f(x):
    变量 = "中文", fill(x, log(z))
    half(x)  # gone
    return log(
        x
    )

def bare(x):
\tpass
"""


@pytest.fixture
def printed(write, invoke):
    """Print the findings of a text in one of the formats."""

    def call(text, output_format, name="a.py", **options):
        write({name: text})
        return invoke(name, "--format", output_format, "-q", **options).stdout

    return call


def test_full_shows_the_source_the_mode_the_advice_and_the_fix(printed):
    assert printed(TEXT, "full") == (
        "a.py:4:16: AMP601 [const-overflow-fill] [*] `fill(x, log(z))` is wrong\n"
        "3 | def f(x):\n"
        '4 |     变量 = "中文", fill(x, log(z))\n'
        "  |                    ^^^^^^^^^^^^^^^\n"
        "5 |     half(x)  # gone\n"
        "  = mode: O1 fp16 cuda\n"
        "  = fix: use finfo (--fix applies it)\n"
        '      - 变量 = "中文", fill(x, log(z))\n'
        '      + 变量 = "中文", full(x)\n'
        "\n"
        "a.py:4:24: AMP602 [log-of-zero] `log(z)` is wrong\n"
        "3 | def f(x):\n"
        '4 |     变量 = "中文", fill(x, log(z))\n'
        "  |                            ^^^^^^\n"
        "5 |     half(x)  # gone\n"
        "  = mode: O1 fp16 cuda\n"
        "  = help: Add an eps.\n"
        "  = fix: add eps (unsafe: read it, then --fix --unsafe-fixes applies it)\n"
        '      - 变量 = "中文", fill(x, log(z))\n'
        '      + 变量 = "中文", fill(x, log(z + eps))\n'
        "\n"
        "a.py:5:5: AMP701 [needless-half] [*] `half(x)` is wrong\n"
        '4 |     变量 = "中文", fill(x, log(z))\n'
        "5 |     half(x)  # gone\n"
        "  |     ^^^^^^^\n"
        "6 |     return log(\n"
        "  = mode: O1 fp16 cuda\n"
        "  = fix: remove it (--fix applies it)\n"
        "      - half(x)  # gone\n"
        "\n"
        "a.py:6:12: AMP602 [log-of-zero] `log(x)` is wrong\n"
        "5 |     half(x)  # gone\n"
        "6 |     return log(\n"
        "  |            ^^^^\n"
        "7 |         x\n"
        "  |         ^\n"
        "8 |     )\n"
        "  |     ^\n"
        "9 |\n"
        "  = mode: O1 fp16 cuda\n"
        "  = help: Add an eps.\n"
        "  = fix: add eps (unsafe: read it, then --fix --unsafe-fixes applies it)\n"
        "      - x\n"
        "      + x + eps\n"
        "\n"
        "a.py:10:1: AMP801 [undecorated] [*] `def bare(x):\\n    pass` is wrong\n"
        " 9 |\n"
        "10 | def bare(x):\n"
        "   | ^^^^^^^^^^^^\n"
        "11 |     pass\n"
        "   |     ^^^^\n"
        "12 |\n"
        "  = mode: O1 fp16 cuda\n"
        "  = fix: decorate it (--fix applies it)\n"
        "      + from t import keep\n"
        "      + @keep\n"
        "\n"
    )


def test_long_findings_are_shortened(printed):
    body = "".join(f"    x{number} = 1\n" for number in range(40))
    lines = printed(f"def bare(x):\n{body}", "full").splitlines()
    assert lines[1] == " 1 | def bare(x):"
    assert "   ..." in lines
    assert " 41 |     x39 = 1"[1:] in lines
    assert len(lines) < 25


def test_a_file_without_a_last_newline_and_with_odd_line_ends_is_shown(printed):
    assert "2 | fill(x, 1)\n  | ^^^^^^^^^^\n" in printed("x = 1\r\nfill(x, 1)", "full")
    assert "1 | fill('\\x0c', 1)\n" in printed("fill('\x0c', 1)\n", "full")


def test_json_holds_everything(printed):
    document = json.loads(printed("fill(x, 1)\nlog(y)\n", "json"))
    assert document["version"] == 1
    assert document["findings"][0] == {
        "code": "AMP601",
        "name": "const-overflow-fill",
        "severity": "error",
        "message": "`fill(x, 1)` is wrong",
        "file": "a.py",
        "start": {"line": 1, "column": 1},
        "end": {"line": 1, "column": 11},
        "mode": "O1 fp16 cuda",
        "fix": {
            "title": "use finfo",
            "safety": "safe",
            "edits": [
                {
                    "kind": "replace",
                    "start": {"line": 1, "column": 1},
                    "end": {"line": 1, "column": 11},
                    "text": "full(x)",
                }
            ],
        },
        "advice": "",
    }
    assert document["summary"]["by_code"] == {"AMP601": 1, "AMP602": 1}
    assert document["summary"]["findings"] == document["summary"]["fixable"] == 2


def test_json_holds_the_problems(write, invoke):
    write({"bad.py": "x = (\n"})
    document = json.loads(invoke("bad.py", "--format", "json").stdout)
    assert document["problems"] == [
        {"file": "bad.py", "line": 1, "column": 5, "message": "syntax error: '(' was never closed"}
    ]


def test_github_commands_are_escaped(printed):
    assert printed("fill('a%,:\\n', 1)\n", "github", name="a,b.py") == (
        "::error file=a%2Cb.py,line=1,col=1,endLine=1,endColumn=18,title=AMP601 const-overflow-fill::"
        "`fill('a%25,:\\n', 1)` is wrong\n"
    )
    assert printed("half(x)\n", "github").startswith("::notice ")
    assert printed("log(\n  x)\n", "github").startswith("::warning file=a.py,line=1,endLine=2,title=")


def test_two_edits_of_a_line_are_shown_as_one_change():
    source = {1: "import a", 2: "", 3: "x = fill(log(z), y)", 4: "half(", 5: "    x)"}
    edits = [(3, 5, 3, 9, "full"), (1, 1, 2, 1, ""), (3, 10, 3, 16, "z"), (4, 1, 4, 6, "("), (5, 6, 5, 7, " )")]
    patch = [Replacement(Span(Position(a, b), Position(c, d)), text) for a, b, c, d, text in edits]
    shown = list(full._diff(SimpleNamespace(lines=source, patch=patch)))
    assert shown == [
        ("-", "import a"),
        *[("-", "x = fill(log(z), y)"), ("+", "x = full(z, y)")],
        *[("-", "half("), ("+", "(")],
        *[("-", "    x)"), ("+", "    x )")],
    ]


def test_gitlab_fingerprints_survive_moved_lines_and_differ(printed):
    before = json.loads(printed("log(y)\nlog(y)\nfill(x, 1)\n", "gitlab"))
    after = json.loads(printed("import torch\n\nlog(y)\nlog(y)\nfill(x, 1)\n", "gitlab"))
    assert [item["fingerprint"] for item in before] == [item["fingerprint"] for item in after]
    assert len({item["fingerprint"] for item in before}) == 3
    assert [item["severity"] for item in before] == ["major", "major", "critical"]
    assert after[0]["location"] == {
        "path": "a.py",
        "positions": {"begin": {"line": 3, "column": 1}, "end": {"line": 3, "column": 7}},
    }


def test_rdjson_counts_bytes(printed):
    first = json.loads(printed(TEXT, "rdjson"))["diagnostics"][0]
    line = TEXT.splitlines()[3].encode()
    start, end = (first["location"]["range"][key]["column"] for key in ("start", "end"))
    assert line[start - 1 : end - 1] == b"fill(x, log(z))"
    (suggestion,) = first["suggestions"]
    assert suggestion["text"] == "full(x)"
    assert suggestion["range"] == first["location"]["range"]


def test_sarif_is_valid_and_complete(write, invoke):
    write({"sub dir/a b.py": TEXT, "bad.py": "x = (\n"})
    done = invoke("sub dir", "bad.py", "--format", "sarif")
    (run,) = check_sarif(done.stdout)["runs"]
    assert run["columnKind"] == "unicodeCodePoints"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["AMP601", "AMP602", "AMP701", "AMP801"]
    result = run["results"][0]
    physical = result["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"] == {"uri": "sub%20dir/a%20b.py", "uriBaseId": "SRCROOT"}
    assert physical["region"] == {"startLine": 4, "startColumn": 16, "endLine": 4, "endColumn": 31}
    assert (result["ruleId"], result["ruleIndex"], result["level"]) == ("AMP601", 0, "error")
    (replacement,) = result["fixes"][0]["artifactChanges"][0]["replacements"]
    assert replacement["insertedContent"] == {"text": "full(x)"}
    assert not run["invocations"][0]["executionSuccessful"]


# ---- any finding ---------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
LINE_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12)


@st.composite
def spans(draw):
    line, column = draw(st.integers(1, 30)), draw(st.integers(1, 14))
    below = draw(st.integers(0, 12))
    return Span(Position(line, column), Position(line + below, column + draw(st.integers(0, 5))))


@st.composite
def diagnostics(draw):
    span = draw(spans())
    edits = st.builds(TextEdit, st.sampled_from(["replace", "remove", "import"]), spans(), TEXTS)
    fix = draw(st.none() | st.builds(Fix, TEXTS, st.sampled_from(["safe", "unsafe"]), st.tuples(edits)))
    finding = Finding(
        Path.cwd() / draw(st.sampled_from(["a.py", "b c.py", "中.py", "d,:%.py"])),
        span,
        draw(st.sampled_from(["AMP601", "AMP602"])),
        "a-name",
        draw(st.sampled_from(["error", "warning", "performance", "info"])),
        draw(TEXTS),
        "O1 fp16 cuda",
        fix,
        draw(TEXTS),
    )
    numbers = range(max(1, span.start.line - 1), span.end.line + 2)
    lines = {number: draw(LINE_TEXTS) for number in numbers}
    patch = draw(st.none() | st.tuples(st.builds(Replacement, spans(), TEXTS))) if fix else None
    cells = draw(st.none() | st.just(Cells((2, 5), (1, 8))))
    return Diagnostic(finding, lines, patch, cells)


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(diagnostics(), max_size=4), st.booleans())
def test_any_findings_give_valid_documents(items, colour):
    run = LintRun(Mode(), (), items, [Problem(Path.cwd() / "x.py", "odd \x00\n", 3)] if colour else [])
    texts = {name: "".join(load_format(name).render(run, RenderOptions(colour))) for name in FORMATS}
    assert len(json.loads(texts["json"])["findings"]) == len(items)
    assert len(json.loads(texts["gitlab"])) == len({item["fingerprint"] for item in json.loads(texts["gitlab"])})
    assert len(json.loads(texts["rdjson"])["diagnostics"]) == len(items)
    assert len(check_sarif(texts["sarif"])["runs"][0]["results"]) == len(items)
    assert texts["github"].count("\n") == len(items) == texts["github"].count("::") // 2 or "::" in texts["github"]
    assert texts["concise"].count("\n") == len(items)
    allowed = "\x1b\n" if colour else "\n"
    assert all(char.isprintable() or char in allowed + "\t" for char in texts["full"] + texts["concise"])


@settings(deadline=None, max_examples=examples(40))
@given(diagnostics())
def test_byte_columns_are_those_of_the_encoded_line(item):
    position = item.finding.span.start
    line = item.lines[position.line]
    if position.column <= len(line) + 1:
        assert item.byte_column(position) == len(line[: position.column - 1].encode()) + 1


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(diagnostics(), max_size=3))
def test_what_is_stored_comes_back(items):
    path = Path.cwd() / "a.py"
    cells = items[0].cells if items else None
    kept = tuple(
        Diagnostic(Finding(**{**vars(item.finding), "path": path}), item.lines, item.patch, cells) for item in items
    )
    problem = Problem(path, "m", 1, None, "", 2)
    result = FileResult(path, kept, problem)
    assert from_plain(path, "O1 fp16 cuda", json.loads(json.dumps(to_plain(result)))) == result
