"""Settings of the documentation site; ``scripts/docs.sh`` builds it."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from site_pages import source_options

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

project = "amp-migrate"
author = "the amp-migrate authors"
copyright = author
release = version = version_of("amp-migrate")
language = "en"
# Options stay as they are typed: --ddp is no dash.
smartquotes = False
# What one backquote means in the help of the commands.
default_role = "literal"
# Blocks that name no language are commands and messages, except in docstrings: see api.md.
highlight_language = "text"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
    "chinese",
    "figures",
    "gallery",
    "playground",
    "rule_pages",
    "site_pages",
]
exclude_patterns = ["_build", "_ext", "_generated", "_static"]

myst_enable_extensions = ["colon_fence", "deflist"]
# Links between pages are written as for GitHub: safety.md, ../README.md, lint.md#options.
myst_heading_anchors = 3

nitpicky = True
autodoc_typehints = "description"
autodoc_typehints_format = "fully-qualified"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# Names of other packages, which have their own documentation and are not fetched for a build without network.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|numpy|np|collections|contextlib|pathlib|os|typing|types|click)\b.*"),
    # Type variables, and types that docstrings name in short.
    ("py:.*", r"amp_runtime\._\w+\.\w+\.[A-Z]"),
    ("py:.*", r"(Tensor|nn\..*|Module|Path|PathLike|Iterable|Callable|Any|optional)"),
]

html_search_language = "en-zh"
html_theme = "furo"
html_title = f"amp-migrate {release}"
html_static_path = ["_static"]
html_favicon = "_static/icon.svg"
html_css_files = ["custom.css"]
html_js_files = ["rules.js"]
html_show_sourcelink = False
html_copy_source = False
_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
html_theme_options = {
    "sidebar_hide_name": False,
    "top_of_page_buttons": ["view", "edit"],
    **source_options(_PROJECT.get("urls", {})),
}

# A prompt is not copied, nor is what a command prints.
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
copybutton_exclude = ".linenos, .gp, .go"
