"""What holds for every migration, whatever went in: checked on a folder of files."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import tokenize
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from amp_migrate.out.diff import unified_diff
from amp_rules import migrate
from amp_rules.plan.options import Options
from amp_rules.plan.report import Report
from amp_rules.rewrites import all_rules, of_own_processes
from amp_rules.source.text import SourceError, SourceFile, source_from_bytes

UNIT = {rule.code: rule.unit for rule in all_rules()}
# Bringing an older interface up to date is no migration of the step, which may have been understood or not.
OLDER = frozenset(code for code in UNIT if code.startswith(("AMP4", "AMP5")))
# Processes that a script joins itself are completed whatever becomes of its step.
COMPLETING = frozenset(rewrite.rule.code for rewrite in of_own_processes())

Files = Mapping[str, bytes]


@dataclass
class Run:
    """One migration that was carried out in memory."""

    folder: Path
    before: Files
    after: dict[str, bytes]
    report: Report
    entry: str
    sources: dict[str, SourceFile] = field(default_factory=dict)

    @property
    def changed(self) -> list[str]:
        return [name for name in self.before if self.after[name] != self.before[name]]


def write_all(folder: Path, files: Files) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def migrate_files(folder: Path, files: Files, entry: str, options: Options) -> Run:
    """Write the files into the (new) folder and migrate the entry.

    Raises:
        SourceError: a file cannot be read or rewritten; nothing else may be raised.
    """
    folder = folder.resolve()
    write_all(folder, files)
    report = migrate(folder / entry, options)
    run = Run(folder, files, dict(files), report, entry)
    for change in report.changes:
        name = change.path.relative_to(folder).as_posix()
        source = run.sources[name] = source_from_bytes(files[name], change.path)
        assert source.text == change.before
        run.after[name] = source.encode(change.after)
    return run


def check(folder: Path, files: Files, entry: str, options: Options) -> Run | None:
    """Migrate and check everything that holds for every program; None when the files cannot be read."""
    try:
        run = migrate_files(folder / "one", files, entry, options)
    except SourceError as error:
        assert error.message and "\n" not in error.message
        return None
    check_outcomes(run.report)
    for name in run.changed:
        check_python(run, name)
        check_untouched_lines(run, name)
        check_comments(run, name)
    check_second_run(run, folder / "two", options)
    check_same_again(run, options)
    check_diff(run, folder / "three")
    return run


# ---- the report ------------------------------------------------------------------------------------------------


def check_outcomes(report: Report) -> None:
    """What the report says of a unit agrees with what it did."""
    codes = {edit.code for edit in report.edits}
    if report.distribution == "extended":
        codes -= COMPLETING
    if report.precision != "migrated":
        # The runtime starts and prepares the models for the other processes too.
        assert {code for code in codes - OLDER if UNIT[code] == "precision"} <= {"AMP101", "AMP108"}, codes
        if report.distribution != "migrated":
            assert codes <= OLDER, codes
    if report.precision == "declined":
        assert codes <= OLDER, f"declined, yet {codes}"
    if report.distribution != "migrated":
        assert not {code for code in codes - OLDER if UNIT[code] == "distribution"}, codes
    paths = {edit.path for edit in report.edits}
    assert {change.path for change in report.changes} <= paths
    if report.edits:
        assert report.changes, codes
    for unit, outcome in (("precision", report.precision), ("distribution", report.distribution)):
        refused = [item for item in report.refusals if item.unit == unit]
        if outcome == "declined":
            assert refused, f"{unit} was declined without a reason"
        if refused:
            assert outcome in ("declined", "already"), f"{unit} is {outcome}, yet {refused}"
    for item in report.refusals:
        assert item.message and item.recipe and "\n" not in item.message


# ---- the text --------------------------------------------------------------------------------------------------


def check_python(run: Run, name: str) -> None:
    after = source_from_bytes(run.after[name], run.folder / name).text
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ast.parse(after)
        if compiles(run.before[name]):
            compile(after, name, "exec", dont_inherit=True)


def compiles(data: bytes) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(data, "file", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def check_untouched_lines(run: Run, name: str) -> None:
    """Every line outside of the edited statements is there with its bytes, in its place.

    Only what moves into a block of the runtime is indented further, by what it had and some more."""
    touched = touched_lines(run, name)
    before, after = rows_of(run.before[name]), rows_of(run.after[name])
    inside = runtime_blocks(run, name)
    at = 0
    for number, row in enumerate(before, 1):
        if number in touched:
            continue
        start = at
        while at < len(after) and not (
            after[at] == row or (at + 1 in inside and after[at].lstrip(b" \t") == row.lstrip(b" \t"))
        ):
            at += 1
        assert at < len(after), f"{name}:{number} is lost, changed or elsewhere: {row!r} (looked from {start + 1})"
        at += 1


def touched_lines(run: Run, name: str) -> set[int]:
    """Lines of the statements that the report's edits lie in, of compound ones those of the header."""
    path = run.folder / name
    text = run.sources[name].text
    statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    rows = rows_of(text.encode("utf-8", "replace"))
    found: set[int] = set()
    for edit in run.report.edits:
        if edit.path != path:
            continue
        first, last = edit.span.start.line, edit.span.end.line
        found |= {first}
        if edit.code in REMOVING:
            # An import at the head of a block takes the blank lines around it along.
            found |= {at for at in (first - 1, last + 1) if 1 <= at <= len(rows) and not rows[at - 1].strip()}
            found |= {number for number, row in enumerate(rows, 1) if CLAUSE.match(row)}
        for node in statements:
            start, end = head_of(node)
            # ``HAS_APEX = False`` above the ``try`` is of its edit, too.
            if start <= first <= end or (edit.code in OLDER and end == first - 1):
                found |= set(range(start, end + 1))
    found |= removed_lines(run, name)
    # Of ``a; b``, which may be taken apart, and ``if a: b`` the statements are compared by others.
    starts = Counter(node.lineno for node in statements)
    for node in statements:
        if starts[node.lineno] > 1 or head_of(node)[1] in found:
            found |= set(range(head_of(node)[0], head_of(node)[1] + 1))
    return found


# Rewrites that take statements out: what was said above them goes along.
REMOVING = frozenset({"AMP203", *OLDER})
# Their ``else`` and the like go with them.
CLAUSE = re.compile(rb"\s*(else|try|finally|elif.*|except.*|if.*)\s*:")


def comment_above(text: str, line: int) -> set[int]:
    rows = [row.decode("utf-8", "replace") for row in rows_of(text.encode("utf-8", "replace"))]
    found: set[int] = set()
    while line >= 2 and rows[line - 2].strip().startswith("#"):
        line -= 1
        found.add(line)
    return found


def head_of(node: ast.stmt) -> tuple[int, int]:
    """The lines of a simple statement, or of a compound one's header."""
    decorators = getattr(node, "decorator_list", [])
    start = min([node.lineno, *(item.lineno for item in decorators)])
    inner = getattr(node, "body", None) or getattr(node, "cases", None)
    if not isinstance(inner, list):
        return start, node.end_lineno or node.lineno
    first = inner[0]
    line = first.pattern.lineno if isinstance(first, ast.match_case) else first.lineno
    line = min([line, *(item.lineno for item in getattr(first, "decorator_list", []))])
    return start, max(start, line - 1) if line > start else start


def runtime_blocks(run: Run, name: str) -> set[int]:
    """Lines of the result inside of blocks that the runtime heads, or a test for the rank that is new."""
    text = source_from_bytes(run.after[name], run.folder / name).text
    known, rows = set(rows_of(run.before[name])), rows_of(run.after[name])
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.With, ast.If)):
            head = node.test if isinstance(node, ast.If) else ast.Tuple([item.context_expr for item in node.items])
            is_new = run.report.distribution == "extended" and rows[node.lineno - 1] not in known
            if is_new or "amp" in ast.unparse(head):
                found |= set(range(node.body[0].lineno - 1, (node.end_lineno or 0) + 1))
                # The comments below the last statement of a block are its own.
                found |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return found


def rows_of(data: bytes) -> list[bytes]:
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")


def check_comments(run: Run, name: str) -> None:
    """Every comment is there as often and in the same order, but for those of what was taken out."""
    before, after = comments_of(run.before[name]), comments_of(run.after[name])
    removed = removed_lines(run, name)
    kept = [text for line, text in before if line not in removed]
    every = Counter(text for _, text in before)
    new = Counter(text for _, text in after)
    unknown = [text for text in new - every if not any(_is_left_of(text, other) for other in every)]
    assert not unknown, f"{name}: comments came from nowhere: {unknown}"
    rest = iter([text for _, text in after])
    for text in kept:
        assert any(_is_left_of(other, text) for other in rest), (
            f"{name} lost the comment {text!r}, or holds it elsewhere"
        )


def _is_left_of(text: str, comment: str) -> bool:
    """Whether a comment is another without its aside on Apex at the end, or without Apex's name."""
    return comment.startswith(text) or re.sub(r"\bapex ", "", comment, flags=re.IGNORECASE) == text


def removed_lines(run: Run, name: str) -> set[int]:
    """Lines of edits that take out a statement, and of the comments directly above them."""
    path, text = run.folder / name, run.sources[name].text
    found: set[int] = set()
    statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    for edit in run.report.edits:
        if edit.path == path and edit.code in REMOVING:
            first, last = edit.span.start.line, edit.span.end.line
            for node in statements:
                start, end = head_of(node)
                if start <= first <= end:
                    first, last = min(first, start), max(last, end)
            found |= set(range(first, last + 1)) | comment_above(text, first)
    for node in statements:
        # A condition goes with what was alone in it.
        if isinstance(node, ast.If) and not node.orelse:
            if all(set(range(item.lineno, (item.end_lineno or 0) + 1)) <= found for item in node.body):
                found |= set(range(node.lineno, (node.end_lineno or 0) + 1)) | comment_above(text, node.lineno)
    return found


def comments_of(data: bytes) -> list[tuple[int, str]]:
    text = source_from_bytes(data, Path("file")).text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    readline = io.StringIO(text).readline
    try:
        return [
            (token.start[0], token.string.rstrip())
            for token in tokenize.generate_tokens(readline)
            if token.type == tokenize.COMMENT
        ]
    except (tokenize.TokenError, IndentationError):
        return []


# ---- again -----------------------------------------------------------------------------------------------------


def check_second_run(run: Run, folder: Path, options: Options) -> None:
    """A second run with the same options finds everything done."""
    again = migrate_files(folder, run.after, run.entry, options)
    assert again.changed == [] and again.report.edits == (), again.report.edits
    wanted = {"already" if run.report.precision == "migrated" else run.report.precision}
    if run.report.precision == "absent" and run.report.edits:
        wanted.add("already")  # an import of Apex without a step became one of the runtime
    assert again.report.precision in wanted, again.report.refusals
    if run.report.changes:
        done = run.report.distribution in ("migrated", "extended")
        wanted = "already" if done else run.report.distribution
        assert again.report.distribution == wanted, again.report.refusals


def check_same_again(run: Run, options: Options) -> None:
    assert migrate(run.folder / run.entry, options) == run.report


def check_diff(run: Run, folder: Path) -> None:
    """``git apply`` makes the new files of the old ones, all in one patch."""
    parts = [unified_diff(name.encode(), run.before[name], run.after[name]) for name in run.changed]
    if not parts:
        return
    write_all(folder, run.before)
    git(folder, b"".join(parts), "--check")
    git(folder, b"".join(parts))
    assert {name: (folder / name).read_bytes() for name in run.before} == run.after


def git(folder: Path, patch: bytes, *more: str) -> None:
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", "-c", "core.autocrlf=false", "apply", "--whitespace=nowarn", *more],
        cwd=folder,
        input=patch,
        capture_output=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
