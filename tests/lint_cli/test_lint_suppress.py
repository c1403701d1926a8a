"""Comments that suppress findings."""

from __future__ import annotations

from pathlib import Path

import pytest
from amp_migrate.lint.catalogue import UNUSED_SUPPRESSION
from amp_migrate.lint.patches import apply_patch
from amp_migrate.lint.suppress import Asked, find_suppressions, suppress, suppression_of
from amp_rules.lint.finding import Finding
from amp_rules.source.spans import Position, Span
from amp_rules.source.text import source_from_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from lint_standin import CHECKS
from properties import examples

NAMES = {check.code: check.name for check in (*CHECKS, UNUSED_SUPPRESSION)}
ASKED = Asked(("AMP601", "AMP602", "AMP701", "AMP980"), NAMES, True, "O1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fill(x, 1)  # amp: ignore[AMP601]\n", []),
        ("fill(x, 1)  # amp: ignore[AMP601] because it is tested\n", []),
        ("fill(x, 1)  # amp: ignore[const-overflow-fill]\n", []),
        ("fill(x, 1)  # amp: ignore[AMP602, AMP601]\n", ["AMP980"]),
        ("fill(x, 1)  # amp: ignore[amp6]\n", []),
        ("fill(x, 1)  # amp: ignore\n", []),
        ("fill(x, 1)  #amp:ignore\n", []),
        ("fill(x, 1)  # type: ignore  # amp: ignore[AMP601]  # pylint: disable=x\n", []),
        ("fill(x, 1)  # noqa\n", []),
        ("fill(x, 1)  # NOQA: AMP601\n", []),
        ("fill(x, 1)  # noqa: E501, AMP601\n", []),
        ("fill(x, 1)  # noqa: E501,W291\n", ["AMP601"]),
        ("fill(x, 1)  # noqa:AMP601 said why\n", []),
        ("fill(x, 1)  # amp: ignore[AMP602]\n", ["AMP601", "AMP980"]),
        ("fill(x, 1)  # amp: ignored\n", ["AMP601"]),
        ("fill(x, 1)  # noqable\n", ["AMP601"]),
        ("fill('# amp: ignore', 1)\n", ["AMP601"]),
        ("fill(x, 1)\n# amp: ignore[AMP601]\n", ["AMP601", "AMP980"]),
        ("fill(\n    x,\n    1,\n)  # amp: ignore[AMP601]\n", []),
        ("fill(  # amp: ignore[AMP601]\n    x,\n    1,\n)\n", []),
        ("fill(\n    x,  # amp: ignore[AMP601]\n    1,\n)\n", []),
        ("y = [\n    fill(x, 1),\n    log(x),  # amp: ignore[AMP6]\n]\n", ["AMP601"]),
        ("y = [\n    fill(x, 1),\n    log(x),\n]  # amp: ignore[AMP6]\n", []),
        ("def bare(x):  # amp: ignore[AMP801]\n    pass\n", []),
        ("def bare(\n    x,\n):  # amp: ignore[AMP801]\n    pass\n", []),
        ("def bare(x):\n    pass  # amp: ignore[AMP801]\n", ["AMP801", "AMP980"]),
        ("# amp: ignore-file[AMP601]\nfill(x, 1)\nlog(x)\n", ["AMP602"]),
        ("#!/usr/bin/python\n'''Doc.'''\n# amp: ignore-file\nfill(x, 1)\nlog(x)\n", []),
        ("fill(x, 1)\n# amp: ignore-file\n", ["AMP601", "AMP980"]),
        ("x = 1  # amp: ignore[AMP601]\n", ["AMP980"]),
        ("x = 1  # amp: ignore[AMP901]\n", []),
        ("x = 1  # amp: ignore[AMP650]\n", []),
        ("x = 1  # noqa: AMP601\n", []),
        ("x = 1  # amp: ignore\n", ["AMP980"]),
        ("x = 1  # amp: ignore[AMP601, AMP980]\n", []),
        ("x = 1  # amp: ignore[NOPE]\n", ["AMP980"]),
        ("x = '''\n# amp: ignore[AMP601]\n'''\n", []),
        ("fill(x, 1)  # 中文 amp: ignore # amp: ignore[AMP601]\r\n", []),
    ],
)
def test_a_comment_suppresses_what_it_names_on_its_statement(write, invoke, text, expected):
    write(a=text)
    done = invoke("a.py", "--format", "concise", "--no-cache")
    assert [line.split()[1] for line in done.stdout.splitlines()] == expected


def test_the_message_names_the_idle_codes(write, invoke):
    write(a="x = 1  # amp: ignore[AMP601, log-of-zero, NOPE]\ny = 1  # amp: ignore\n")
    done = invoke("a.py", "--format", "concise")
    assert (
        "a.py:1:8: AMP980 [unused-suppression] [*] this comment suppresses no AMP601, log-of-zero; no rule"
        in done.stdout
    )
    assert "no rule is called nope" in done.stdout
    assert "a.py:2:8: AMP980 [unused-suppression] [*] this comment suppresses nothing" in done.stdout


def test_only_rules_that_were_asked_are_judged(write, invoke):
    write(a="x = 1  # amp: ignore[AMP601]\ny = 1  # amp: ignore\n")
    assert invoke("a.py", "--select", "AMP7,AMP980").exit_code == 0
    assert invoke("a.py", "--ignore", "AMP980").exit_code == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1  # amp: ignore[AMP601]\n", "x = 1\n"),
        ("x = 1  # amp: ignore[AMP601] reason  # type: ignore\n", "x = 1  # type: ignore\n"),
        ("x = 1  # type: ignore  # amp: ignore\n", "x = 1  # type: ignore\n"),
        ("if x:\n    # amp: ignore[AMP601]\n    y = 1\n", "if x:\n    y = 1\n"),
        ("x = 1  # amp: ignore", "x = 1"),
        ("x = 1\r\n# amp: ignore-file\r\ny = 1\r\n", "x = 1\r\ny = 1\r\n"),
    ],
)
def test_an_idle_comment_can_be_removed(write, invoke, before, after):
    path = write(a=before)
    assert invoke("a.py", "--fix").exit_code == 0
    assert path.read_bytes().decode() == after


def test_files_without_comments_are_not_tokenized(monkeypatch):
    monkeypatch.setattr("tokenize.generate_tokens", None)
    source = source_from_bytes(b"fill(x, 1)  # nothing\n", Path("a.py"))
    finding = Finding(Path("a.py"), Span(Position(1, 1), Position(1, 11)), "AMP601", "n", "error", "m", "O1")
    assert suppress(source, [finding], ASKED).findings == (finding,)
    assert suppress(source_from_bytes(b"x  # noqa\n", Path("a.py")), [], ASKED).findings == ()


CODES = st.lists(st.sampled_from(["AMP601", "AMP602", "amp7", "log-of-zero", "E501", "NOPE"]), max_size=3)
COMMENTS = st.one_of(
    st.builds(lambda codes: f"# amp: ignore[{', '.join(codes)}]", CODES),
    st.just("# amp: ignore because"),
    st.just("# noqa"),
    st.builds(lambda codes: f"# noqa: {','.join(codes)}", CODES.filter(bool)),
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x0c\x00"), max_size=20).map(lambda text: f"#{text}"),
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["fill(x, 1)", "x = (\n    1)", "'''\n#'''", "if x:\n    y"]), COMMENTS)))
def test_any_comments_are_read_and_only_they_take_findings_away(rows):
    text = "".join(f"{code}  {comment}\n" for code, comment in rows)
    source = source_from_bytes(text.encode(), Path("a.py"))
    lines = [number for number, line in enumerate(text.split("\n"), 1) if "fill" in line.partition("#")[0]]
    findings = [
        Finding(source.path, Span(Position(line, 1), Position(line, 11)), "AMP601", "fill", "error", "m", "O1")
        for line in lines
    ]
    outcome = suppress(source, findings, ASKED)
    assert set(outcome.findings) <= set(findings)
    comments, _ = find_suppressions(text)
    suppressed = set(findings) - set(outcome.findings)
    assert suppressed <= {item for item in findings if item.span.start.line in {comment.line for comment in comments}}
    for item in outcome.unused:
        assert item.finding.code == "AMP980"
        assert "amp" in text.split("\n")[item.finding.span.start.line - 1].lower()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y = fill(x, 1)\n", "y = fill(x, 1)  # amp: ignore[AMP601]\n"),
        ("y = fill(x, 1)", "y = fill(x, 1)  # amp: ignore[AMP601]"),
        ("y = fill(x, 1)   \r\nz = 1\r\n", "y = fill(x, 1)  # amp: ignore[AMP601]   \r\nz = 1\r\n"),
        ("y = fill(x, 1)  # why\n", "y = fill(x, 1)  # why  # amp: ignore[AMP601]\n"),
        ("y = fill(x, 1)  # amp: ignore[AMP602] why\n", "y = fill(x, 1)  # amp: ignore[AMP602, AMP601] why\n"),
        ("f(\n    fill(x, 1),\n)\n", "f(\n    fill(x, 1),  # amp: ignore[AMP601]\n)\n"),
        ("y = 1 + \\\n  fill(x, 1)\n", "y = 1 + \\\n  fill(x, 1)  # amp: ignore[AMP601]\n"),
        ("y = fill(x, 1) + \\\n  1\n", "y = fill(x, 1) + \\\n  1  # amp: ignore[AMP601]\n"),
        ('y = fill(x, """\n""")\n', 'y = fill(x, """\n""")  # amp: ignore[AMP601]\n'),
        ("if fill(x, 1):\n    pass\n", "if fill(x, 1):  # amp: ignore[AMP601]\n    pass\n"),
        ("# amp: ignore-file[AMP602]\nfill(x, 1)\n", "# amp: ignore-file[AMP602]\nfill(x, 1)  # amp: ignore[AMP601]\n"),
    ],
)
def test_a_comment_that_is_offered_suppresses(write, invoke, before, after):
    place = next((line, text.index("fill")) for line, text in enumerate(before.splitlines(), 1) if "fill" in text)
    start = Position(place[0], place[1] + 1)
    finding = Finding(Path("a.py"), Span(start, start), "AMP601", "name", "error", "message", "O1")
    edit = suppression_of(before, finding)
    assert apply_patch(before, [edit]) == after
    write({"a.py": before, "b.py": after})
    assert invoke("a.py", "--select", "AMP601", "-q").exit_code == 1
    assert invoke("b.py", "--select", "AMP601", "-q").exit_code == 0
