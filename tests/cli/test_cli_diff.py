"""Every diff must be one that git itself applies, to the byte."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from amp_migrate.out import diff
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from properties import examples

FRAGMENTS = [
    "x = 1",
    "    loss.backward()",
    "",
    "\f",
    "a\u2028b",
    "\x1c\x85",
    "\rb",
    "é中",
    "-- a/x",
    "++ b/x",
    "@@ -1 +1 @@",
    "\\ No newline at end of file",
    " ",
    "\t",
]
ENDS = ["\n", "\n", "\n", "\r\n", "\r"]
lines = st.lists(st.tuples(st.sampled_from(FRAGMENTS), st.sampled_from(ENDS)).map("".join), max_size=25)
git_settings = settings(
    max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def edited_texts(draw):
    """A text and a version of it with a few lines changed, either of them with or without a final newline."""
    before = draw(lines)
    after = list(before)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(after)))
        stop = draw(st.integers(start, min(len(after), start + 3)))
        after[start:stop] = draw(lines.map(lambda new: new[:3]))
    texts = ["".join(before), "".join(after)]
    return [text.rstrip("\n") if draw(st.booleans()) else text for text in texts]


@git_settings
@example(texts=["x\nx\nx\nx\nx\n", "y\nx\nx\nx\nx\n"], codec="utf-8")
@given(texts=edited_texts(), codec=st.sampled_from(["utf-8", "utf-8-sig", "gb18030"]))
def test_git_applies_the_diff_to_the_byte(texts, codec, folder, git_apply):
    before, after = (text.encode(codec) for text in texts)
    file = folder / "train.py"
    file.write_bytes(before)
    patch = diff.unified_diff(b"train.py", before, after)
    if before != after:
        git_apply(patch)
    assert file.read_bytes() == after
    assert (patch == b"") == (before == after)


@git_settings
@given(name=st.text(st.sampled_from("ab1 -:\"\\\t\n\r'é中\x01\x7f$*"), min_size=1, max_size=12))
def test_git_applies_diffs_of_files_with_odd_names(name, folder, git_apply):
    file = folder / (name + ".py")
    file.write_bytes(b"old\n")
    labels = diff.names([file])
    git_apply(diff.unified_diff(labels[file], b"old\n", b"new\n"))
    assert file.read_bytes() == b"new\n"
    file.unlink()


def test_a_name_that_is_no_utf8_is_quoted_byte_by_byte(folder, git_apply):
    path = os.fsencode(folder) + b"/caf\xe9.py"
    with open(path, "wb") as file:
        file.write(b"old\n")
    label = diff.names([Path(os.fsdecode(path))]).popitem()[1]
    patch = diff.unified_diff(label, b"old\n", b"new\n")
    assert b'--- "a/caf\\351.py"' in patch
    git_apply(patch)
    with open(path, "rb") as file:
        assert file.read() == b"new\n"


def test_the_diff_is_the_one_that_git_prints(folder):
    before = "".join(f"line {number}\n" for number in range(30))
    after = before.replace("line 4\n", "four\n").replace("line 20\n", "line 20\nmore\n").removesuffix("\n")
    (folder / "old").write_text(before)
    (folder / "new").write_text(after)
    command = ["git", "-c", "diff.noprefix=false", "diff", "--no-index", "--no-color", "old", "new"]
    expected = subprocess.run(command, cwd=folder, capture_output=True).stdout
    ours = diff.unified_diff(b"x.py", before.encode(), after.encode())

    def hunks(patch):
        # Git adds the nearest line that looks like a function's head.
        return re.sub(rb"(?m)^(@@ .* @@).*$", rb"\1", patch[patch.index(b"@@") :])

    assert hunks(ours) == hunks(expected)


def test_long_files_are_compared_only_where_they_differ():
    before = [b"\n" if number % 5 == 0 else b"x = %d\n" % (number % 20_000) for number in range(30_000)]
    after = [*before[:101], b"new\n", *before[101:25_001], *before[25_002:]]
    patch = diff.unified_diff(b"x.py", b"".join(before), b"".join(after))
    changed = [line for line in patch.splitlines()[3:] if line[:1] in (b"-", b"+")]
    assert changed == [b"+new", b"-x = 5001"]


def test_frequent_lines_do_not_blur_the_diff_of_an_ordinary_script():
    before = [b"\n" if number % 2 else b"x = %d\n" % number for number in range(1500)]
    after = [line for number, line in enumerate(before) if number not in (400, 1001)]
    patch = diff.unified_diff(b"x.py", b"".join(before), b"".join(after))
    assert [line for line in patch.splitlines()[3:] if line[:1] in (b"-", b"+")] == [b"-x = 400", b"-"]


@pytest.mark.parametrize("where", ["repository", "plain", "elsewhere"])
def test_names_are_relative_to_where_the_diff_is_applied(where, folder, monkeypatch):
    (folder / "project/src").mkdir(parents=True)
    if where == "repository":
        (folder / "project/.git").mkdir()
        expected = b"src/train.py"
    elif where == "plain":
        expected = b"project/src/train.py"
    else:
        (folder / "other").mkdir()
        monkeypatch.chdir(folder / "other")
        expected = b"train.py"
    assert diff.names([folder / "project/src/train.py"]).popitem()[1] == expected


def test_files_elsewhere_share_one_base(folder, monkeypatch):
    (folder / "cwd").mkdir()
    monkeypatch.chdir(folder / "cwd")
    paths = [folder / "a/train.py", folder / "a/lib/model.py"]
    assert sorted(diff.names(paths).values()) == [b"lib/model.py", b"train.py"]


def test_a_terminal_sees_control_characters_and_does_not_obey_them():
    shown = diff.for_terminal("+\x1b[2Jé\f\u0085\r\n".encode(), "utf-8-sig")
    assert shown == "+^[[2Jé^L\\x85\n"
