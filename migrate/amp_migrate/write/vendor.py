"""Copying the runtime beside a script, for people who do not want a dependency."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from amp_migrate.installation import runtime_line
from amp_migrate.problems import Problem, UserError
from amp_migrate.runtimes import PACKAGE as PACKAGE
from amp_migrate.runtimes import own_runtime


def runtime_folder() -> Path:
    """Return the folder of this program's runtime.

    Raises:
        UserError: it is gone.
    """
    folder = own_runtime()
    if folder is None:
        raise UserError(f"the package {PACKAGE}, which is to be copied, is missing here: {runtime_line()}")
    return folder


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
