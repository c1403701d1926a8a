"""The settings that hold for a file, and a warm linter for them."""

from __future__ import annotations

import io
import os
import tokenize
from dataclasses import dataclass, field
from pathlib import Path

from amp_migrate.lint.catalogue import RuleInfo
from amp_migrate.lint.fixing import mend
from amp_migrate.problems import UserError
from amp_migrate.run.discovery import ignore_spec
from amp_migrate.run.linting import Linting
from amp_migrate.server.found import Found, left_of
from amp_migrate.settings.linting import LintSettings, load_settings

_State = tuple[tuple[str, int, int], ...]


def as_bytes(text: str) -> tuple[bytes, str]:
    """Return what the text would be in a file, and in which encoding: the one that its head declares."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(text.encode("utf-8", "surrogatepass")).readline)
        return text.encode(encoding), encoding
    except (SyntaxError, UnicodeError):
        # Whoever reads the bytes says what is wrong with them.
        return text.encode("utf-8", "surrogatepass"), "utf-8"


class WarmLinter:
    """Judges texts with one set of settings.

    What the linter has read of other files it keeps from one text to the next, which is what one types. It starts
    anew for another file, and where a file that the findings rest on has changed.
    """

    def __init__(self, settings: LintSettings) -> None:
        self.settings = settings
        self.linting = Linting(settings, cached=False)
        self.rules: dict[str, RuleInfo] = {rule.code: rule for rule in self.linting.rules}
        self._excluded = ignore_spec(settings.exclude)
        self._path: Path | None = None
        self._rests_on: dict[str, tuple[int, int] | None] = {}
        self._circular = False

    def excludes(self, path: Path) -> bool:
        """Whether the settings say that such files are passed over."""
        root = self.settings.root
        if self._excluded is None or not path.is_relative_to(root):
            return False
        return bool(self._excluded.check_file(path.relative_to(root).as_posix()).include)

    def forget_files(self) -> None:
        """Start anew with the next text; may be called in the middle of this one."""
        self._path = None

    def judge(self, path: Path, text: str, before: Found | None) -> Found:
        """Return what is found in a text; where it is no Python, what is left of ``before``."""
        if self.excludes(path):
            return Found(text)
        self._renew_if_needed(path)
        result = self.linting.judge.judge(path, as_bytes(text)[0])
        if not result.lasting:
            # The alarm may have rung anywhere in the linter.
            self.forget_files()
        self._remember(path, [name for name, _ in result.dependencies])
        rests_on = frozenset(self._rests_on)
        if result.problem and not result.diagnostics:
            left = left_of(before, text) if before else ()
            return Found(text, left, result.problem, judged=False, dependencies=rests_on)
        run = self.linting.collect([result])
        return Found(text, tuple(run.diagnostics), result.problem, dependencies=rests_on)

    def mended(self, path: Path, found: Found) -> str:
        """Return a text with all that can be mended safely."""
        data, encoding = as_bytes(found.text)
        return mend(path, data, found.diagnostics, False, self.linting.run_text).after.decode(encoding)

    def _renew_if_needed(self, path: Path) -> None:
        changed = any(_seen(name) != known for name, known in self._rests_on.items())
        if path != self._path or changed or self._circular:
            self.linting.judge.renew()
            self._rests_on.clear()
            self._circular = False
        self._path = path

    def _remember(self, path: Path, names: list[str]) -> None:
        """Note the state of the files that were read, and whether one of them speaks of the judged one in turn."""
        new = [name for name in names if name not in self._rests_on]
        self._rests_on |= {name: _seen(name) for name in new}
        word = (path.parent if path.stem == "__init__" else path).stem.encode()
        self._circular = self._circular or any(word in _content(name) for name in new)


@dataclass
class _Known:
    state: _State
    warm: WarmLinter | None
    baseline: tuple[int, int] | None = None
    error: UserError | None = None


@dataclass
class Projects:
    """The linters of all projects that files are open of.

    Attributes:
        config: a file of settings for all of them, as ``--config`` names it.
    """

    config: Path | None = None
    _folders: dict[Path, _Known] = field(default_factory=dict)

    def linter(self, path: Path) -> WarmLinter:
        """Return the linter for a file, with the settings that hold at this moment.

        Raises:
            UserError: the settings of its project cannot be read.
        """
        folder = Path(os.path.realpath(path.parent))
        known = self._folders.get(folder)
        if known is None or self._state(folder, known.warm.settings.baseline if known.warm else None) != known.state:
            known = self._folders[folder] = self._load(folder)
        if known.error is not None:
            raise known.error
        assert known.warm is not None
        return known.warm

    def _load(self, folder: Path) -> _Known:
        try:
            settings = load_settings(folder, self.config)
            state = self._state(folder, settings.baseline)
            baseline = _seen(str(settings.baseline)) if settings.baseline else None
            for other in self._folders.values():
                if other.warm and (other.warm.settings, other.baseline) == (settings, baseline):
                    return _Known(state, other.warm, baseline)
            return _Known(state, WarmLinter(settings), baseline)
        except UserError as error:
            return _Known(self._state(folder, None), None, error=error)

    def _state(self, folder: Path, baseline: Path | None) -> _State:
        """Return what changes with the settings: size and time of the files that they may stand in."""
        files = [self.config] if self.config else [above / "pyproject.toml" for above in (folder, *folder.parents)]
        seen = ((str(file), _seen(str(file))) for file in [*files, *([baseline] if baseline else [])])
        return tuple((name, *state) for name, state in seen if state is not None)


def _seen(name: str) -> tuple[int, int] | None:
    try:
        status = os.stat(name)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _content(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError:
        return b""
