"""This program's runtime, and a copy of all of it."""

from __future__ import annotations

import shutil
from pathlib import Path

from amp_migrate.problems import Problem, UserError
from amp_migrate.runtimes import PACKAGE, own_runtime


def runtime_folder() -> Path:
    """Return the folder of this program's runtime.

    Raises:
        UserError: it is gone.
    """
    folder = own_runtime()
    if folder is None:
        from amp_migrate.installation import runtime_line

        raise UserError(f"the package {PACKAGE}, which is to be copied, is missing here: {runtime_line()}")
    return folder


def copy_whole(folder: Path, source: Path) -> Problem | None:
    """Copy all of the runtime into ``folder``, and return what prevented it."""
    target = folder / PACKAGE
    try:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "*.pyo"))
    except (OSError, shutil.Error) as error:
        strerror = error.strerror if isinstance(error, OSError) else None
        return Problem(target, f"cannot be written: {strerror or error}")
    return None
