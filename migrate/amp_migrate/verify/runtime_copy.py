"""The copy of the runtime that migrated versions import."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from amp_migrate.problems import UserError
from amp_migrate.runtimes import PACKAGE
from amp_migrate.vendoring.installed import copy_whole, runtime_folder

_COMPILING = 60.0


@dataclass
class RuntimeCopy:
    """A folder with nothing but the runtime: beside the installed one may lie packages for another Python.

    Attributes:
        path: that folder.
        interpreter: the Python that imports it.
    """

    path: Path
    interpreter: str
    _is_made: bool = field(default=False, init=False)

    def folder(self) -> Path:
        """The folder, which is made when it is first asked for.

        Raises:
            UserError: the runtime is not installed, or cannot be copied.
        """
        if not self._is_made:
            self.path.mkdir(exist_ok=True)
            if not (self.path / PACKAGE).exists() and (problem := copy_whole(self.path, runtime_folder())):
                raise UserError(str(problem))
            self._compile()
            self._is_made = True
        return self.path

    def _compile(self) -> None:
        """Compile what many processes import, and none of them keeps; without it they only take longer."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                (self.interpreter, "-I", "-m", "compileall", "-q", str(self.path)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_COMPILING,
            )
