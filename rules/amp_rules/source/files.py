"""What imports see of the disk: which files there are, and each of them parsed once for all programs of a run."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_rules.source.modules import Module, parse
from amp_rules.source.phases import phase
from amp_rules.source.text import TOO_DEEP_MESSAGE, SourceError, SourceFile, depth_exceeds, parse_source, read_source

_DEEP = 100
"""Levels of a tree; people's code has half as many, and the analysis takes several calls a level."""
_MAX_TEXT = 6_000_000
"""Characters of source whose trees are kept; a tree takes about forty times its text."""


class Files:
    """The files of one run.

    Folders are listed once, so a file that appears during the run is not seen.

    Args:
        overrides: texts to use in place of what is on disk.

    Attributes:
        origins: of files whose text here is a draft, the line on disk that each of its lines stands for.
        kept: what others found out about folders, for all programs of the run.
    """

    def __init__(self, overrides: Mapping[Path, SourceFile] | None = None) -> None:
        self._overrides = {path.resolve(): source for path, source in (overrides or {}).items()}
        self._listings: dict[Path, Mapping[str, bool]] = {}
        self._modules: OrderedDict[Path, Module | SourceError] = OrderedDict()
        self._size = 0
        self.origins: dict[Path, Sequence[int]] = {}
        self.kept: dict[Any, Any] = {}

    def __getstate__(self) -> dict[str, object]:
        # Another process parses for itself: trees take longer to send than to make.
        return {**self.__dict__, "_modules": OrderedDict(), "_size": 0}

    def __contains__(self, path: Path) -> bool:
        return path in self._overrides or self._listing(path.parent).get(path.name) is False

    def is_folder(self, path: Path) -> bool:
        """Whether the path is a folder."""
        return self._listing(path.parent).get(path.name) is True

    def names(self, folder: Path) -> list[str]:
        """The names of the files in a folder, in order."""
        return sorted(name for name, is_folder in self._listing(folder).items() if not is_folder)

    def folders(self, folder: Path) -> list[Path]:
        """The folders in a folder, in the order of their names."""
        return sorted(folder / name for name, is_folder in self._listing(folder).items() if is_folder)

    def _listing(self, folder: Path) -> Mapping[str, bool]:
        """The names in a folder; True for those of folders."""
        known = self._listings.get(folder)
        if known is None:
            found: dict[str, bool] = {}
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    # A link that leads in a circle is neither, and hides no other name.
                    with contextlib.suppress(OSError):
                        if entry.is_dir():
                            found[entry.name] = True
                        elif entry.is_file():
                            found[entry.name] = False
            known = self._listings[folder] = found
        return known

    def source(self, path: Path) -> SourceFile:
        """The text of a file.

        Raises:
            SourceError: it cannot be read or decoded.
        """
        found = self._overrides.get(path)
        return found if found is not None else read_source(path)

    def module(self, path: Path) -> Module:
        """The parsed file, as other files import it.

        Raises:
            SourceError: it cannot be read, or is not Python that this interpreter understands.
        """
        known = self._modules.get(path)
        if known is None:
            try:
                with phase("reading"):
                    known = parse(self.source(path))
                    known.origins = self.origins.get(known.path, ())
            except SourceError as error:
                known = error
            self._modules[path] = known
            self._size += _length(known)
            while self._size > _MAX_TEXT and len(self._modules) > 1:
                self._size -= _length(self._modules.popitem(last=False)[1])
        else:
            self._modules.move_to_end(path)
        if isinstance(known, SourceError):
            raise known
        return known

    def entry(self, path: Path) -> Module:
        """The parsed file, as it is when it is run itself.

        Raises:
            SourceError: it cannot be read, or is not Python that this interpreter understands.
        """
        return self.module(path).as_entry()

    def with_texts(self, texts: Mapping[Path, SourceFile]) -> Files:
        """The same files with other texts for some; all others are parsed already."""
        found = Files()
        found._overrides = {**self._overrides, **{path.resolve(): source for path, source in texts.items()}}
        found._listings = self._listings
        found.origins = {**self.origins}
        found.kept = self.kept
        for path, module in self._modules.items():
            if path not in texts:
                found._modules[path] = module
                found._size += _length(module)
        return found

    def without_deep(self) -> Files | None:
        """The same files with the most deeply nested ones unreadable; None where there are none among those parsed."""
        deep = [
            path
            for path, module in self._modules.items()
            if isinstance(module, Module) and depth_exceeds(module.tree, _DEEP)
        ]
        if not deep:
            return None
        found = self.with_texts({})
        for path in deep:
            found._modules[path] = SourceError(path, TOO_DEEP_MESSAGE)
        return found


class SingleFile(Files):
    """One file that is parsed already and whose imports all lead out of the project, whatever lies around it."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self._module = module

    def _listing(self, folder: Path) -> Mapping[str, bool]:
        return {}

    def module(self, path: Path) -> Module:
        """The file, whose nodes stay those that others know already."""
        return self._module


def nests_deeply(path: Path) -> bool:
    """Whether a file on disk has more levels than people write, or more than Python's parser takes."""
    try:
        return depth_exceeds(parse_source(read_source(path)), _DEEP)
    except SourceError as error:
        return error.message == TOO_DEEP_MESSAGE


def _length(module: Module | SourceError) -> int:
    return len(module.source.text) if isinstance(module, Module) else 0
