"""How this program was installed, and the lines that install an extra of it, or its runtime alone.

The package is not published, so its name alone means nothing to pip. What pip noted when it installed the program does:
a folder, a wheel or a repository. This is the only place that makes such lines.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

_PACKAGE = "amp-migrate"
# Where its pyproject.toml stands in a checkout, and in a source distribution.
_RUNTIME_FOLDER = "runtime"
_OF_EXTRA = re.compile(r"""^(?P<requirement>[^;]+?)\s*;.*\bextra\s*==\s*(['"])(?P<extra>[\w-]+)\2""")


def install_line(extra: str, *, here: bool = False) -> str:
    """Return the command that installs this program with an extra.

    Args:
        extra: ``report``, ``runtime`` or ``server``, as in pyproject.toml.
        here: into the environment that this program runs in, whatever ``pip`` is on the path; else into one of the
            user's choice.
    """
    words = [*(_own_pip() if here else ["pip"]), "install"]
    try:
        installed = distribution(_PACKAGE)
    except PackageNotFoundError:
        # Run from a checkout that was put on the path by hand.
        return shlex.join([*words, f"{Path(__file__).resolve().parents[2]}[{extra}]"])
    return shlex.join([*words, *(_source(installed, extra) or _requirements(installed, extra))])


def runtime_line() -> str:
    """Return the command that installs the runtime alone, of this version, into an environment of the user's choice."""
    words = ["pip", "install"]
    try:
        installed = distribution(_PACKAGE)
    except PackageNotFoundError:
        return shlex.join([*words, str(Path(__file__).resolve().parents[2] / _RUNTIME_FOLDER)])
    source = _runtime_source(installed)
    return shlex.join([*words, *source]) if source is not None else install_line("runtime")


def runtime_requirement() -> str:
    """Return what :func:`runtime_line` installs, as a line of a file of requirements."""
    _, _, *what = shlex.split(runtime_line())
    return shlex.join(what)


def install_magic(requirement: str) -> str:
    """Return the line of a notebook that installs the runtime; ``auto`` stands for that of :func:`runtime_line`."""
    pip, install, *what = shlex.split(runtime_line())
    return "%" + shlex.join([pip, install, "-q", *(what if requirement == "auto" else [requirement])])


def _runtime_source(installed: Distribution) -> list[str] | None:
    """What pip takes to install the runtime from where the program came from, if it is known to be there."""
    noted = _noted(installed)
    url = str(noted.get("url", ""))
    if "vcs_info" in noted:
        vcs = noted["vcs_info"]
        return [f"{vcs['vcs']}+{url}@{vcs['commit_id']}#subdirectory={_RUNTIME_FOLDER}"]
    path = _path(url)
    if path is None:
        # Archives of the source have the folder; beside a wheel the other one may lie or not.
        return [f"{url}#subdirectory={_RUNTIME_FOLDER}"] if url.endswith((".tar.gz", ".zip")) else None
    if path.is_dir():
        folder = path / _RUNTIME_FOLDER
        # Of an installation that follows the checkout, the runtime is to follow it too.
        editable = ["-e"] if noted.get("dir_info", {}).get("editable") else []
        return [*editable, str(folder)] if (folder / "pyproject.toml").is_file() else None
    beside = path.with_name(path.name.replace(_PACKAGE.replace("-", "_"), "amp_runtime"))
    return [str(beside)] if beside != path and beside.is_file() else None


def _source(installed: Distribution, extra: str) -> list[str] | None:
    """What pip takes to install the program from where it came from, if that is known and still there."""
    noted = _noted(installed)
    url = str(noted.get("url", ""))
    if "vcs_info" in noted:
        vcs = noted["vcs_info"]
        return [f"{_PACKAGE}[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}"]
    path = _path(url)
    if path is None:
        return [f"{_PACKAGE}[{extra}] @ {url}"] if url else None
    if not path.exists():
        return None
    # An editable installation is to stay one.
    editable = ["-e"] if noted.get("dir_info", {}).get("editable") else []
    return [*editable, f"{path}[{extra}]"]


def _noted(installed: Distribution) -> dict[str, Any]:
    """What pip noted of where it took the program from."""
    # https://packaging.python.org/en/latest/specifications/direct-url/
    noted: dict[str, Any] = json.loads(installed.read_text("direct_url.json") or "{}")
    return noted


def _path(url: str) -> Path | None:
    """The path that the address of a file names."""
    # This loads all that is needed to fetch a page.
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    parts = urlsplit(url)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def _requirements(installed: Distribution, extra: str) -> list[str]:
    """What the extra asks for: all that is missing where the program itself is."""
    found = (_OF_EXTRA.match(line) for line in installed.requires or ())
    return [match["requirement"] for match in found if match is not None and match["extra"] == extra]


def _own_pip() -> list[str]:
    """The pip that installs into the environment of this program."""
    pip = shutil.which("pip")
    beside = pip is not None and Path(pip).parent == Path(sys.executable).parent
    return ["pip"] if beside else [sys.executable, "-m", "pip"]
