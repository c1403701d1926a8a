"""Writes a page and a report for each migration of the gallery, from its script as it is and its committed evidence.

The pages are made anew by every build, below ``docs/gallery``, and are not committed. What is committed beside
``gallery.toml`` is the evidence, which takes minutes to find: ``scripts/gallery.py`` does it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from amp_migrate.out.delivery import diffs
from amp_migrate.report.html import render_html
from amp_migrate.report.markdown import render_markdown
from amp_migrate.report.pages import VERDICTS, Migration
from amp_migrate.run.migration import Run
from amp_migrate.verify.evidence import Evidence, from_json
from amp_migrate.verify.versions import migrated_now
from amp_migrate.verify.words import reach, reach_label
from amp_rules.plan.options import Options
from sphinx.application import Sphinx

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).parents[1]
FIXTURES = DOCS.parent / "fixtures"
FOLDER = DOCS / "gallery"
EVIDENCE = FOLDER / "evidence"
OPTIONS = Options(opt_level="O1", ddp=True)


@dataclass(frozen=True)
class Shown:
    """One migration of the gallery.

    Attributes:
        folder: the project before it.
        entry: the script, relative to the folder.
        arguments: what the script is started with.
    """

    name: str
    folder: Path
    title: str
    about: str
    entry: str
    arguments: tuple[str, ...]

    @property
    def evidence(self) -> Path:
        """Where its evidence lies."""
        return EVIDENCE / f"{self.name}.json"


def gallery() -> list[Shown]:
    """Return the migrations that ``gallery.toml`` names."""
    found = []
    for item in tomllib.loads((FOLDER / "gallery.toml").read_text(encoding="utf-8"))["migration"]:
        folder = FIXTURES / item["fixture"]
        stated = tomllib.loads((folder / "expect.toml").read_text(encoding="utf-8"))
        arguments = tuple(stated.get("args", stated.get("on", ())))
        found.append(Shown(item["name"], folder, item["title"], item["about"], stated["entry"], arguments))
    return found


@contextlib.contextmanager
def copied(folder: Path) -> Iterator[Path]:
    """Copy the project of a fixture out of this repository, where it is one of its own, and work in the copy."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        project = Path(place).resolve() / "project"
        shutil.copytree(folder, project, ignore=shutil.ignore_patterns("expect.toml", "__pycache__"))
        os.chdir(project)
        try:
            yield project
        finally:
            os.chdir(here)


def migrated(shown: Shown) -> Run:
    """Migrate the copy that is the working directory, in memory."""
    run = migrated_now(Path(shown.entry), OPTIONS).run
    assert run is not None
    return run


def digest(run: Run) -> str:
    """What tells whether evidence is of this migration: a digest over every changed file before and after."""
    parts = [
        [path.name, update.source.data.decode("utf-8", "replace"), update.data.decode("utf-8", "replace")]
        for path, update in sorted(run.updates.items())
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def evidence(shown: Shown) -> tuple[str, Evidence]:
    """The committed evidence, and the digest of the migration that it is of."""
    document = json.loads(shown.evidence.read_text(encoding="utf-8"))
    return document.pop("of"), from_json(json.dumps(document))


def write(shown: Shown) -> None:
    """Write the page and the report of one migration."""
    with copied(shown.folder):
        run = migrated(shown)
        migration = Migration(run, OPTIONS)
        of, found = evidence(shown)
        if of != digest(run):
            raise RuntimeError(f"the evidence of {shown.name} is of another version: run scripts/gallery.py")
        changes = "".join(lines.decode("utf-8", "replace") for lines in diffs(run).values())
        report = render_html(migration, found)
        text = render_markdown(migration, found)
    (FOLDER / "reports").mkdir(exist_ok=True)
    (FOLDER / "reports" / f"{shown.name}.html").write_text(report, encoding="utf-8")
    (FOLDER / f"{shown.name}.md").write_text(_page(shown, changes, text), encoding="utf-8")


def _page(shown: Shown, changes: str, text: str) -> str:
    command = " ".join(["amp-migrate verify", shown.entry, *(["--", *shown.arguments] if shown.arguments else [])])
    fence = "`" * (max(map(len, re.findall(r"`+", changes)), default=2) + 1)
    return "\n".join(
        [
            f"# {shown.title}",
            "",
            shown.about,
            "",
            f'`{command}` &nbsp; <a href="reports/{shown.name}.html">The whole report</a>',
            "",
            "## The diff",
            "",
            f"{fence}diff\n{changes}{fence}",
            "",
            "## For the pull request",
            "",
            "This is what `--report FILE.md` writes.",
            "",
            re.sub(r"^(#+ )", r"#\1", text, flags=re.MULTILINE),
        ]
    )


def index(every: list[Shown]) -> str:
    """Return the Markdown of the gallery's first page."""
    rows = ["| migration | style | verdict |", "| --- | --- | --- |"]
    for shown in every:
        found = evidence(shown)[1]
        verdict = f"{VERDICTS[found.verdict]}. {reach_label(found.verdict)} {reach(found)}"
        rows.append(f"| [{shown.title}]({shown.name}.md) | {shown.about} | {verdict} |")
    return "\n".join(
        [
            "# Gallery: migrations of scripts in many styles",
            "",
            "Scripts in different styles, what `amp-migrate --ddp` makes of them, and what `amp-migrate verify` found.",
            "Each page has the diff, the text for a pull request, and the report for reviewers.",
            "",
            *rows,
            "",
            ":::{toctree}\n:hidden:\n",
            *(shown.name for shown in every),
            ":::",
            "",
        ]
    )


def generate(app: Sphinx) -> None:
    """Write all pages before they are read."""
    every = gallery()
    for shown in every:
        write(shown)
    (FOLDER / "index.md").write_text(index(every), encoding="utf-8")


def deliver(app: Sphinx, error: Exception | None) -> None:
    """Bring the reports into the site, as they are."""
    if error is None and app.builder.format == "html":
        shutil.copytree(FOLDER / "reports", Path(app.outdir) / "gallery" / "reports", dirs_exist_ok=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", generate)
    app.connect("build-finished", deliver)
    return {"parallel_read_safe": True}
