"""``--report FILE``: the option that both commands have, and what it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from amp_migrate.problems import UserError, shown

if TYPE_CHECKING:
    from amp_migrate.report.pages import Migration
    from amp_migrate.verify.evidence import Evidence

_HTML, _MARKDOWN = ".html", ".md"
_NEEDED = ("jinja2", "pygments", "matplotlib")


def _checked(ctx: click.Context, param: click.Parameter, values: tuple[Path, ...]) -> tuple[Path, ...]:
    """Refuse what could not be written in the end, before any work is done."""
    for path in values:
        if path.suffix not in (_HTML, _MARKDOWN):
            raise click.BadParameter(f"{shown(path)} ends neither in {_HTML} nor in {_MARKDOWN}.", ctx, param)
        if not path.parent.is_dir():
            raise click.BadParameter(f"there is no folder {shown(path.parent)} to write {path.name} to.", ctx, param)
        if path.is_dir():
            raise click.BadParameter(f"{shown(path)} is a folder.", ctx, param)
    missing = [name for name in _NEEDED if values and find_spec(name) is None]
    if missing and any(path.suffix == _HTML for path in values):
        from amp_migrate.installation import install_line

        names = " and ".join(missing)
        raise click.UsageError(f"an HTML report needs {names}: {install_line('report', here=True)}", ctx)
    return values


report_option = click.option(
    "--report",
    "reports",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    callback=_checked,
    help="Write a report for reviewers: FILE.html is a page with the diff side by side, FILE.md the description of a "
    "pull request. May be repeated.",
)


def write_reports(paths: Sequence[Path], migration: Migration, evidence: Evidence | None = None) -> None:
    """Write the reports that ``--report`` asks for.

    Raises:
        UserError: one cannot be written, or the settings of ``amp-lint`` cannot be read.
    """
    for path in paths:
        if path.suffix == _HTML:
            from amp_migrate.report.html import render_html

            text = render_html(migration, evidence)
        else:
            from amp_migrate.report.markdown import render_markdown

            text = render_markdown(migration, evidence)
        try:
            path.write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise UserError(f"{shown(path)} cannot be written: {error.strerror or error}") from error
