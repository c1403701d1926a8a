"""Mending files: what is written, what is only shown, and what stays as it was."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from amp_migrate.lint.diagnostics import Diagnostic
from amp_migrate.lint.tracing import still_there
from amp_rules.lint.finding import Finding, Fix
from amp_rules.source.spans import Position, Span

BEFORE = """\
import torch

y = fill(x, 1)
z = fill(log(x), 2)


def bare(x):
    half(x)  # why
    return log(x)
"""
SAFE = """\
import torch
from t import keep

y = full(x)
z = full(log(x))


@keep
def bare(x):
    return log(x)
"""
UNSAFE = SAFE.replace("log(x)", "log(x + eps)")


def test_fix_mends_what_is_safe(write, invoke):
    path = write(a=BEFORE)
    done = invoke("a.py", "--fix", "--format", "concise")
    assert path.read_text() == SAFE
    assert done.exit_code == 1
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["AMP602", "AMP602"]
    assert "fixed 1 file: AMP601 2, AMP701 1, AMP801 1\n" in done.stderr
    assert "2 findings in 1 file; 2 more with --unsafe-fixes\n" in done.stderr


def test_unsafe_fixes_are_made_on_request(write, invoke):
    path = write(a=BEFORE)
    done = invoke("a.py", "--fix", "--unsafe-fixes")
    assert (path.read_text(), done.exit_code, done.stdout) == (UNSAFE, 0, "")
    assert invoke("a.py", "--fix", "--unsafe-fixes").exit_code == 0
    assert path.read_text() == UNSAFE


def test_that_something_was_mended_can_fail_a_job(write, invoke):
    write(a="fill(x, 1)\n")
    assert invoke("a.py", "--fix", "--exit-non-zero-on-fix").exit_code == 1
    assert invoke("a.py", "--fix", "--exit-non-zero-on-fix").exit_code == 0
    assert invoke("-", "--fix", "--exit-non-zero-on-fix", input="fill(x, 1)\n").exit_code == 1
    assert invoke("-", "--fix", input="fill(x, 1)\n").exit_code == 0
    assert "contradict" in invoke("a.py", "--fix", "--exit-non-zero-on-fix", "--exit-zero").stderr


def test_unsafe_fixes_alone_change_nothing(write, invoke):
    path = write(a=BEFORE)
    done = invoke("a.py", "--unsafe-fixes", "--format", "concise")
    assert path.read_text() == BEFORE
    assert done.stdout.count("[*]") == 6


def test_only_what_is_reported_is_mended(write, invoke):
    path = write(a=BEFORE)
    invoke("a.py", "--write-baseline", "known.json")
    invoke("a.py", "--fix", "--baseline", "known.json")
    invoke("a.py", "--fix", "--select", "AMP602")
    invoke("a.py", "--fix", "--severity", "error", "--select", "AMP7")
    assert path.read_text() == BEFORE
    write(a="fill(x, 1)  # noqa\n")
    invoke("a.py", "--fix")
    assert path.read_text() == "fill(x, 1)  # noqa\n"


def test_what_the_baseline_knows_stays_beside_what_is_mended(write, invoke):
    path = write(a="fill(x, 1); half(x)\nhalf(y)\n\nfill(y, 1)\nhalf(z)\n")
    invoke("a.py", "--select", "AMP701", "--write-baseline", "known.json")
    invoke("a.py", "--fix", "--baseline", "known.json")
    assert path.read_text() == "full(x); half(x)\nhalf(y)\n\nfull(y)\nhalf(z)\n"


@pytest.mark.parametrize(
    ("shown", "before", "newer", "after", "expected"),
    [
        # On lines that stay, the column tells; on those that change, the number.
        ([(2, 1)], "a b c", [(3, 1), (3, 5)], "new a b c", [(3, 1)]),
        ([(2, 1)], "a b c", [(2, 4)], "a x c", [(2, 4)]),
        ([(2, 1)], "a b c", [(2, 4), (2, 8)], "a x c", []),
        ([(2, 1), (3, 1)], "a b c", [(2, 1), (3, 1)], "a x y", [(2, 1), (3, 1)]),
        ([(2, 1)], "a b c", [(1, 1)], "a c", []),
        ([], "a b c", [(2, 1)], "a x c", []),
    ],
)
def test_findings_are_found_again_in_a_changed_text(shown, before, newer, after, expected):
    def item(line, column):
        place = Position(line, column)
        fix = Fix("title", "safe", ())
        return Diagnostic(Finding(Path("a.py"), Span(place, place), "AMP601", "name", "error", "message", "mode", fix))

    found = still_there([item(*at) for at in shown], [item(*at) for at in newer], before.split(), after.split())
    assert [(one.finding.span.start.line, one.finding.span.start.column) for one in found] == expected


def test_imports_that_lose_their_last_use_go_with_it(write, invoke):
    imports = "from t import keep, log, one\nfrom t import y  # noqa\nimport z\nimport unused\n"
    path = write(a=imports + "\nfill(a, log(one))\nfill(y, z)\none(1)\n")
    assert invoke("a.py", "--fix").exit_code == 0
    kept = "from t import keep, one\nfrom t import y  # noqa\nimport unused\n"
    assert path.read_text() == kept + "\nfull(a)\nfull(y)\none(1)\n"


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import z\nexcept ImportError:\n    z = None\nfill(x, z)\n",
        "import z\n\n__all__ = ['z']\nfill(x, z)\n",
        "import z.w\nfill(x, z)\n",
        "from w import z as z\nfill(x, z)\n",
        "import z\n\n\ndef f(a: 'z.T'):\n    fill(x, z)\n",
        "class C:\n    import z\n\n    fill(x, z)\n",
    ],
)
def test_imports_that_others_may_use_stay(write, invoke, text):
    path = write(a=text)
    assert invoke("a.py", "--fix").exit_code == 0
    assert path.read_text() == text.replace("fill(x, z)", "full(x)")
    package = write({"p/__init__.py": "import z\nfill(x, z)\n"})
    invoke("p", "--fix")
    assert package.read_text() == "import z\nfull(x)\n"


def test_an_import_may_take_the_place_of_one_that_goes(write, invoke):
    path = write(a="import z\n\nfill(x, z)\n\n\ndef bare(x):\n    pass\n")
    invoke("a.py", "--fix")
    assert path.read_text() == "from t import keep\n\nfull(x)\n\n\n@keep\ndef bare(x):\n    pass\n"
    path = write(
        a="from w import (\n    a,  # one\n    z,\n)\n\nfill(a, z)\n\n\ndef f():\n    import y\n    fill(a, y)\n"
    )
    invoke("a.py", "--fix")
    assert path.read_text() == "from w import (\n    a,  # one\n)\n\nfull(a)\n\n\ndef f():\n    full(a)\n"


@pytest.mark.parametrize("line", ["from a import *", "from .a import (\n    z,\n)", "from p.a import w, z as v"])
def test_imports_that_files_nearby_take_from_here_stay(write, invoke, line):
    before = "import z\nfrom w import q\n\nfill(x, z)\nfill(x, q)\n"
    kept = "import z\n" + ("from w import q\n" if "*" in line else "")
    path = write({"p/b.py": line, "p/a.py": before})
    invoke("p/a.py", "--fix")
    assert path.read_text() == kept + "\nfull(x)\nfull(x)\n"


def test_a_shown_fix_takes_its_import_along(write, invoke):
    write(a="import z\n\nfill(x, z)\n")
    shown = invoke("a.py").stdout
    assert "- import z" in shown and "+ full(x)" in shown


def test_diff_shows_what_fix_would_do(write, invoke):
    write(b="x = 1\n")
    path = write(a=BEFORE)
    done = invoke("a.py", "b.py", "--diff")
    assert (done.exit_code, path.read_text()) == (1, BEFORE)
    assert done.stdout.startswith("diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@")
    assert "-y = fill(x, 1)\n" in done.stdout and "+y = full(x)\n" in done.stdout
    assert "eps" not in done.stdout
    assert "+    return log(x + eps)\n" in invoke("a.py", "--diff", "--unsafe-fixes").stdout
    assert done.stderr == "would fix 1 file\n"
    done = invoke("b.py", "--diff")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "nothing to fix\n")


def test_standard_input_comes_back_mended(invoke):
    done = invoke("-", "--fix", "--format", "concise", input=BEFORE)
    assert (done.exit_code, done.stdout) == (1, SAFE)
    assert "<stdin>:5:10: AMP602" in done.stderr
    assert invoke("-", "--fix", input="x = 1\n").stdout == "x = 1\n"
    assert "+y = full(x)" in invoke("-", "--diff", "--stdin-filename", "b.py", input=BEFORE).stdout


def test_fixes_that_come_to_light_by_others_are_made_in_the_next_round(write, invoke):
    path = write(a="y = fill(fill(x, 1), 2)\nz = log(fill(x, 1))\n")
    assert invoke("a.py", "--fix").exit_code == 0
    assert path.read_text() == "y = full(full(x))\nz = log(full(x))\n"


def test_a_fix_that_breaks_the_file_is_not_made_and_the_others_are(write, invoke):
    path = write(a="y = broken(x)\nz = fill(x, 1)\n", b="y = broken(x)\n")
    done = invoke(".", "--fix", "--format", "concise")
    assert done.exit_code == 2
    assert path.read_text() == "y = broken(x)\n"
    assert (path.parent / "a.py").read_text() == "y = broken(x)\nz = full(x)\n"
    assert "error: b.py: " in done.stderr
    assert "its findings were left as they are" in done.stderr


def test_files_that_cannot_be_written_are_errors_and_stay(write, invoke, monkeypatch):
    path = write(a="fill(x, 1)\n")
    path.chmod(stat.S_IREAD)
    done = invoke("a.py", "--fix", "--format", "concise")
    assert done.exit_code == 2
    assert "error: a.py: is read-only" in done.stderr
    assert "a.py:1:1: AMP601" in done.stdout
    path.chmod(0o644)
    monkeypatch.setattr("os.replace", lambda *names: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    done = invoke("a.py", "--fix", "--no-cache")
    assert "error: a.py: cannot be written: No space left on device" in done.stderr
    assert path.read_text() == "fill(x, 1)\n"
    assert [item.name for item in path.parent.iterdir() if item.suffix == ".tmp"] == []


@pytest.mark.parametrize(
    "data",
    [
        b"# -*- coding: latin-1 -*-\ny = fill('\xe9', 1)\n",
        b"\xef\xbb\xbfy = fill('x', 1)\r\nz = 1\r\n",
        b"y = fill('x', 1)",
        b"y = fill('\xe2\x80\xa8', 1)\n\x0c\nz = '\x0c\xe2\x80\xa8'\n",
    ],
)
def test_encoding_and_line_ends_survive(write, invoke, data):
    path = write({"a.py": data})
    assert invoke("a.py", "--fix").exit_code == 0
    assert path.read_bytes() == data.replace(b"fill(", b"full(").replace(b", 1)", b")")


def test_a_file_that_would_not_survive_is_left_alone(write, invoke):
    path = write({"a.py": "fill(x, 1)\n\x0cdef f():\n    pass\n"})
    done = invoke("a.py", "--fix", "--format", "concise")
    assert (done.exit_code, path.read_text()) == (2, "fill(x, 1)\n\x0cdef f():\n    pass\n")
    assert "error: a.py:2: cannot be rewritten: a form feed stands at the head of a line" in done.stderr


def test_permissions_survive(write, invoke):
    path = write(a="fill(x, 1)\n")
    path.chmod(0o755)
    invoke("a.py", "--fix")
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
