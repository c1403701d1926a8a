"""The diagnostic format of reviewdog, with the fixes as suggestions."""

from __future__ import annotations

from collections.abc import Iterator

from amp_migrate.lint.lint_run import LintRun
from amp_migrate.out.lint import RenderOptions
from amp_migrate.out.lint.lint_remarks import remarks
from amp_migrate.out.review import rdjson


def render(run: LintRun, options: RenderOptions) -> Iterator[str]:
    """Yield the document, one finding at a time."""
    return rdjson.document("amp-lint", remarks(run))
