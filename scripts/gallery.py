#!/usr/bin/env python
"""Verifies the migrations of the gallery and writes what was found to ``docs/gallery/evidence``.

    python scripts/gallery.py [NAME ...]

The pages are made from it when the documentation is built. A test says when a script or its migration has changed
since, and this has to be run again. It takes about a minute for each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs" / "_ext"))

from gallery import EVIDENCE, Shown, copied, digest, gallery, migrated

COMMAND = [sys.executable, "-m", "amp_migrate", "verify", "--format", "json"]


def verified(shown: Shown) -> dict[str, Any]:
    """Verify one migration; the evidence with the digest of what it holds for.

    Raises:
        SystemExit: it was not proved: such a migration has no place in the gallery.
    """
    with copied(shown.folder):
        command = [*COMMAND, shown.entry, "--", *shown.arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{shown.name}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        return {"of": digest(migrated(shown)), **json.loads(done.stdout)}


def main(names: list[str]) -> None:
    """Verify the migrations whose names are given, or all."""
    EVIDENCE.mkdir(exist_ok=True)
    for shown in gallery():
        if not names or shown.name in names:
            shown.evidence.write_text(json.dumps(verified(shown), indent=1) + "\n", encoding="utf-8")
            print(f"{shown.name}: proved")


if __name__ == "__main__":
    main(sys.argv[1:])
