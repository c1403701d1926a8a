"""Files that an import means and that no path leads to, and that share data out to the processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.source.modules import Module
from amp_rules.source.project import Project
from amp_rules.source.text import SourceError
from amp_rules.torch.packages import is_known_library

_SHARES = "DistributedSampler"


def samplers_not_read(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such import: ``import data``, where one folder beside the script alone has a ``data.py``."""
    project = own.program.project
    for module in sorted(own.modules, key=lambda item: str(item.path)):
        for node in module.tree.body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module is not None:
                names = [node.module]
            for name in names:
                path = _elsewhere(project, module, name)
                if path is None or not _has_sampler(project, path):
                    continue
                project.rest_on([path])
                place = path.relative_to(project.entry_path.parent).as_posix()
                text = (
                    f"`import {name}` finds no file from here, so that `{place}`, which has a `{_SHARES}`, was not read"
                )
                yield module, node, f"{text}: whether each epoch calls its `set_epoch` is not known"
                return


def _has_sampler(project: Project, path: Path) -> bool:
    try:
        return _SHARES in project.files.source(path).text
    except SourceError:
        return False


def _elsewhere(project: Project, importer: Module, name: str) -> Path | None:
    """The only file of the name in a folder beside the script, where an import finds none."""
    if "." in name or is_known_library(name) or project.folder(importer, name) is not None:
        return None
    if project.locate(importer.path, name) is not None:
        return None
    folders = project.files.folders(project.entry_path.parent)
    found = [path for folder in folders if (path := folder / f"{name}.py") in project.files]
    return found[0] if len(found) == 1 else None
