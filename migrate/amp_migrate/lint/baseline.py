"""Findings that are known already, in a file of their own.

A finding is recognised by its file, its rule and the text of its line, so that it may move. Of several equal ones as
many are known as the baseline counts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from amp_migrate.problems import UserError, shown

_VERSION = 1

Key = tuple[str, str, str]


class Place(Protocol):
    """A place that a rule names."""

    @property
    def path(self) -> Path:
        """The file."""
        ...

    @property
    def code(self) -> str:
        """The rule's code."""
        ...


class Known(Protocol):
    """What a baseline can list: a finding of ``amp-lint``, or something that ``amp-migrate`` declines."""

    @property
    def finding(self) -> Place:
        """Where it is."""
        ...

    @property
    def line_text(self) -> str:
        """The line on which it begins."""
        ...


KnownItem = TypeVar("KnownItem", bound=Known)


@dataclass
class Baseline:
    """The findings that a file lists.

    Attributes:
        path: of the file; the files of findings are named relative to its folder.
        mode: in which they were found.
        known: how many of each kind there are.
    """

    path: Path
    mode: str = ""
    known: Counter[Key] = field(default_factory=Counter)

    @cached_property
    def _folder(self) -> Path:
        return self.path.resolve().parent

    def new(self, diagnostics: Iterable[KnownItem]) -> Iterator[KnownItem]:
        """Yield what the baseline does not know."""
        left = self.known.copy()
        for item in diagnostics:
            key = self.key(item)
            if left[key] > 0:
                left[key] -= 1
            else:
                yield item

    def stale(
        self, diagnostics: Iterable[Known], files: Iterable[Path], codes: frozenset[str], mode: str
    ) -> Counter[Key]:
        """Return what the baseline lists of these files and rules and is not found any more.

        In another mode than that in which the baseline was made there may be less to find.
        """
        if mode != self.mode:
            return Counter()
        names = {self._name(path) for path in files}
        left = Counter({key: count for key, count in self.known.items() if key[0] in names and key[1] in codes})
        left.subtract(key for item in diagnostics if (key := self.key(item)) in left)
        return +left

    def key(self, item: Known) -> Key:
        """Return what a finding is recognised by."""
        return self._name(item.finding.path), item.finding.code, item.line_text

    def _name(self, path: Path) -> str:
        try:
            return Path(os.path.relpath(path, self._folder)).as_posix()
        except ValueError:
            # Another drive.
            return path.as_posix()


def read_baseline(path: Path) -> Baseline:
    """Read what :func:`render_baseline` has written.

    Raises:
        UserError: the file cannot be read or is no baseline.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Baseline(path, document["mode"], Counter(dict(_entries(document))))
    except OSError as error:
        raise UserError(f"{shown(path)}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{shown(path)}: is not a baseline; --write-baseline makes one") from error


def render_baseline(path: Path, mode: str, diagnostics: Sequence[Known]) -> str:
    """Return the text of the baseline that lists these findings, sorted so that its diffs are small."""
    baseline = Baseline(path)
    counts = Counter(baseline.key(item) for item in diagnostics)
    files: dict[str, list[dict[str, Any]]] = {}
    for (name, code, line), count in sorted(counts.items()):
        files.setdefault(name, []).append({"code": code, "line": line, "count": count})
    return json.dumps({"version": _VERSION, "mode": mode, "files": files}, indent=1, ensure_ascii=False) + "\n"


def _entries(document: Mapping[str, Any]) -> Iterator[tuple[Key, int]]:
    if document["version"] != _VERSION:
        raise ValueError(document["version"])
    for name, rows in document["files"].items():
        for row in rows:
            yield (name, row["code"], row["line"]), int(row["count"])
