"""The Python that runs the scripts: which it is, and what it finds to import."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from amp_migrate.problems import UserError

_PATIENCE = 120.0
# Nothing is imported: that would take seconds, and might start something.
_PROBE = """
import importlib.util, json, sys
found = [name for name in ("torch", "apex") if importlib.util.find_spec(name) is not None]
print(json.dumps([list(sys.version_info[:2]), found]))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python with torch.

    Attributes:
        command: its path.
        has_apex: whether it has NVIDIA Apex, of whatever version.
    """

    command: str
    has_apex: bool


def find_interpreter(named: str | None, cwd: Path, environment: Mapping[str, str]) -> Interpreter:
    """Look at the Python that was named, or at the one in which this program runs.

    Raises:
        UserError: it does not run, is too old, or has no torch.
    """
    command = _command(named)
    option = "--python" if named else "this Python"
    try:
        done = subprocess.run(
            [command, "-c", _PROBE],
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UserError(f"{option} ({command}) does not run: {reason}") from error
    try:
        version, found = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        said = done.stderr.strip().splitlines()
        raise UserError(f"{option} ({command}) does not run Python: {said[-1] if said else 'no answer'}") from error
    if tuple(version) < (3, 10):
        raise UserError(f"{option} ({command}) is Python {version[0]}.{version[1]}; it needs 3.10 or later")
    if "torch" not in found:
        other = "" if named else "; name the one that trains with --python"
        raise UserError(f"{option} ({command}) has no torch, so nothing can be run{other}")
    return Interpreter(command, "apex" in found)


def _command(named: str | None) -> str:
    if named is None:
        return sys.executable
    if os.sep in named:
        # Not resolved: a virtual environment is known by the path of its link.
        return os.path.abspath(os.path.expanduser(named))
    found = shutil.which(named)
    if found is None:
        raise UserError(f"--python {named}: there is no such command")
    return found
