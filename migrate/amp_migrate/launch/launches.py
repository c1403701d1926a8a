"""Lines of a project that start the migrated scripts: launch scripts, documents, containers, configuration.

They are reported with the ``torchrun`` command that takes their place. Those that say how many processes there are can
be edited by :mod:`amp_migrate.launch.editing`; of the others the number is not in the code.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from amp_rules.plan.report import Report
from amp_rules.source.project import marked_root

from amp_migrate.git import git_root
from amp_migrate.launch.command_lines import READERS
from amp_migrate.launch.torchrun import Shell, Start, replaced
from amp_migrate.run.foreign import never_own
from amp_migrate.run.ignores import Rules, is_ignored, rules_above, rules_in

_MAX_FOLDERS, _MAX_FILES, _MAX_BYTES, _MAX_DEPTH = 5_000, 2_000, 1_000_000, 30
_HIDDEN = frozenset({".github", ".gitlab", ".circleci", ".vscode", ".buildkite"})

# Which commands can be replaced: any, or those of torch.distributed.launch, by how it tells each process its rank.
_Launchers = Literal["any", "option", "environment"]
_LOCAL_RANK = "AMP409"
# Where the script meets at a port of its own, processes that torchrun starts would wait for each other.
_ADDRESS = "AMP238"

_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("shell", re.compile(r".*\.(?:sh|bash|zsh|ksh|slurm|sbatch|sub|pbs|job)")),
    ("make", re.compile(r"(?:GNU)?[Mm]akefile(?:\..*)?|.*\.mk|[Jj]ustfile")),
    ("docker", re.compile(r"(?:Dockerfile|Containerfile)(?:\..*)?|.*\.[Dd]ockerfile")),
    ("prose", re.compile(r"(?i:.*\.(?:md|markdown|rst)|(?:README|USAGE|INSTALL)(?:\.txt)?)")),
    ("yaml", re.compile(r".*\.ya?ml")),
    ("scripts", re.compile(r"setup\.py|setup\.cfg|pyproject\.toml")),
    ("vscode", re.compile(r"launch\.json")),
)
_LEADING = re.compile(r"\s*(?:[A-Za-z_]\w*=\S*\s+|cd \S+\s*(?:&&|;)\s*|nohup\s+)*")
_ARRAY = re.compile(r"\[\s*\"(?:[^\[\]\"\\]|\\.)*\"(?:\s*,\s*\"(?:[^\"\\]|\\.)*\")*\s*\]")
_CONSOLE_SCRIPT = re.compile(r"[\"']?([\w.-]+)[\"']?\s*=\s*[\"']?(([A-Za-z_][\w.]*):[A-Za-z_]\w*)[\"']?")
_PROGRAM = re.compile(r"\"program\"\s*:\s*\"([^\"]+\.py)\"")
_BEHIND_VARIABLE = re.compile(r".*(?:\$\w+|\$\{[^}]*\}|\$\([^()]*\))/([\w./+-]+\.py)")


@dataclass(frozen=True)
class Launch:
    """A command that starts a migrated script.

    Attributes:
        path: the file that holds it.
        line: its first line.
        command: the command, on one line.
        replacement: with torchrun.
        scripts: the migrated scripts that it starts.
        notes: what to look at.
        edits: texts of the command and what takes their places, where nothing is left to decide by hand.
    """

    path: Path
    line: int
    command: str
    replacement: str
    scripts: tuple[Path, ...]
    notes: tuple[str, ...] = ()
    edits: tuple[tuple[str, str], ...] = ()


@dataclass
class Launches:
    """What was found, in the order of the files; ``incomplete`` where a project is too large to be searched whole.

    Those that are ``edited`` in their files are among them.
    """

    found: list[Launch] = field(default_factory=list)
    edited: list[Launch] = field(default_factory=list)
    incomplete: bool = False

    @property
    def left(self) -> list[Launch]:
        """Those that are for the user to edit."""
        return [launch for launch in self.found if launch not in self.edited]


def launches(reports: Iterable[Report]) -> Launches:
    """Find the commands that start the scripts which were migrated to several processes.

    A script that sets up its processes itself counts where torch.distributed.launch starts it and torchrun may, because
    it takes its rank from the environment, at the latest since it was migrated.
    """
    scripts: dict[Path, _Launchers] = {}
    for report in reports:
        if report.distribution == "migrated":
            scripts[report.entry.resolve()] = "any"
        elif any(note.text.startswith(_ADDRESS) for note in report.notes):
            continue
        elif report.distribution in ("already", "extended") and report.changes:
            has_rank = any(edit.code == _LOCAL_RANK for edit in report.edits)
            scripts[report.entry.resolve()] = "option" if has_rank else "environment"
    result = Launches()
    roots: dict[Path, tuple[bool, dict[Path, _Launchers]]] = {}
    for script, launchers in scripts.items():
        root, is_project = _root(script)
        roots.setdefault(root, (is_project, {}))[1][script] = launchers
    seen: set[tuple[Path, int, str]] = set()
    for root, (is_project, wanted) in sorted(roots.items()):
        search = _Search(root, wanted)
        for launch in search.run(deep=is_project):
            key = (launch.path, launch.line, launch.command)
            if key not in seen:
                seen.add(key)
                result.found.append(launch)
        result.incomplete |= search.incomplete
    result.found.sort(key=lambda item: (str(item.path), item.line, item.command))
    return result


def nearest_first(found: Sequence[Launch]) -> list[Launch]:
    """The launches that stand nearest to their scripts first."""

    def distance(launch: Launch) -> int:
        return min(len(Path(os.path.relpath(script.parent, launch.path.parent)).parts) for script in launch.scripts)

    return sorted(found, key=lambda item: (distance(item), str(item.path), item.line))


def _root(script: Path) -> tuple[Path, bool]:
    """The folder of the project, and whether it is known to be one."""
    root = git_root(script) or marked_root(script)
    return (script.parent, False) if root is None else (root, True)


class _Search:
    """Looks through one project for commands that start some scripts."""

    def __init__(self, root: Path, scripts: dict[Path, _Launchers]) -> None:
        self.root = root
        self.scripts = scripts
        self.incomplete = False
        self._words = {word.encode() for script in scripts for word in (script.name, script.stem)}
        self._words |= {script.parent.name.encode() for script in scripts if script.stem == "__main__"}
        self._named: defaultdict[str, list[Path]] = defaultdict(list)

    def run(self, *, deep: bool) -> Iterator[Launch]:
        files: list[tuple[str, Path]] = []
        for path in self._files(deep):
            if path.suffix == ".py":
                self._named[path.name].append(path)
            kind = next((kind for kind, pattern in _KINDS if pattern.fullmatch(path.name)), None)
            if kind is not None and (kind != "vscode" or path.parent.name == ".vscode"):
                files.append((kind, path))
        for kind, path in files:
            if text := self._text(path):
                yield from self._in_file(kind, path, text)

    def _files(self, deep: bool) -> Iterator[Path]:
        stack: list[tuple[Path, tuple[Rules, ...], int]] = [(self.root, rules_above(self.root), 0)]
        folders = files = 0
        while stack:
            folder, rules, depth = stack.pop()
            folders += 1
            try:
                with os.scandir(folder) as listing:
                    entries = sorted(listing, key=lambda entry: entry.name)
            except OSError:
                continue
            rules = (*rules_in(folder), *rules)
            for entry in entries:
                path = folder / entry.name
                if entry.is_dir(follow_symlinks=False):
                    is_hidden = entry.name.startswith(".") and entry.name not in _HIDDEN
                    if is_hidden or never_own(path) or is_ignored(path, True, rules):
                        continue
                    if depth >= (_MAX_DEPTH if deep else 1) or folders + len(stack) >= _MAX_FOLDERS:
                        self.incomplete |= deep
                        continue
                    stack.append((path, rules, depth + 1))
                elif entry.is_file(follow_symlinks=False) and not is_ignored(path, False, rules):
                    files += 1
                    yield path

    def _text(self, path: Path) -> str | None:
        try:
            if path.stat().st_size > _MAX_BYTES:
                return None
            data = path.read_bytes()
        except OSError:
            return None
        return data.decode("utf-8", "replace") if any(word in data for word in self._words) else None

    def _in_file(self, kind: str, path: Path, text: str) -> Iterator[Launch]:
        if kind == "scripts":
            yield from self._console_scripts(path, text)
            return
        if kind == "vscode":
            yield from self._programs(path, text)
            return
        folders = [folder for folder in path.parents if folder.is_relative_to(self.root)]
        shell = Shell(self._script, self._module, folders, text)
        for line, command, is_code in READERS[kind](text):
            if (array := _ARRAY.search(command)) is not None:
                yield from self._in_array(path, line, command, array, shell)
                continue
            starts = self._wanted(shell.starts(command))
            if kind == "prose":  # ``./train.py`` alone is a mention
                starts = [item for item in starts if len(command.split()) > 1]
            if not starts or not (is_code or all(_is_first(command, start) for start in starts)):
                continue
            edits = tuple((command[start.first : start.last], start.code) for start in starts)
            whole = all(start.is_whole for start in starts)
            launch = _launch(path, line, command, replaced(command, starts), starts)
            yield replace(launch, edits=edits) if whole else launch

    def _in_array(self, path: Path, line: int, command: str, array: re.Match[str], shell: Shell) -> Iterator[Launch]:
        """``CMD ["python", "train.py"]``."""
        try:
            joined = shlex.join(json.loads(array[0]))
            starts = self._wanted(shell.starts(joined))
            words = shlex.split(replaced(joined, starts))
        except ValueError:
            return
        if starts:
            after = command[: array.start()] + json.dumps(words, ensure_ascii=False) + command[array.end() :]
            yield _launch(path, line, command, after, starts)

    def _wanted(self, starts: list[Start]) -> list[Start]:
        """Those that torchrun can take the place of."""
        ranks: dict[_Launchers, tuple[str, ...]] = {
            "any": ("", "option", "environment"),
            "option": ("option", "environment"),
            "environment": ("environment",),
        }
        return [start for start in starts if start.rank in ranks[self.scripts[start.script]]]

    def _console_scripts(self, path: Path, text: str) -> Iterator[Launch]:
        for number, row in enumerate(text.split("\n"), 1):
            for match in _CONSOLE_SCRIPT.finditer(row):
                script = self._module(match[3], [path.parent])
                if script is not None and self.scripts[script] == "any" and _runs_as_module(script):
                    code = f"torchrun --nproc-per-node N -m {match[3].removesuffix('.__main__')}"
                    yield Launch(path, number, f"{match[1]} = {match[2]}", code, (script,), ("a console script",))

    def _programs(self, path: Path, text: str) -> Iterator[Launch]:
        for number, row in enumerate(text.split("\n"), 1):
            for match in _PROGRAM.finditer(row):
                word = re.sub(r"^\$\{workspace(?:Folder|Root)\}/", "", match[1])
                script = self._script(word, [path.parent.parent])
                if script is not None and self.scripts[script] == "any":
                    start = f'"args": ["--nproc-per-node", "N", "{match[1]}", ...]'
                    code = f'"module": "torch.distributed.run", {start}'
                    yield Launch(path, number, match[0], code, (script,))

    # ---- which script a word means -------------------------------------------------------------------------

    def _script(self, word: str, folders: Sequence[Path]) -> Path | None:
        if "$" in word:
            match = _BEHIND_VARIABLE.fullmatch(word)
            if match is None:
                return None
            # The only file of that name, or the nearest above the command.
            return self._ending_in(Path(match[1]).parts) or self._script(match[1], folders)
        if not word.endswith(".py"):
            return None
        if word.startswith(("/", "~")):
            parts = Path(word).parts
            # Where a container keeps the project: a name alone says little, unless the script is at its top.
            found = (self._ending_in(parts[-length:]) for length in range(len(parts) - 1, 0, -1))
            script = next((item for item in found if item is not None), None)
            if script is None or script.parent == self.root or script.parent.name == Path(word).parent.name:
                return script
            return None
        for folder in folders:
            if (folder / word).is_file():
                script = (folder / word).resolve()
                return script if script in self.scripts else None
        return None

    def _ending_in(self, parts: Sequence[str]) -> Path | None:
        """The one file of the project whose path ends so, if it is among the scripts."""
        found = [path for path in self._named[parts[-1]] if path.parts[-len(parts) :] == tuple(parts)]
        script = found[0].resolve() if len(found) == 1 else None
        return script if script in self.scripts else None

    def _module(self, word: str, folders: Sequence[Path]) -> Path | None:
        if not re.fullmatch(r"\w+(\.\w+)*", word):
            return None
        inner = Path(*word.split("."))
        for folder in (*folders, *(folder / "src" for folder in folders)):
            for path in ((folder / inner).with_suffix(".py"), folder / inner / "__main__.py"):
                if path.is_file():
                    script = path.resolve()
                    return script if script in self.scripts else None
        return None


def _launch(path: Path, line: int, command: str, after: str, starts: Sequence[Start]) -> Launch:
    scripts = tuple(dict.fromkeys(start.script for start in starts))
    notes = tuple(dict.fromkeys(note for start in starts for note in start.notes))
    return Launch(path, line, command.strip(), after.strip(), scripts, notes)


def _runs_as_module(script: Path) -> bool:
    try:
        return script.name == "__main__.py" or b"__main__" in script.read_bytes()
    except OSError:
        return False


def _is_first(command: str, start: Start) -> bool:
    """Whether only assignments and changes of the folder stand before the start, so that the line is no sentence."""
    return _LEADING.fullmatch(command[: start.first].strip() + " ") is not None
