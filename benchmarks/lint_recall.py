"""How many real bugs the linter finds, and whether it is silent where they were mended.

    python benchmarks/lint_recall.py [--bugs FILE] [--checkouts FOLDER] [--trees FOLDER] [--class WORD] [--rule RULES]
        [--preview] [--each] [--missed]

A bug is facts alone: a repository, the commit that has it, the commit that mends it, a file, lines, the rules that fit
and the modes in which the lines are wrong (``lint_bugs.json``). Both versions are judged by the ``amp-lint`` of the
interpreter that runs this, rules as by default, in each mode. *Found* is a finding of a fitting rule within two lines
of a wrong one, in any of the modes. *Silent* is that none of these rules finds something in the fixed version where
those lines went, save what was found beside the bug in both versions. Decoys are right lines that look like bugs:
nothing may be found there by the rules named, or by any where none is named.

``--checkouts`` holds git directories called ``OWNER+NAME``; what is missing is cloned from GitHub. The Python files of
each commit are written to ``--trees`` once. Prints a table by class, and by what has to be read to see the bug: one
``file``, or more of the ``project``.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from lint_bugs import Bug, Found, Verdict, bug_from, corresponding, is_another
from lint_figures import keep

BUGS = Path(__file__).with_name("lint_bugs.json")
CACHE = Path(tempfile.gettempdir()) / "amp-lint-recall"


class Trees:
    """The Python files of commits, in folders."""

    def __init__(self, checkouts: Path, folder: Path) -> None:
        self.checkouts = checkouts
        self.folder = folder

    def tree(self, repo: str, commit: str) -> Path:
        """The folder with a commit's files, written where it is not there yet."""
        name = repo.replace("/", "+")
        target = self.folder / f"{name}-{commit[:8]}"
        if target.is_dir():
            return target
        self.folder.mkdir(parents=True, exist_ok=True)
        # Others may be writing the same tree: it appears whole or not at all.
        with tempfile.TemporaryDirectory(dir=self.folder) as temporary:
            part = Path(temporary) / "tree"
            # The mark of a project's root, as in a clone.
            (part / ".git").mkdir(parents=True)
            command = ["git", "--git-dir", str(self._git(repo)), "archive", commit, "--", ":(glob)**/*.py"]
            # It complains of large files that a partial clone lacks, which are not asked for.
            packed = subprocess.run(command, check=False, capture_output=True)
            if packed.returncode:
                raise OSError(f"{repo} {commit}: {packed.stderr.decode(errors='replace')}")
            with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
                # The argument `filter` came with 3.10.12 and 3.11.4.
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(part, [item for item in archive if item.isdir() or item.isfile()])
            with contextlib.suppress(OSError):
                part.rename(target)
        return target

    def _git(self, repo: str) -> Path:
        folder = self.checkouts / repo.replace("/", "+")
        if not folder.is_dir():
            options = ["--bare", "--filter=blob:none", "--quiet"]
            subprocess.run(["git", "clone", *options, f"https://github.com/{repo}", str(folder)], check=True)
        for candidate in [folder, folder / ".git", *sorted(folder.iterdir())]:
            if (candidate / "HEAD").is_file():
                return candidate
        raise FileNotFoundError(f"{folder} holds no git directory")


Judged = tuple[dict[str, list[Found]], list[str]]


class Judge:
    """Findings by tree, mode and file; every tree is judged in a mode once, in this process."""

    def __init__(self, preview: bool) -> None:
        self.options = ["--format", "json", "--exit-zero", "--no-cache", "--jobs", "1", "--quiet"]
        if preview:
            self.options.append("--preview")
        self.wanted: dict[tuple[Path, str], set[str]] = defaultdict(set)
        self._judged: dict[tuple[Path, str], Judged] = {}

    def ask(self, tree: Path, mode: str, path: str) -> Judged:
        """What is found in a file, beside what went wrong with the tree."""
        key = tree, mode
        if key not in self._judged:
            self._judged[key] = self._run(tree, mode, sorted({path} | self.wanted[key]))
        found, problems = self._judged[key]
        return {path: found.get(str(tree / path), [])}, problems

    def _run(self, tree: Path, mode: str, paths: list[str]) -> Judged:
        from amp_migrate.commands.lint import main as amp_lint

        level, half, device, *several = mode.split()
        options = ["--opt-level", level, "--dtype", half, "--device", device, *(["--ddp"] if several else [])]
        files = [str(tree / path) for path in paths]
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "findings.json"
            collecting = gc.isenabled()
            try:
                amp_lint([*self.options, *options, "--output-file", str(output), *files], standalone_mode=False)
            finally:
                # The command leaves that to the linter; this process goes on.
                if collecting:
                    gc.enable()
            told = json.loads(output.read_text(encoding="utf-8"))
        found = defaultdict(list)
        for item in told["findings"]:
            lines = item["start"]["line"], item["end"]["line"]
            found[item["file"]].append(Found(item["code"], *lines, item["message"]))
        return found, [str(problem) for problem in told["problems"]]


def verdict(bug: Bug, trees: Trees, judge: Judge) -> Verdict:
    """Judge both versions of a bug in its modes."""
    result = Verdict()
    tree = trees.tree(bug.repo, bug.commit)
    before = read(tree / bug.path)
    for mode in bug.modes:
        found, problems = judge.ask(tree, mode, bug.path)
        result.problems |= set(problems)
        near = [item for item in found[bug.path] if item.near(bug.lines)]
        fits = [item for item in near if not bug.rules or item.code in bug.rules]
        if not bug.fixed:
            result.loud[mode] = fits
            continue
        result.hits[mode] = fits
        # Beside the wrong line may stand another wrong one, which the fix left alone.
        meant = [item for item in fits if item.on(bug.lines)] or fits
        others = [item for item in found[bug.path] if item not in meant]
        result.others[mode] = [item for item in near if item not in fits]
        if not bug.mended:
            continue
        fixed = trees.tree(bug.repo, bug.fixed)
        after = read(fixed / bug.fixed_path)
        place = corresponding(before, after, bug.lines)
        later, problems = judge.ask(fixed, mode, bug.fixed_path)
        result.problems |= set(problems)
        result.loud[mode] = [
            item
            for item in later[bug.fixed_path]
            if item.code in bug.rules and item.near(place) and not is_another(item, others, before, after)
        ]
    return result


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []


def table(judged: Sequence[tuple[Bug, Verdict]]) -> str:
    """Found and silent by what decides a bug, and by class."""
    rows = ["| | bugs | found | % | fixed version silent |", "| --- | ---: | ---: | ---: | ---: |"]
    by = {f"decided by {name}": [pair for pair in judged if pair[0].decided_by == name] for name in ("file", "project")}
    names = sorted({bug.bug_class for bug, _ in judged})
    classes = {name: [pair for pair in judged if pair[0].bug_class == name] for name in names}
    for name, pairs in {**classes, **by, "**all**": list(judged)}.items():
        if pairs:
            found, silent = sum(item.found for _, item in pairs), sum(item.silent for _, item in pairs)
            rows.append(f"| {name} | {len(pairs)} | {found} | {100 * found / len(pairs):.0f} | {silent} |")
    modes = [bool(item.hits[mode]) for bug, item in judged for mode in bug.modes]
    rows.append(f"\nEach bug in each of its modes: {sum(modes)} of {len(modes)}.")
    return "\n".join(rows)


def told(bug: Bug, item: Verdict) -> str:
    """One bug on one line, with what was found there."""
    codes = {mode: ",".join(sorted({found.code for found in hits})) for mode, hits in item.hits.items() if hits}
    words = "found" if codes else "MISSED"
    words += f"  {bug}  [{bug.bug_class}, {bug.decided_by}; {','.join(sorted(bug.rules))}]"
    if codes:
        words += "  " + "; ".join(f"{mode}: {code}" for mode, code in codes.items())
    silent_in = [mode for mode in bug.modes if mode not in codes]
    if codes and silent_in:
        words += f"  not in {', '.join(silent_in)}"
    elif silent_in:
        words += f"  in {', '.join(silent_in)}"
    if others := {found.code for hits in item.others.values() for found in hits}:
        words += f"  other code there: {','.join(sorted(others))}"
    return words


def shown(lines: Sequence[str], wrong: Iterable[int], around: int = 6) -> str:
    """The code around the wrong lines."""
    marked, printed, previous = set(wrong), list[str](), 0
    for number in sorted({near for line in marked for near in range(line - around, line + around + 1)}):
        if 1 <= number <= len(lines):
            if previous and number > previous + 1:
                printed.append("      ...")
            printed.append(f"{'>' if number in marked else ' '}{number:5d} {lines[number - 1]}")
            previous = number
    return "\n".join(printed)


def main() -> int:
    options = arguments()
    trees, judge = Trees(options.checkouts, options.trees), Judge(options.preview)
    facts = json.loads(options.bugs.read_text(encoding="utf-8"))
    rules = set(options.rule.split(",")) if options.rule else None
    bugs = [
        bug
        for bug in map(bug_from, [*facts["bugs"], *facts["decoys"]])
        if options.bug_class in bug.bug_class and options.repo in bug.repo and (rules is None or rules & bug.rules)
    ]
    for bug in bugs:
        for mode in bug.modes:
            judge.wanted[trees.tree(bug.repo, bug.commit), mode].add(bug.path)
            if bug.fixed and (trees.tree(bug.repo, bug.fixed) / bug.fixed_path).is_file():
                judge.wanted[trees.tree(bug.repo, bug.fixed), mode].add(bug.fixed_path)
    start = time.process_time()
    judged = [(bug, verdict(bug, trees, judge)) for bug in bugs]
    seconds = time.process_time() - start
    real = [(bug, item) for bug, item in judged if bug.fixed]
    decoys = [(bug, item) for bug, item in judged if not bug.fixed]
    for bug, item in real:
        if options.each or (options.missed and not item.found):
            print(told(bug, item))
        if options.missed and not item.found:
            print(shown(read(trees.tree(bug.repo, bug.commit) / bug.path), bug.lines) + "\n")
    for bug, item in judged:
        for mode, loud in item.loud.items():
            for found in loud:
                words = f"in the fixed version {bug.fixed[:8]} of {bug}" if bug.fixed else f"at the decoy {bug}"
                print(f"LOUD {found.code} line {found.first} ({mode}) {words}: {found.message}")
    for problem in sorted({problem for _, item in judged for problem in item.problems}):
        print(f"problem: {problem}", file=sys.stderr)
    if real:
        print(table(real))
    if decoys:
        print(f"Decoys: {sum(item.silent for _, item in decoys)} of {len(decoys)} silent.")
    print(f"{seconds:.0f} s of processor time.")
    if options.figures:
        keep("recall", {"bugs": len(real), "found": sum(item.found for _, item in real), "rules": by_rule(real)})
    return 0


def by_rule(judged: Sequence[tuple[Bug, Verdict]]) -> dict[str, list[int]]:
    """What was found and what there is, by rule: a bug that was missed counts for the first of its rules."""
    counted: dict[str, list[int]] = {}
    for bug, item in judged:
        hits = {found.code for found_in in item.hits.values() for found in found_in}
        for code in hits or sorted(bug.rules)[:1]:
            found, of = counted.get(code, [0, 0])
            counted[code] = [found + bool(hits), of + 1]
    return dict(sorted(counted.items()))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bugs", type=Path, default=BUGS, metavar="FILE", help="what to look for")
    parser.add_argument("--checkouts", type=Path, default=CACHE / "git", metavar="FOLDER", help="git directories")
    parser.add_argument("--trees", type=Path, default=CACHE / "trees", metavar="FOLDER", help="files of commits")
    parser.add_argument("--class", dest="bug_class", default="", metavar="WORD", help="bugs of such classes only")
    parser.add_argument("--rule", default="", metavar="CODE,...", help="only bugs that one of these rules fits")
    parser.add_argument("--repo", default="", metavar="WORD", help="bugs of such repositories only")
    parser.add_argument("--preview", action="store_true", help="ask rules in preview too")
    parser.add_argument("--each", action="store_true", help="a line for every bug")
    parser.add_argument("--figures", action="store_true", help="keep the figures by rule, for the rules' pages")
    parser.add_argument("--missed", action="store_true", help="the code around every bug that was not found")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
