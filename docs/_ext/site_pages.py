"""What the site does beyond Sphinx: links from codes to rules, pages from outside of ``docs``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform

_CODE = re.compile(r"\b(AMP[1-9]\d\d)\b")
_AT_ROOT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


class LinkCodes(SphinxPostTransform):
    """Makes every mention of a code, as in AMP601, a link to the rule's page."""

    default_priority = 800

    def run(self, **kwargs: Any) -> None:
        """Replace the texts that hold codes."""
        for text in list(self.document.findall(nodes.Text)):
            if not _CODE.search(text) or _inside(text, (nodes.title, nodes.reference, nodes.literal_block)):
                continue
            parts = _CODE.split(text.astext())
            linked = [self._link(part) if index % 2 else nodes.Text(part) for index, part in enumerate(parts)]
            text.parent.replace(text, [node for node in linked if node.astext()])

    def _link(self, code: str) -> nodes.Node:
        page = f"rules/{code}"
        if page not in self.env.found_docs or page == self.env.docname:
            return nodes.Text(code)
        address = self.app.builder.get_relative_uri(self.env.docname, page)
        return nodes.reference("", code, refuri=address, internal=True)


def _inside(node: nodes.Node, kinds: tuple[type[nodes.Element], ...]) -> bool:
    parent = node.parent
    while parent is not None:
        if isinstance(parent, kinds):
            return True
        parent = parent.parent
    return False


def copy_outside(app: Sphinx) -> None:
    """Bring the pages at the root of the repository and the measurements into the site."""
    folder = Path(app.srcdir)
    (folder / "benchmarks").mkdir(exist_ok=True)
    for path in (*(folder.parent / name for name in _AT_ROOT), *sorted((folder.parent / "benchmarks").glob("*.md"))):
        copy = folder / _copied(path.relative_to(folder.parent).as_posix())
        text = path.read_text(encoding="utf-8")
        if not copy.exists() or copy.read_text(encoding="utf-8") != text:
            copy.write_text(text, encoding="utf-8")


def _copied(path: str) -> str:
    """Where the copy of a file of the repository lies in ``docs``; ``readme.md`` is not taken for its index there."""
    return "readme.md" if path == "README.md" else path


def point_inside(app: Sphinx, page: str, source: list[str]) -> None:
    """Let links that lead out of ``docs``, or back into it, as they must on GitHub, lead to pages of the site."""
    up = "../" * page.count("/")
    if page in {_copied(name).removesuffix(".md") for name in _AT_ROOT}:
        source[0] = source[0].replace("](docs/", "](")
    else:
        source[0] = re.sub(
            rf"\]\({re.escape(up)}\.\./((?:README|CONTRIBUTING|CHANGELOG|SECURITY)\.md|benchmarks/\w+\.md)",
            lambda match: f"]({up}{_copied(match[1])}",
            source[0],
        )


def look_up_amp(app: Sphinx, env: BuildEnvironment, node: nodes.Element, shown: nodes.Node) -> nodes.Node | None:
    """Find ``amp.name``, as docstrings of the runtime call it, under ``amp_runtime.name``."""
    kind, name = node.get("reftype", ""), node.get("reftarget", "")
    if not name.startswith("amp."):
        return None
    name = f"amp_runtime.{name.removeprefix('amp.')}"
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, kind, name, node, shown)


def source_options(urls: Mapping[str, str]) -> dict[str, str]:
    """What the theme needs for links to the source of a page; nothing where the project names no repository.

    Args:
        urls: ``[project.urls]`` of ``pyproject.toml``.
    """
    named = {name.lower(): url for name, url in urls.items()}
    for name in ("repository", "source", "source code", "homepage"):
        if re.match(r"https://(github|gitlab|bitbucket)\.(com|org)/[^/]+/[^/]+/?$", named.get(name, "")):
            return {"source_repository": named[name], "source_branch": "main", "source_directory": "docs/"}
    return {}


def hide_source(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Keep pages that the build makes or copies from linking to a source that is not there."""
    made = page.startswith(("rules/", "gallery/", "benchmarks/"))
    if made or page in {_copied(name).removesuffix(".md") for name in _AT_ROOT}:
        context["page_source_suffix"] = None


def fold_navigation(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Have the navigation hold the way to the page alone: that to every rule would be most of each page."""
    whole = context.get("toctree")
    if whole is not None:
        context["toctree"] = lambda **options: whole(**{**options, "collapse": True})


def keep_columns(app: Sphinx, context: object, lines: list[str]) -> None:
    """Show the lines of a command's help that it keeps from being wrapped as a block with their spaces."""
    kept: list[str] = []
    for line in lines:
        is_kept, was_kept = line.startswith("| "), bool(kept) and kept[-1].startswith("   ")
        if is_kept and not was_kept:
            kept += ["", ".. code-block:: text", ""]
        elif was_kept and not is_kept:
            kept.append("")
        kept.append(f"   {line[2:]}" if is_kept else line)
    lines[:] = kept


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect all of it."""
    app.add_post_transform(LinkCodes)
    app.connect("builder-inited", copy_outside)
    app.connect("source-read", point_inside)
    app.connect("missing-reference", look_up_amp)
    for part in ("description", "epilog"):
        app.connect(f"sphinx-click-process-{part}", keep_columns)
    app.connect("html-page-context", hide_source)
    app.connect("html-page-context", fold_navigation, priority=100)  # before the theme asks for it
    return {"parallel_read_safe": True, "parallel_write_safe": True}
