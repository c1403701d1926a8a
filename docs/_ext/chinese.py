"""The site in Chinese: navigation and words of the theme on Chinese pages, links between languages, and search.

A Chinese text has no spaces between its words. The index has each pair of neighbouring characters as a word, and a
question is cut the same way: no dictionary is needed, and every word is found in every page that holds it.
"""

from __future__ import annotations

import gettext
import re
from functools import cache
from typing import Any

from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment.adapters.toctree import TocTree
from sphinx.locale import _LOCALE_DIR
from sphinx.search.en import SearchEnglish

FOLDER = "zh/"
HOME = f"{FOLDER}index"
_WORDS = {
    "Skip to content": "跳到正文",
    "Back to top": "回到顶部",
    "On this page": "本页内容",
    "Next": "下一页",
    "Previous": "上一页",
    "Home": "首页",
    "Search": "搜索",
    "Contents": "目录",
    "Edit this page": "编辑本页",
    "View this page": "查看源文件",
}
"""What the theme says and Sphinx has not translated."""
_CHARACTERS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_RUNS = re.compile(rf"[{_CHARACTERS}]+|[^\W{_CHARACTERS}]+")


def words(text: str) -> list[str]:
    """Cut a text into what is looked up: words, and of Chinese each pair of characters that follow each other."""
    found: list[str] = []
    for run in _RUNS.findall(text):
        if len(run) > 1 and re.match(f"[{_CHARACTERS}]", run):
            found += [run[index : index + 2] for index in range(len(run) - 1)]
        else:
            found.append(run)
    return found


class Search(SearchEnglish):
    """The search in pages of both languages."""

    lang = "en-zh"
    language_name = "English"  # names the stemmer in the browser
    js_splitter_code = f"""
const chinese = /^[{_CHARACTERS}]/u;
var splitQuery = (query) =>
  (query.match(/[{_CHARACTERS}]+|(?:(?![{_CHARACTERS}])[\\p{{Letter}}\\p{{Number}}_])+/gu) || [])
    .flatMap((run) => {{
      const characters = [...run];
      return !chinese.test(run) || characters.length === 1
        ? [run]
        : characters.slice(1).map((character, index) => characters[index] + character);
    }});
"""

    def split(self, input: str) -> list[str]:
        """Return the words of a text."""
        return words(input)


@cache
def _catalogue() -> gettext.NullTranslations:
    return gettext.translation("sphinx", _LOCALE_DIR, languages=["zh_CN"], fallback=True)


def translated(text: str) -> str:
    """What the theme says, in Chinese where that is known."""
    return _WORDS.get(text) or _catalogue().gettext(text)


def speak_chinese(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Give Chinese pages their language, for fonts, hyphenation and screen readers too, and their own navigation."""
    other = _other(app, page)
    if other is not None and "body" in context:
        link = f'<a href="{app.builder.get_relative_uri(page, other)}"'
        link += ' lang="en">English</a>' if page.startswith(FOLDER) else ' lang="zh-CN">中文</a>'
        context["body"] = f'<p class="other-language">{link}</p>\n{context["body"]}'
    if not page.startswith(FOLDER):
        return
    context["language"] = "zh-CN"
    context["_"] = context["gettext"] = translated
    context["toctree"] = lambda **options: _navigation(app, page, options)


def _other(app: Sphinx, page: str) -> str | None:
    """The page in the other language."""
    other = page.removeprefix(FOLDER) if page.startswith(FOLDER) else f"{FOLDER}{page}"
    return other if other in app.env.found_docs else None


def _navigation(app: Sphinx, page: str, options: dict[str, Any]) -> str:
    """The contents of the Chinese landing page, in place of those of the English one."""
    asked = {key: options[key] for key in ("maxdepth", "titles_only", "includehidden") if key in options}
    parts = [
        part
        for node in app.env.get_doctree(HOME).findall(addnodes.toctree)
        if (part := TocTree(app.env).resolve(page, app.builder, node, collapse=True, **asked)) is not None
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole += part.children
    rendered: str = app.builder.render_partial(whole)["fragment"]  # type: ignore[attr-defined]
    return rendered


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_search_language(Search)
    app.connect("html-page-context", speak_chinese, priority=200)  # before the theme asks for the navigation
    return {"parallel_read_safe": True, "parallel_write_safe": True}
