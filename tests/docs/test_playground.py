"""The playground's parts, without a browser: what its archive holds and finds, how Pyodide is fetched; and search."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import chinese
import playground
import playground_words
import pyodide_package
import pytest
import site_pages
from amp_rules.lint.finding import SEVERITIES
from doc_pages import ROOT, blocks

BLOCKED = ("libcst", "click", "rich", "pathspec", "torch", "numpy")
LINT = """
import importlib.abc, sys

class Fence(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError("fenced off: " + name)

sys.meta_path.insert(0, Fence())
sys.path.insert(0, sys.argv[1])
import linting
assert linting.__file__.startswith(sys.argv[1]) and sys.modules["amp_rules"].__file__.startswith(sys.argv[1])
for text in sys.argv[2:]:
    print(linting.lint(text, "O1", "fp16", "cuda", False))
"""


def test_the_archive_finds_what_the_command_finds_and_needs_nothing_else(tmp_path):
    archive = tmp_path / "amp_lint.zip"
    playground.archive(archive)
    script = (ROOT / "fixtures/checks/AMP601/fires_constants.py").read_text(encoding="utf-8")
    texts = [playground.SCRIPT, script, "import torch\ndef broken(:\n", ""]
    # Isolated: what is installed here is not found beside the archive.
    code = LINT.format(blocked=BLOCKED)
    done = subprocess.run(
        [sys.executable, "-ISc", code, str(archive), *texts], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    first, second, broken, empty = map(json.loads, done.stdout.splitlines())
    assert {item["code"] for item in first["findings"]} >= {"AMP601", "AMP708", "AMP811"}
    assert first["problem"] is None
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    start = "from amp_migrate.commands.lint import main; main()"
    command = [sys.executable, "-c", start, "train.py", "--format", "json", "--no-cache"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    known = json.loads(done.stdout)["findings"]
    assert [(item["code"], item["message"]) for item in second["findings"]] == [
        (item["code"], item["message"]) for item in known
    ]
    assert broken["findings"] == [] and broken["problem"]["line"] == 2
    assert empty == {"findings": [], "problem": None}


def test_the_archive_is_the_same_each_time(tmp_path):
    for name in ("a", "b"):
        playground.archive(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("page", ["playground", "zh/playground"])
def test_ten_migrations_are_shown_each_of_one_script(page):
    (block,) = [block for block in blocks(ROOT / f"docs/{page}.md") if block.language == "{migrations}"]
    fixtures = [line.partition(": ")[0] for line in block.text.splitlines()]
    assert len(fixtures) == len(set(fixtures)) == 10
    assert all(len(list((ROOT / "fixtures" / name).glob("*.py"))) == 1 for name in fixtures)


def test_a_migration_is_shown_with_its_diff_and_its_notes():
    done = playground.migrated("runnable/regression_numpy_logging", "torch")
    assert "--- a/train.py" in done.diff and "GradScaler" in done.diff and "amp_runtime" not in done.diff
    assert "AMP291" in done.summary
    lines = playground.example("runnable/lbfgs_closure", "train.py", "闭包", playground_words.CHINESE)
    assert not any("diff" in line for line in lines) and any("nothing to change" in line for line in lines)
    assert ":::::{dropdown} 闭包" in lines and ":::{tab-item} 纯 PyTorch" in lines


def test_each_language_has_all_words_and_says_the_same_with_them():
    english, chinese_words = playground_words.ENGLISH, playground_words.CHINESE
    assert list(english) == list(chinese_words)
    holes = [
        {name: sorted(re.findall(r"{(\w+)}", text)) for name, text in said.items()} for said in (english, chinese_words)
    ]
    assert holes[0] == holes[1]
    assert [name for name, text in chinese_words.items() if not re.search("[\u4e00-\u9fff]", text)] == []
    assert playground_words.words("playground") is english and playground_words.words("zh/playground") is chinese_words


def test_the_script_of_the_page_says_nothing_but_the_words():
    text = (ROOT / "docs/_static/playground/playground.js").read_text(encoding="utf-8")
    code = re.sub(r"//.*", "", text)
    used = set(re.findall(r"\bwords\.(?!replace)(\w+)|\bworded\(\"(\w+)\"", code))
    asked = {name for pair in used for name in pair if name} | set(SEVERITIES)
    assert asked <= set(playground_words.ENGLISH)
    # A sentence has two words, or begins with a capital letter.
    strings = [text for pair in re.findall(r'"([^"]*)"|`([^`]*)`', code) for text in pair if text]
    assert [text for text in strings if re.search(r"[a-z] [a-z]|^[A-Z]", text)] == []


@pytest.mark.parametrize(("page", "up"), [("playground", ""), ("zh/playground", "../")])
def test_the_box_speaks_the_language_of_its_page(page, up):
    shown = playground.box(page)
    for name in ("level", "dtype", "device", "ddp", "text"):
        assert playground_words.words(page)[name] in shown
    kept = re.search(r'data-words="([^"]*)"', shown)
    assert kept and json.loads(html.unescape(kept[1])) == playground_words.words(page)
    assert f'src="{up}_static/playground/playground.js"' in shown


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """An npm that brings a package of the bytes that it is told."""
    kept = tmp_path / "build" / "package.tgz"
    monkeypatch.setattr(pyodide_package, "KEPT", kept)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    def brings(text: str, status: int = 0) -> Path:
        script = folder / "npm"
        script.write_text(f"#!/bin/sh\nprintf %s '{text}' > {kept}\necho offline >&2\nexit {status}\n")
        script.chmod(0o755)
        return kept

    return brings


def test_a_package_that_is_not_the_pinned_one_is_not_taken(npm):
    kept = npm("another")
    with pytest.raises(pyodide_package.FetchError, match="is not the package that is pinned"):
        pyodide_package.fetch()
    assert not kept.exists() and not pyodide_package.is_there()


def test_why_nothing_was_fetched_is_told(npm, monkeypatch):
    npm("", status=1)
    with pytest.raises(pyodide_package.FetchError, match="npm: offline"):
        pyodide_package.fetch()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(pyodide_package.FetchError, match="npm is not installed"):
        pyodide_package.fetch()


def test_the_pinned_package_is_taken(npm, monkeypatch):
    kept = npm("right")
    wanted = base64.b64encode(hashlib.sha512(b"right").digest()).decode()
    monkeypatch.setattr(pyodide_package, "INTEGRITY", f"sha512-{wanted}")
    pyodide_package.fetch()
    assert kept.read_bytes() == b"right" and pyodide_package.is_there()


@pytest.mark.parametrize(("page", "said"), [("playground", "has no playground"), ("zh/playground", "没有在线试用")])
def test_where_pyodide_is_missing_the_page_says_so(npm, page, said):
    asked = SimpleNamespace(env=SimpleNamespace(note_reread=lambda: None, docname=page))
    (shown,) = playground.Playground.run(asked)
    assert said in shown.astext() and "python docs/_ext/pyodide_package.py" in shown.astext()


def test_chinese_is_cut_into_pairs_and_all_else_into_words():
    assert chinese.words("用 amp-lint 检查混合精度，O1。") == [
        "用",
        "amp",
        "lint",
        "检查",
        "查混",
        "混合",
        "合精",
        "精度",
        "O1",
    ]
    assert chinese.translated("On this page") == "本页内容" and chinese.translated("Search") == "搜索"


def test_sources_are_linked_where_the_repository_is_known():
    known = site_pages.source_options({"Repository": "https://github.com/owner/name"})
    assert known["source_repository"] == "https://github.com/owner/name"
    assert site_pages.source_options({}) == site_pages.source_options({"Homepage": "https://example.org/x"}) == {}


def messages(page: Path) -> list[str]:
    """The headings and the first cells of the rows of a page that are code: messages, and nothing else."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^(?:### |\| )(`[^\n]+?)(?: \| .*)?$", text, re.MULTILINE)


def test_the_chinese_page_of_messages_has_those_of_the_english_one_in_their_order():
    english = messages(ROOT / "docs/troubleshooting.md")
    assert len(english) > 150 and messages(ROOT / "docs/zh/troubleshooting.md") == english
