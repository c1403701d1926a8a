"""The diagnostic format of reviewdog, with the fixes as suggestions."""

from __future__ import annotations

from collections.abc import Iterator

from amp_migrate.formats import rdjson
from amp_migrate.lint.formats import RenderOptions
from amp_migrate.lint.formats.remarks import remarks
from amp_migrate.lint.runner import LintRun


def render(run: LintRun, options: RenderOptions) -> Iterator[str]:
    """Yield the document, one finding at a time."""
    return rdjson.document("amp-lint", remarks(run))
