"""Python for browsers, as the playground uses it: a pinned package of npm that is fetched once, and never committed.

As a script it fetches the package; ``scripts/docs.sh`` calls it. A build of the site uses what is there and fetches
nothing.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

VERSION = "314.0.7"
INTEGRITY = "sha512-0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
"""Of the package, as npm writes it into lock files."""
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip")
"""What a page needs of it."""
KEPT = Path(__file__).parents[1] / "_build" / f"pyodide-{VERSION}.tgz"
_SECONDS = 120


class FetchError(Exception):
    """The package could not be fetched, or is another one."""


def is_there() -> bool:
    """Whether the package was fetched, and is the one that is meant."""
    return KEPT.is_file() and _integrity(KEPT) == INTEGRITY


def fetch() -> None:
    """Fetch the package, unless it is there.

    Raises:
        FetchError: npm is missing, does not reach its registry, or has another package under this version.
    """
    if is_there():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError("npm is not installed")
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    command = [npm, "pack", f"pyodide@{VERSION}", "--silent", "--ignore-scripts", "--pack-destination", "."]
    try:
        done = subprocess.run(command, cwd=KEPT.parent, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"npm took longer than {_SECONDS} s") from error
    if done.returncode:
        raise FetchError(f"npm: {done.stderr.strip() or done.returncode}")
    if not is_there():
        KEPT.unlink(missing_ok=True)
        raise FetchError(f"pyodide@{VERSION} is not the package that is pinned")


def unpack(folder: Path) -> None:
    """Put what a page needs into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(KEPT) as archive:
        for name in FILES:
            member = archive.extractfile(f"package/{name}")
            assert member is not None
            (folder / name).write_bytes(member.read())


def _integrity(path: Path) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()


if __name__ == "__main__":
    try:
        fetch()
    except FetchError as error:
        sys.exit(f"note: the site is built without its playground: {error}")
