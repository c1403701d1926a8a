"""The documentation site: it builds without a warning, leads nowhere wrong, and has a page for every code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import amp_runtime as amp
import formats
import numeric_claims
import numpy as np
import pytest
import rule_pages
import torch
from amp_migrate.lint.catalogue import load_rules
from amp_rules.plan.note_pages import all_noted
from amp_rules.plan.refusal_pages import all_reasons
from amp_rules.rewrites import all_rules
from click.testing import CliRunner
from doc_pages import PAGES, is_made

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REASONS = all_reasons()
NOTES = all_noted()
CODES = {rule.code for rule in (*all_rules(), *load_rules(), *REASONS, *NOTES)}


# ---- pages of the rules ------------------------------------------------------------------------------------


def made_with_the_site(test: Callable[..., None]) -> Callable[..., None]:
    """Making the pages migrates hundreds of fixtures, so the build of the site does it for these tests too."""
    return pytest.mark.heavy(pytest.mark.xdist_group("site")(test))


@pytest.fixture(scope="module")
def pages(site_folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "rules").glob("*.md")}


@made_with_the_site
def test_every_code_has_a_page_and_a_row_in_the_index(pages):
    assert set(pages) == {"index", *(f"{family}xx" for family in rule_pages.FAMILIES), *CODES}
    rows = re.findall(r"^\| \[(AMP\d+)\]\(\1\.md\) \|", pages["index"], re.MULTILINE)
    assert sorted(rows) == sorted(CODES)


def test_every_code_in_the_sources_of_the_rules_has_a_page():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "rules").rglob("*.py"))
    written = set(re.findall(r'Rule\(\s*"(AMP\d+)"', sources)) | set(
        re.findall(r'^    code = "(AMP\d+)"', sources, re.M)
    )
    assert len(written) > 150 and written - {"AMP800"} <= CODES  # a base of rules


@pytest.mark.parametrize("rule", REASONS, ids=lambda rule: rule.code)
def test_the_page_of_a_reason_says_what_is_refused_why_and_what_to_do(rule):
    head, *sections = rule_pages.sections(rule.page)
    assert head.text.endswith(".") and head.text.count("\n") == 0
    assert [section.title for section in sections] == ["What is refused", "Why", "What to do by hand"]
    assert all(section.text for section in sections)
    assert max(map(len, rule.page.splitlines())) <= 120


@pytest.mark.parametrize("rule", NOTES, ids=lambda rule: rule.code)
def test_the_page_of_a_note_says_what_is_noted_why_and_what_to_do(rule):
    head, *sections = rule_pages.sections(rule.page)
    assert head.text == rule.message
    assert [section.title for section in sections] == ["What is noted", "Why", "What to do by hand"]
    assert all(section.text for section in sections)


@made_with_the_site
def test_every_case_is_shown_on_the_page_of_its_rule(pages):
    for folder in sorted((ROOT / "fixtures").glob("AMP*")):
        assert pages[folder.name].count("{dropdown}") == len(list(folder.iterdir())), folder
    for folder in sorted((ROOT / "fixtures/checks").glob("AMP*")):
        scripts = [*folder.glob("fires_*.py"), *folder.glob("silent_*.py")]
        assert pages[folder.name].count("{dropdown}") == len(scripts), folder


@made_with_the_site
def test_every_declined_script_is_shown_with_what_the_tool_says(pages):
    for folder in sorted((ROOT / "fixtures/declines").glob("AMP*")):
        shown = pages[folder.name].split("{dropdown}")[1:]
        assert len(shown) == len(list(folder.iterdir()))
        assert all("*By hand:*" in text for text in shown), folder


def test_pages_of_rules_that_are_gone_are_removed(tmp_path, monkeypatch):
    (tmp_path / "AMP100.md").write_text("# AMP100\n")
    monkeypatch.setattr(rule_pages, "pages", lambda: {"AMP101": "# AMP101\n"})
    rule_pages.write_pages(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["AMP101.md"]


# ---- what is written by hand -------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["index.md", "zh/index.md"])
def test_the_diff_on_the_landing_page_is_real(page):
    from amp_migrate.commands.migrate import main

    script = ROOT / "fixtures/runnable/flat_convnet/train.py"
    done = CliRunner().invoke(main, [str(script), "--opt-level", "O1", "--ddp", "-q"])
    shown = re.search(r"```diff\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert done.exit_code == 0 and shown is not None
    assert shown[1].count("@@") == 2 and shown[1] in done.stdout


def test_the_reference_has_every_public_name_once():
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\. (?:autofunction|autoclass|data):: amp_runtime\.(\S+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted([*set(amp.__all__) - {"optim"}, *(f"optim.{name}" for name in amp.optim.__all__)])


def test_codes_that_the_pages_name_exist():
    for page in PAGES:
        named = set(re.findall(r"\bAMP[1-9]\d\d\b", page.read_text(encoding="utf-8")))
        assert named <= CODES, page


def links(page: Path) -> Iterator[str]:
    """The relative links of a page, outside of code."""
    text = re.sub(r"^(```+|~~~+).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if not urlsplit(target).scheme:
            yield target


def headings(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_of_the_repository(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists() or is_made(page, target), link
        assert not anchor or is_made(page, target) or target.suffix != ".md" or anchor in headings(target), link


# ---- numbers -----------------------------------------------------------------------------------------------


def test_every_number_of_the_page_about_numerics_is_computed():
    text = " ".join((DOCS / "numerics.md").read_text(encoding="utf-8").split())
    for claim in numeric_claims.claims():
        assert claim in text
        text = text.replace(claim, " ")
    text = re.sub(r"\b(fp16|fp32|bf16|tf32|O[0-3]|AMP\d+|set_float32_matmul_precision)\b", "", text)
    assert re.findall(r".{40}\d+", text) == []


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(formats.FP16, torch.float16), (formats.BF16, torch.bfloat16), (formats.FP32, torch.float32)],
    ids=lambda item: getattr(item, "name", ""),
)
def test_the_formats_round_as_torch_does(kind, dtype):
    random = np.random.default_rng(3)
    # From below the smallest number of each to above the largest, with ties and signs.
    sizes = np.log2(kind.smallest) - 2, min(np.log2(kind.largest) + 2, 128)
    numbers = random.choice([-1.0, 1.0], 20_000) * 2.0 ** random.uniform(*sizes, 20_000)
    ties = (np.arange(1, 200) + 0.5) * kind.smallest
    numbers = np.concatenate(
        [numbers, ties, [0.0, kind.largest, kind.largest + kind.spacing(kind.largest) / 2, np.inf]]
    )
    # Through float32, as torch converts, so that a number is not rounded twice here and once there.
    if dtype is not torch.float32:
        numbers = numbers.astype(np.float32).astype(np.float64)
    wanted = torch.from_numpy(numbers).to(dtype).double().numpy()
    assert np.array_equal(kind.round(numbers), wanted)
    assert (torch.finfo(dtype).max, torch.finfo(dtype).tiny, torch.finfo(dtype).eps) == (
        kind.largest,
        kind.smallest_normal,
        kind.epsilon,
    )


# ---- the built site ----------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Where a page leads, and what can be led to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.language = ""
        self.without_text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.targets |= {value for key in ("href", "src") if (value := found.get(key))}
        self.anchors |= {value for key in ("id", "name") if (value := found.get(key))}
        if tag == "html":
            self.language = found.get("lang") or ""
        if tag == "img" and not found.get("alt"):
            self.without_text.append(found.get("src") or "")


@pytest.fixture
def site(site_folder: Path) -> dict[Path, Page]:
    """The pages of the built site."""
    return {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site_folder.rglob("*.html"))}


@made_with_the_site
def test_the_site_leads_nowhere_wrong(site):
    wrong = []
    for path, page in site.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or target.startswith("data:"):
                continue
            other = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not other.exists() or (
                parts.fragment and other in site and unquote(parts.fragment) not in site[other].anchors
            ):
                wrong.append((path.name, target))
    assert wrong == []
    names = {path.stem for path in site}
    assert names >= CODES | {"index", "tutorial", "numerics", "decisions", "api", "commands"}
    assert [page.without_text for page in site.values() if page.without_text] == []
    chinese = {path.name: page.language for path, page in site.items() if path.parent.name == "zh"}
    assert chinese and set(chinese.values()) == {"zh-CN"}
    assert {page.language for path, page in site.items() if path.parent.name != "zh"} == {"en"}
