"""Workflow commands of GitHub Actions, which show the findings in a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from amp_migrate.lint.lint_run import LintRun
from amp_migrate.out.lint import RenderOptions
from amp_migrate.out.lint.lint_remarks import remarks
from amp_migrate.out.review import github


def render(run: LintRun, options: RenderOptions) -> Iterator[str]:
    """Yield one command a finding."""
    return github.commands(remarks(run))
