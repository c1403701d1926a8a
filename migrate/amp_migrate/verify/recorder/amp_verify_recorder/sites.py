"""Which line of the project something comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from types import FrameType
from typing import Any

# A function of such a name hands on what others say: the line that calls it says more.
_HANDS_ON = re.compile(r"_*(?:write|emit|flush|log|print|info|debug|warn|say|report|dump|save)")


class Sites:
    """The lines of one project.

    Args:
        root: the folder that names of files are relative to, with a separator at its end.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._names: dict[str, str] = {}

    def of(self, frame: FrameType | None) -> str:
        """The innermost line of the project that led to a frame, as ``file:line``; empty without any."""
        site, _ = self._own(frame)
        return site

    def saying(self, frame: FrameType | None) -> str:
        """The same for output: a line that only hands it on is followed by the one that calls it, after a comma."""
        site, own = self._own(frame)
        if own is None or not _HANDS_ON.match(own.f_code.co_name):
            return site
        caller, _ = self._own(own.f_back)
        return f"{site}, {caller}" if caller else site

    def is_said_by(self, packages: Sequence[str], frame: FrameType | None) -> bool:
        """Whether a frame is one of these packages, and not of a line of the project that they call."""
        while frame is not None and not self.is_own(frame.f_code.co_filename):
            module = str(frame.f_globals.get("__name__", ""))
            if any(f"{module}.".startswith(f"{package}.") for package in packages):
                return True
            frame = frame.f_back
        return False

    def _own(self, frame: Any) -> tuple[str, FrameType | None]:
        while frame is not None:
            if name := self.name(frame.f_code.co_filename):
                return f"{name}:{frame.f_lineno}", frame
            frame = frame.f_back
        return "", None

    def is_own(self, name: str) -> bool:
        """Whether a file is one of the project's, and not the runtime's in it."""
        if name not in self._names:
            path = os.path.realpath(name)
            is_own = path.startswith(self._root) and f"{os.sep}amp_runtime{os.sep}" not in path and os.path.exists(path)
            self._names[name] = path[len(self._root) :] if is_own else ""
        return bool(self._names[name])

    def name(self, name: str) -> str:
        """A file of the project, relative to its folder; empty for others."""
        return self._names[name] if self.is_own(name) else ""
