"""Versions of packages that a project pins in what stands beside its code."""

from __future__ import annotations

import re

from amp_rules.source.project import Project
from amp_rules.source.text import SourceError

_REQUIREMENTS = re.compile(r"requir\w*(?:[-.]\w+)*\.txt|environment.*\.ya?ml", re.I)


def pinned_version(project: Project, package: str) -> tuple[int, int] | None:
    """The version that all requirements of a project name for a package, as far as one is named exactly.

    ``dgl==0.4.3``, ``dgl-cu101==0.4.3`` in ``requirements.txt``, beside the script or at the top of the project, and
    ``- dgl=0.4.3`` in an environment of conda.
    """
    line = re.compile(rf"^[\s-]*{re.escape(package)}(?:-cu\w+)?\s*={{1,2}}\s*v?(\d+)\.(\d+)", re.MULTILINE | re.I)
    found: set[tuple[int, int]] = set()
    for folder in dict.fromkeys([project.root, project.entry_path.parent]):
        for name in project.files.names(folder):
            if not _REQUIREMENTS.fullmatch(name):
                continue
            try:
                text = project.settings_text(folder / name)
            except SourceError:
                continue
            found |= {(int(major), int(minor)) for major, minor in line.findall(text)}
    return found.pop() if len(found) == 1 else None
