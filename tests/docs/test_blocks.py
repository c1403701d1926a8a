"""What pages show is real: no command escapes the tests, settings are known, translations have the same code."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import click
import pytest
import yaml
from amp_migrate.commands.lint import main as lint
from amp_migrate.commands.migrate import main as migrate
from amp_migrate.commands.verify import verify
from amp_migrate.settings import linting as lint_settings
from amp_migrate.settings import migration
from doc_pages import PAGES, ROOT, VERBS, Order, blocks, commands, files, is_made, named, parts, spans
from test_commands import SKIPPED, TRANSLATED

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
COMMAND = re.compile(r"^\s*(\$ )?(\w+=\S* )*(amp-migrate|amp-lint|torchrun|python3?|pip|git|scripts/\w+\.sh)( |$)")
HOLDS_NO_COMMANDS = {"console", "diff", "python", "toml", "{toctree}"}
"""Blocks in which such a line is something else: they are run, compared, compiled, parsed or lists of pages."""
ABRIDGED = {ROOT / "docs/zh/index.md", ROOT / "docs/zh/quantization.md"}
"""Translations that leave parts of their originals out."""
WHOLE = [page for page in TRANSLATED if page not in ABRIDGED]
IN_JOBS = {"yaml"}
"""Blocks in which a line that is indented belongs to a job, and is no command for a terminal."""


def every(*languages: str):
    return [
        pytest.param(block, id=f"{named(page)}:{block.line}")
        for page in PAGES
        if page not in TRANSLATED
        for block in blocks(page)
        if block.language in languages
    ]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_stands_in_a_console_block(page):
    escaped = [
        f"line {number}: {line}"
        for block in blocks(page)
        if block.language not in HOLDS_NO_COMMANDS and block not in files(page)
        for number, line in enumerate(block.text.splitlines(), block.line)
        if COMMAND.match(line) and not (block.language in IN_JOBS and line.startswith(" "))
    ]
    assert escaped == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_comment_for_the_tests_is_understood(page):
    meant = re.findall(r"^.*<!-- *test\b.*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    orders = [part for part in parts(page) if isinstance(part, Order)]
    assert len(orders) == len(meant)
    assert {order.verb for order in orders} <= set(VERBS)


@pytest.mark.parametrize("block", every("console"))
def test_what_a_skipped_command_names_exists(block):
    for command in commands(block):
        prefix = next((prefix for prefix in SKIPPED if command.text.startswith(prefix)), None)
        words = shlex.split(command.text, comments=True)
        if prefix == "pip install":
            for word in words[2:]:
                # No index has the package: its name alone is not installed.
                if word == "./runtime":
                    continue
                extra = re.fullmatch(r"\.(?:\[([\w,-]+)\])?", word)
                assert extra or not word.startswith((".", "amp-migrate")), word
                assert not extra or set((extra[1] or "runtime").split(",")) <= set(EXTRAS)
        elif prefix and prefix.startswith("scripts/"):
            script = ROOT / words[0]
            assert script.stat().st_mode & 0o111
            assert subprocess.run(["bash", "-n", str(script)], timeout=60).returncode == 0


def options(command: click.Command) -> set[str]:
    """Return the options of a command."""
    declared = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return declared | {"--help", "-h"}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_options_of_commands_within_the_text_exist(page):
    for span in spans(page):
        words = re.findall(r"(?<!\S)--?[a-zA-Z][\w-]*", span.partition(" -- ")[0])
        if span.startswith("amp-migrate verify "):
            assert set(words) <= options(verify), span
        elif span.startswith("amp-migrate "):
            assert set(words) <= options(migrate), span
        elif span.startswith("amp-lint "):
            assert set(words) <= options(lint), span
        elif span.startswith("python ") and (file := re.match(r"python (\w+/[\w/]+\.py)", span)):
            assert (ROOT / file[1]).exists(), span


@pytest.mark.parametrize("block", every("toml"))
def test_settings_are_those_of_the_programs(block, tmp_path):
    file = tmp_path / "pyproject.toml"
    file.write_text(block.text, encoding="utf-8")
    tables = tomllib.loads(block.text).get("tool", {})
    if "amp-migrate" in tables:
        migration.load_settings(tmp_path, file)
    if "amp-lint" in tables:
        lint_settings.load_settings(tmp_path, file)


@pytest.mark.parametrize("block", every("yaml"))
def test_yaml_is_valid(block):
    assert yaml.safe_load(block.text)


@pytest.mark.parametrize("block", every("python"))
def test_python_compiles(block):
    compile(block.text, "page", "exec")


def untranslated(page):
    """The blocks of a page without what a translation says in them: the titles of migrations."""
    titled = re.compile(": .*")
    return [
        (block.language, titled.sub("", block.text) if block.language == "{migrations}" else block.text)
        for block in blocks(page)
    ]


@pytest.mark.parametrize("page", WHOLE, ids=named)
def test_a_translation_has_the_blocks_of_its_original(page):
    assert untranslated(page) == untranslated(TRANSLATED[page])


@pytest.mark.parametrize("page", WHOLE, ids=named)
def test_a_translation_has_the_sections_and_tables_of_its_original(page):
    def shape(text: str) -> list[str]:
        text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        return [match[0] for match in re.finditer(r"^(#+|\|)(?= )", text, re.MULTILINE)]

    assert shape(page.read_text(encoding="utf-8")) == shape(TRANSLATED[page].read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", WHOLE, ids=named)
def test_a_translation_names_the_code_that_its_original_names(page):
    assert sorted(set(spans(page))) == sorted(set(spans(TRANSLATED[page])))


@pytest.mark.parametrize("page", sorted(ABRIDGED), ids=named)
def test_an_abridged_translation_names_nothing_that_its_original_does_not(page):
    original = TRANSLATED[page].read_text(encoding="utf-8")
    assert [span for span in spans(page) if span not in original] == []
    commands_of = {
        line.partition("#")[0].strip() for block in blocks(TRANSLATED[page]) for line in block.text.splitlines()
    }
    lines = {
        line.partition("#")[0].strip()
        for block in blocks(page)
        if block.language != "{toctree}"
        for line in block.text.splitlines()
    }
    assert lines <= commands_of


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_to_files_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"`[^`\n]*`", "", text)  # what stands in code, `heads[task](x)`, is no link
    links = {link for link in re.findall(r"\]\(([^)#\s]+)", prose) if "://" not in link}
    lost = [link for link in sorted(links) if not (page.parent / link).exists()]
    assert [link for link in lost if not is_made(page, (page.parent / link).resolve())] == []
