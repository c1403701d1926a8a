"""The installed runtime, and a copy of all of it."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from amp_migrate.problems import Problem, UserError
from amp_migrate.vendoring.uses import PACKAGE


def runtime_folder() -> Path:
    """Return the folder of the installed runtime without importing it: it would import torch.

    Raises:
        UserError: the runtime is not installed.
    """
    # Under ``python -m`` the working directory leads the path, and may hold an older copy.
    cwd = os.getcwd()
    search = [entry for entry in sys.path if entry and os.path.realpath(entry) != os.path.realpath(cwd)]
    spec = PathFinder.find_spec(PACKAGE, search)
    if spec is None or spec.origin is None:
        raise UserError(f"--vendor: the package {PACKAGE} is not installed")
    return Path(spec.origin).parent


def copy_whole(folder: Path, source: Path) -> Problem | None:
    """Copy all of the runtime into ``folder``, and return what prevented it."""
    target = folder / PACKAGE
    try:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "*.pyo"))
    except (OSError, shutil.Error) as error:
        strerror = error.strerror if isinstance(error, OSError) else None
        return Problem(target, f"cannot be written: {strerror or error}")
    return None
