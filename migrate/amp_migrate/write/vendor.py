"""Copying the runtime beside a script, for people who do not want a dependency."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from importlib.machinery import PathFinder
from pathlib import Path

from amp_migrate.problems import Problem, UserError

PACKAGE = "amp_runtime"


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


def state(folder: Path, source: Path) -> str:
    """Compare the copy in ``folder`` with the runtime: ``"missing"``, ``"same"`` or ``"different"``."""
    copy = folder / PACKAGE
    if not copy.exists() and not copy.is_symlink():
        return "missing"
    return "same" if copy.is_dir() and _contents(copy) == _contents(source) else "different"


def conflict(folder: Path) -> Problem:
    """Return the problem of a copy that this program did not make."""
    message = "exists and differs from this version of the runtime; rename or remove it, then run again"
    return Problem(folder / PACKAGE, message)


def copy_runtime(folder: Path, source: Path, temporary: str | None = None) -> Problem | None:
    """Copy the runtime into ``folder``, whole or not at all, and return what prevented it.

    It is prepared in a folder beside it, called ``temporary`` if that is given.
    """
    found = state(folder, source)
    if found == "same":
        return None
    if found == "different":
        return conflict(folder)
    target = folder / PACKAGE
    try:
        if temporary is not None:
            staging = folder / temporary
            staging.mkdir()
        else:
            staging = Path(tempfile.mkdtemp(dir=folder, prefix=f".{PACKAGE}."))
        try:
            shutil.copytree(source, staging / PACKAGE, ignore=_ignored)
            os.rename(staging / PACKAGE, target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except (OSError, shutil.Error) as error:
        strerror = error.strerror if isinstance(error, OSError) else None
        return Problem(target, f"cannot be written: {strerror or error}")
    return None


def _ignored(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name == "__pycache__" or name.endswith((".pyc", ".pyo"))}


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".pyc", ".pyo")
    }
