"""What ``amp-lint`` says about the migrated text of the files that changed."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from amp_rules.plan.options import Options
from amp_rules.source.text import SourceFile

from amp_migrate.lint.diagnostics import Diagnostic
from amp_migrate.notebook.reading import read_notebook
from amp_migrate.notebook.source import NotebookSource
from amp_migrate.run.discovery import NOTEBOOK
from amp_migrate.run.judging import Judge
from amp_migrate.run.linting import Linting
from amp_migrate.run.migration import Run, Update
from amp_migrate.settings.linting import load_settings


@dataclass(frozen=True)
class Findings:
    """The findings of a run over the migrated files.

    Attributes:
        mode: in which the code was judged, as ``amp-lint`` writes it.
        changed: those on lines that the migration changed.
        elsewhere: those on the other lines of these files.
    """

    mode: str
    changed: tuple[Diagnostic, ...]
    elsewhere: tuple[Diagnostic, ...]


def find(run: Run, options: Options, changed: Mapping[tuple[Path, int | None], frozenset[int]]) -> Findings:
    """Lint the migrated files with the project's own settings, as code of the level that was asked for.

    Args:
        run: the migration.
        options: what was asked of it.
        changed: the numbers of changed lines, by file and cell.

    Raises:
        UserError: the settings of ``amp-lint`` cannot be read.
    """
    first = min(run.updates, default=Path.cwd() / "none")
    # At O0 nothing is in half; what would go wrong at the first level that is says more than an empty list.
    wanted = {
        "opt_level": "O1" if options.opt_level == "O0" else options.opt_level,
        "dtype": None if options.dtype == "auto" else options.dtype,
        "ddp": options.ddp or None,
    }
    settings = load_settings(Path(os.path.realpath(first.parent)), None).overridden(wanted, "--opt-level")
    linting = Linting(settings, cached=False, known=False)
    collecting = gc.isenabled()
    try:
        found = _found(linting, run.updates)
    finally:
        if collecting:
            gc.enable()
    inside = [item for item in found if item.start.line in changed.get((item.finding.path, item.start.cell), ())]
    outside = [item for item in found if item not in inside]
    return Findings(str(settings.mode), tuple(inside), tuple(outside))


def _found(linting: Linting, updates: Mapping[Path, Update]) -> list[Diagnostic]:
    analyst = Judge(linting.job())
    # A migrated file may import another: both are judged as they will be, and not as they are on disk.
    code = {path: update for path, update in updates.items() if path.suffix in (".py", NOTEBOOK)}
    for path, update in code.items():
        analyst.linter.project.start(_source(path, update))
    return linting.collect([analyst.judge(path, update.data) for path, update in code.items()]).diagnostics


def _source(path: Path, update: Update) -> SourceFile:
    if isinstance(update.source, NotebookSource):
        return read_notebook(update.data, path).source
    return SourceFile(path, update.data, update.text, update.source.encoding)
