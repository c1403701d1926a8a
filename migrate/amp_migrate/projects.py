"""Which project a file belongs to, and which files are written together."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from amp_migrate.git import git_root


def project_folder(path: Path) -> Path:
    """Return the folder of the project that a file belongs to: its git work tree, or what looks like a project."""
    from amp_rules.source.project import project_root

    return git_root(path) or project_root(path)


def together(paths: Iterable[Path], joined: Iterable[Sequence[Path]]) -> list[list[Path]]:
    """Group files by project; files that are ``joined`` belong together whatever projects they lie in."""
    projects: defaultdict[Path, set[Path]] = defaultdict(set)
    for path in paths:
        projects[project_folder(path)].add(path)
    plain = [root for root in projects if not os.path.lexists(root / ".git")]
    for root in plain:
        # Without git each folder of scripts looks like a project, and so does the folder above.
        outer = min((other for other in plain if root.is_relative_to(other)), key=lambda folder: len(folder.parts))
        if outer != root:
            projects[outer] |= projects.pop(root)
    groups = list(projects.values())
    for some in joined:
        touching = [group for group in groups if not group.isdisjoint(some)]
        if len(touching) > 1:
            groups = [group for group in groups if group not in touching]
            groups.append(set().union(*touching))
    return sorted(sorted(group) for group in groups)
