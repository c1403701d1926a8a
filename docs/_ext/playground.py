"""The playground: the linter in the browser, and migrations that are computed when the site is built.

Python for browsers (:mod:`pyodide_package`) and an archive of the linter lie beside the page, which asks no other
server for anything. Where Pyodide was not fetched, the page says so and has the migrations alone.
"""

from __future__ import annotations

import html
import json
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyodide_package
from amp_migrate.commands.migrate import main
from click.testing import CliRunner
from docutils import nodes
from gallery import FIXTURES, copied
from playground_words import words
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = FIXTURES.parent
FOLDER = "_static/playground"
TARGETS = ("runtime", "torch")
_LINTER = {
    "rules/amp_rules": ("", "torch", "source", "flow", "roles", "ranks", "text", "lattice", "lint", "checks"),
    "migrate/amp_migrate": ("", "lint", "notebook", "run", "settings"),
}
"""The packages that find something in a text; "" is the files beside them. None of them needs LibCST for it."""
SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.queries = nn.Linear(width, width)
        self.keys = nn.Linear(width, width)

    def forward(self, x, mask):
        scores = self.queries(x) @ self.keys(x).transpose(1, 2)
        scores = scores.masked_fill(mask, -1e9)
        return F.softmax(scores, -1) / (x.norm(dim=-1, keepdim=True) + 1e-8)


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler()
    for x, mask, wanted in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = F.binary_cross_entropy(torch.sigmoid(model(x, mask)), wanted)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
_PAGE = """\
<div id="playground" data-words="{words}">
<form>
<label>{level} <select name="level"><option>O1<option>O2<option>O3</select></label>
<label>{dtype} <select name="dtype"><option>fp16<option>bf16</select></label>
<label>{device} <select name="device"><option>cuda<option>cpu</select></label>
<label><input type="checkbox" name="ddp"> {ddp}</label>
</form>
<textarea aria-label="{text}" spellcheck="false" autocapitalize="off" autocomplete="off" wrap="off" rows="24">
{script}</textarea>
<p class="status" role="status"></p>
<ol class="findings"></ol>
<script type="module" src="{folder}/playground.js"></script>
</div>
"""
_FETCH = "python docs/_ext/pyodide_package.py"


class Playground(SphinxDirective):
    """The box for a text with what the linter finds in it."""

    def run(self) -> list[nodes.Node]:
        """Return the box, or the word that it is missing."""
        # Whether Pyodide is there may differ between two builds.
        self.env.note_reread()
        said = words(self.env.docname)
        if not pyodide_package.is_there():
            missing = said["missing"].format(command=_FETCH)
            return [nodes.warning("", nodes.paragraph("", missing), classes=["no-playground"])]
        return [nodes.raw("", box(self.env.docname), format="html")]


def box(page: str) -> str:
    """Return the box as it stands on a page."""
    said = {name: html.escape(text) for name, text in words(page).items()}
    return _PAGE.format(
        **said,
        words=html.escape(json.dumps(words(page), ensure_ascii=False)),
        script=html.escape(SCRIPT),
        folder="../" * page.count("/") + FOLDER,
    )


@dataclass(frozen=True)
class Migrated:
    """What a migration prints: the diff, and the summary with its notes."""

    diff: str
    summary: str


@cache  # each language shows it
def migrated(fixture: str, target: str) -> Migrated:
    """Migrate the one script of a fixture in a copy, as the command does.

    Raises:
        RuntimeError: the command fails.
    """
    (script,) = (FIXTURES / fixture).glob("*.py")
    with copied(FIXTURES / fixture):
        done = CliRunner().invoke(main, [script.name, "--ddp", "--target", target, "-j", "1"])
    if done.exit_code:
        raise RuntimeError(f"{fixture}: {done.output}")
    return Migrated(done.stdout, done.stderr)


class Migrations(SphinxDirective):
    """Migrations of fixtures, each to both targets; a line of the content is ``fixture: what it shows``."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return a folded part for each, with a tab for each target."""
        lines: list[str] = []
        for line in self.content:
            fixture, _, title = line.partition(": ")
            (script,) = (FIXTURES / fixture).glob("*.py")
            self.env.note_dependency(str(script))
            lines += example(fixture, script.name, title, words(self.env.docname))
        return self.parse_text_to_nodes("\n".join(lines))


def example(fixture: str, script: str, title: str, said: dict[str, str]) -> list[str]:
    """Return the lines of one migration: a folded part with a tab for each target, which ``said`` names."""
    lines = [f":::::{{dropdown}} {title}", "::::{tab-set}"]
    for target in TARGETS:
        done = migrated(fixture, target)
        lines += [
            f":::{{tab-item}} {said[target]}",
            *_fenced("console", f"$ amp-migrate {script} --ddp --target {target}"),
            *(_fenced("diff", done.diff) if done.diff else []),
            *_fenced("text", done.summary),
            ":::",
        ]
    return [*lines, "::::", ":::::", ""]


def _fenced(language: str, text: str) -> list[str]:
    fence = "`" * 6
    return [f"{fence}{language}", text.rstrip("\n"), fence, ""]


def archive(path: Path) -> None:
    """Write the archive of the linter, the same bytes for the same sources."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as files:
        for folder, packages in _LINTER.items():
            base = ROOT / folder
            for package in packages:
                found = (base / package).rglob("*.py") if package else base.glob("*.py")
                for source in sorted(found):
                    _add(files, source, source.relative_to(base.parent).as_posix())
        _add(files, ROOT / "docs" / FOLDER / "linting.py", "linting.py")


def _add(files: zipfile.ZipFile, source: Path, name: str) -> None:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    files.writestr(entry, source.read_bytes())


def deliver(app: Sphinx, error: Exception | None) -> None:
    """Put Python and the linter beside the page."""
    if error is None and app.builder.format == "html" and pyodide_package.is_there():
        folder = Path(app.outdir) / FOLDER
        pyodide_package.unpack(folder / "pyodide")
        archive(folder / "amp_lint.zip")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("playground", Playground)
    app.add_directive("migrations", Migrations)
    app.connect("build-finished", deliver)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
