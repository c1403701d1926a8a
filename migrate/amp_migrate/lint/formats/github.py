"""Workflow commands of GitHub Actions, which show the findings in a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from amp_migrate.formats import github
from amp_migrate.lint.formats import RenderOptions
from amp_migrate.lint.formats.remarks import remarks
from amp_migrate.lint.runner import LintRun


def render(run: LintRun, options: RenderOptions) -> Iterator[str]:
    """Yield one command a finding."""
    return github.commands(remarks(run))
