"""How this program was installed, and the line that installs an extra of it.

The package is not published, so its name alone means nothing to pip. What pip noted when it installed the program does:
a folder, a wheel or a repository. This is the only place that makes such a line.
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
from urllib.parse import urlsplit
from urllib.request import url2pathname

_PACKAGE = "amp-migrate"
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


def _source(installed: Distribution, extra: str) -> list[str] | None:
    """What pip takes to install the program from where it came from, if that is known and still there."""
    # https://packaging.python.org/en/latest/specifications/direct-url/
    noted: dict[str, Any] = json.loads(installed.read_text("direct_url.json") or "{}")
    url = str(noted.get("url", ""))
    if "vcs_info" in noted:
        vcs = noted["vcs_info"]
        return [f"{_PACKAGE}[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}"]
    parts = urlsplit(url)
    if parts.scheme != "file":
        return [f"{_PACKAGE}[{extra}] @ {url}"] if url else None
    path = Path(url2pathname(parts.path))
    if not path.exists():
        return None
    # An editable installation is to stay one.
    editable = ["-e"] if noted.get("dir_info", {}).get("editable") else []
    return [*editable, f"{path}[{extra}]"]


def _requirements(installed: Distribution, extra: str) -> list[str]:
    """What the extra asks for: all that is missing where the program itself is."""
    found = (_OF_EXTRA.match(line) for line in installed.requires or ())
    return [match["requirement"] for match in found if match is not None and match["extra"] == extra]


def _own_pip() -> list[str]:
    """The pip that installs into the environment of this program."""
    pip = shutil.which("pip")
    beside = pip is not None and Path(pip).parent == Path(sys.executable).parent
    return ["pip"] if beside else [sys.executable, "-m", "pip"]
