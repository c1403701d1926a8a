"""The runtime that this program brings along, and the one that scripts import in the same environment.

amp-runtime is a distribution of the same files. So that neither overwrites or removes what the other has installed, the
wheel of this program has them in a folder of its own, which a .pth puts at the end of the path (pyproject.toml). Where
both are installed, scripts import amp-runtime's, which may be of another version.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path

PACKAGE = "amp_runtime"
_BROUGHT = Path(__file__).parent / "own_runtime" / PACKAGE
_VERSION = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)


def own_runtime() -> Path | None:
    """Return the folder of the runtime of this version, if it is there; in a checkout it is the one on the path."""
    return _BROUGHT if (_BROUGHT / "__init__.py").is_file() else imported_runtime()


def imported_runtime() -> Path | None:
    """Return the folder of the installed runtime that scripts import, without importing it: it would import torch."""
    # Under ``python -m`` the working directory leads the path, and may hold an older copy.
    cwd = os.getcwd()
    search = [entry for entry in sys.path if entry and os.path.realpath(entry) != os.path.realpath(cwd)]
    spec = PathFinder.find_spec(PACKAGE, search)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def trains_here() -> bool:
    """Whether migrated scripts run in this environment as it is: the runtime and torch are installed."""
    return imported_runtime() is not None and PathFinder.find_spec("torch") is not None


def other_runtime() -> str | None:
    """Say that scripts here import another runtime than the one that this program writes for, and what to do."""
    own, imported = own_runtime(), imported_runtime()
    if own is None or imported is None or own == imported or _code(own) == _code(imported):
        return None
    theirs, ours = _version(imported), _version(own)
    what = f"{PACKAGE} {theirs}" if theirs != ours else f"another build of {PACKAGE} {theirs}"
    return (
        f"scripts here import {what} ({imported}), and amp-migrate {ours} writes for its own; take the amp-runtime "
        "that goes with it, or uninstall amp-runtime here: amp-migrate has the runtime in itself"
    )


def _version(runtime: Path) -> str:
    try:
        found = _VERSION.search((runtime / "_version.py").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found[1] if found is not None else "of an unknown version"


def _code(runtime: Path) -> dict[Path, bytes]:
    return {path.relative_to(runtime): path.read_bytes() for path in runtime.rglob("*.py")}
