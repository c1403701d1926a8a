"""The page and the description as texts: complete, repeatable, and safe whatever the files hold."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from amp_migrate.launch.launches import Launch, Launches
from amp_migrate.report import html as html_module
from amp_migrate.report.html import render_html
from amp_migrate.report.markdown import LIMIT, render_markdown
from amp_migrate.report.pages import Migration, page
from amp_migrate.run.migration import Run
from samples import FIXTURES, evidence, failed, migration, varying

pytestmark = pytest.mark.heavy

HOSTILE = """import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
note = "</script><b>bold</b><img src=x onerror=alert(1)>"  # </style> & `code` | pipe \u202e turned
for _ in range(3):
    loss = model(torch.ones(2, 4)).sum()
    optimizer.zero_grad()
    loss.backward(); print("</script><b>")
    optimizer.step()
"""


class Tags(HTMLParser):
    """The tags of a page, which must be closed in the order in which they were opened."""

    VOID = frozenset({"meta", "link", "col", "br", "img"})

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.ids = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, self.getpos()


@pytest.fixture(scope="module")
def several():
    return migration(FIXTURES / "runnable/trainer_other_files", ddp=True)


@pytest.fixture(scope="module")
def proved(several):
    """The page of a migration that was proved."""
    return render_html(several, evidence())


@pytest.fixture
def hostile(tmp_path):
    path = tmp_path / "a <b>`x`|y & z.py"
    path.write_text(HOSTILE, encoding="utf-8")
    return migration(path)


def visible_text(html):
    html = re.sub(r"<(style|script|svg)\b.*?</\1>", "", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html))


@pytest.mark.parametrize(
    "proof",
    [None, evidence(), evidence(verdict="disproved"), failed(), varying()],
    ids=["unverified", "proved", "disproved", "failed", "varying"],
)
def test_the_page_is_well_formed_and_names_are_unique(several, proof):
    tags = Tags(render_html(several, proof))
    assert not tags.open
    assert len(tags.ids) == len(set(tags.ids))
    links = {attributes["href"][1:] for tag, attributes in tags.found if attributes.get("href", "").startswith("#")}
    assert links <= {*tags.ids} and len(links) > 10


def test_equal_input_gives_equal_bytes(several, proved):
    assert render_html(several, evidence()) == proved
    assert render_markdown(several, evidence()) == render_markdown(several, evidence())


def test_the_page_fetches_nothing(proved):
    tags = Tags(proved)
    for tag, attributes in tags.found:
        for name in ("src", "href", "xlink:href", "action", "data"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:,")) or (tag == "a" and value.startswith("https://")), (tag, value)
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", proved)


def test_every_edit_rule_reason_and_check_is_told(several, proved):
    proof = evidence()
    text = visible_text(proved)
    content = page(several, proof)
    for check in proof.checks:
        assert plain(check.title) in text and plain(check.message) in text
    for note, _ in content.rules:
        assert f"{note.code} {note.name}" in text and plain(note.why)[:60] in text
    for report in several.run.reports:
        for edit in report.edits:
            assert plain(edit.message) in text


def plain(message):
    from markupsafe import escape

    return re.sub(r"\s+", " ", str(escape(message.replace("`", ""))))


def test_the_summary_has_the_numbers_that_are_read_first(several):
    tiles = {tile.label: (tile.value, tile.tone) for tile in page(several, evidence()).tiles}
    assert tiles["O0 and original"] == ("Exact", "good")
    assert tiles["Losses apart by"] == ("0.83 %", "good")
    assert tiles["Speed at O1"] == ("1.7 to 1.9×", "plain")
    assert tiles["Changed"][0] == "4 files"
    wrong = {tile.label: tile for tile in page(several, evidence(verdict="disproved")).tiles}
    assert (wrong["O0 and original"].value, wrong["O0 and original"].tone) == ("Differs", "bad")


def test_a_run_that_failed_is_shown_with_its_error_and_without_drawings(several):
    html = render_html(several, failed())
    assert "No module named &#39;lightning_bolts&#39;" in html and "<figure" not in html
    assert "lightning" in render_markdown(several, failed())


def test_what_was_refused_is_shown_with_reason_and_recipe():
    done = migration(FIXTURES / "runnable/lbfgs_closure")
    html, text = visible_text(render_html(done)), render_markdown(done)
    (refusal,) = done.run.reports[0].refusals
    assert plain(refusal.message) in html and plain(refusal.recipe) in html
    assert "Left as it is" in html and refusal.message in text and refusal.recipe in text


def test_commands_to_replace_are_listed():
    done = migration(FIXTURES / "AMP104/two_optimizers")
    entry = done.run.reports[0].entry
    replacement = "torchrun --nproc-per-node N train.py"
    done.run.launches = Launches((Launch(FIXTURES / "run.sh", 3, "python train.py <x>", replacement, (entry,)),))
    assert "python train.py &lt;x&gt;" in render_html(done)
    assert "`torchrun --nproc-per-node N train.py`" in render_markdown(done)


def test_findings_on_changed_lines_are_told_from_the_others(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\nfrom torch import nn\n\nmodel = nn.Linear(4, 1)\n"
        "opt = torch.optim.SGD(model.parameters(), 0.1)\n"
        "mask = torch.ones(4, device='cuda').half().masked_fill_(torch.zeros(4).bool(), -1e9)\n"
        "for _ in range(3):\n"
        "    loss = model(torch.ones(2, 4)).sum() + torch.ones(4, device='cuda').half().mul(1e6).sum()\n"
        "    opt.zero_grad()\n    loss.backward()\n    opt.step()\n"
    )
    done = migration(path)
    content = page(done)
    added = content.files[0].comparisons[0].added
    for item in content.lint.changed:
        assert int(item.where.split(":")[1]) in added
    for item in content.lint.elsewhere:
        assert int(item.where.split(":")[1]) not in added
    assert content.lint.elsewhere and content.lint.changed
    assert all(item.code in render_html(done) for item in (*content.lint.changed, *content.lint.elsewhere))


def test_hostile_text_stays_text(hostile):
    proof = evidence("a <b>`x`.py", summary="</script><b> & `</code><i>`", notes=("<img src=x>",))
    html = render_html(hostile, proof)
    assert not Tags(html).open
    names = {tag for tag, _ in Tags(html).found}
    assert not names & {"b", "img", "i"}
    assert html.count("</script>") == 2 and html.count("</style>") == 1
    assert "\u202e" not in html and "\\u202e turned" in html


def test_hostile_text_does_not_break_the_description(hostile):
    text = render_markdown(hostile, evidence("a <b>`x`.py", summary="<script> | *x* [y](z)", notes=("# no | heading",)))
    assert "\\<script\\>" in text and "\\*x\\* \\[y\\](z)" in text
    outside = re.sub(r"(`+).*?\1", "", text)
    assert "<b>" not in outside and "<script>" not in outside
    tables = [part.splitlines() for part in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]
    assert len(tables) >= 4
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table}) == 1


def test_names_that_are_no_utf8_can_be_written(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/tr\xe4in.py"))
    path.write_text(HOSTILE.replace("\u202e", ""), encoding="utf-8")
    done = migration(path)
    assert render_html(done).encode() and render_markdown(done).encode()


def test_the_description_keeps_to_the_limit_and_says_what_is_left_out(several):
    big = replace(evidence(), checks=evidence().checks * 300, notes=tuple(f"note {n} " * 40 for n in range(200)))
    text = render_markdown(several, big)
    assert LIMIT // 3 < len(text.encode()) < LIMIT
    assert re.search(r"and \d+ more, which GitHub's limit", text)
    assert text.count("<details>") == text.count("</details>")
    assert "### How to undo" in text and "**Proved.**" in text


def test_the_description_says_how_to_undo(several):
    text = render_markdown(several)
    assert "`AMP_OPT_LEVEL=O0`" in text and "`amp-migrate --undo" in text


def test_a_given_version_has_a_page_without_rules(several):
    given = Migration(Run(updates=several.run.updates))
    content = page(given, evidence())
    assert content.files and not content.rules
    assert not {"Rules", "Left alone"} & {tile.label for tile in content.tiles}
    assert {"Rules", "Left alone"} <= {tile.label for tile in page(several).tiles}
    assert '<h2 id="rules-title">' not in render_html(given, evidence())


def test_nothing_to_change_is_a_page_too():
    html = render_html(Migration(Run()))
    assert (
        not Tags(html).open and "Nothing to change" in html and "Nothing to change" in render_markdown(Migration(Run()))
    )


def test_pages_of_huge_files_leave_unchanged_lines_out(tmp_path, monkeypatch):
    monkeypatch.setattr(html_module, "_FOLDED", 100)
    path = tmp_path / "train.py"
    path.write_text(HOSTILE + "".join(f"x{number} = {number}\n" for number in range(200)), encoding="utf-8")
    html = render_html(migration(path))
    assert re.search(r"19\d unchanged lines, left out of this page", html) and "x150" not in html


def test_numbers_that_are_missing_are_shown_as_such(several):
    runs = [replace(run, peak_memory=None, losses=run.losses[:1]) for run in evidence().runs]
    html = render_html(several, evidence(runs=tuple(runs), speeds=()))
    assert "Speed" not in visible_text(html).partition("Runs")[0] and "<figure" in html


@pytest.mark.parametrize("form", [render_html, render_markdown])
def test_where_a_verdict_ends_is_said_right_behind_it(several, form):
    proof = evidence()
    text = visible_text(form(several, proof)) if form is render_html else form(several, proof)
    summary = text[: text.index("O0 and original")]
    assert "Proved" in summary and f"How far it reaches: {proof.reach}" in summary.replace("**", "")
    for other in ("unproved", "disproved"):
        assert "How far it reaches" not in form(several, evidence(verdict=other))
        assert "How far it was compared:" in form(several, evidence(verdict=other))
    assert "How far it was compared" not in form(several, failed())


def test_evidence_of_an_earlier_version_still_has_an_end(several):
    early = evidence(reach="", device="NVIDIA H100")
    assert "to backward call 50 at most, on NVIDIA H100." in page(several, early).reach


@pytest.mark.parametrize("form", [render_html, render_markdown])
@pytest.mark.parametrize(("verdict", "word"), [("unproved", "Open: "), ("disproved", "Does not hold: ")])
def test_what_keeps_it_from_being_proved_is_named_first(several, form, verdict, word):
    proof = evidence(verdict=verdict)
    text = unescape(visible_text(form(several, proof))) if form is render_html else form(several, proof)
    named = [check.title for check in proof.checks if check.verdict == verdict]
    assert named and word not in form(several, evidence())
    assert all(text.index(word) < text.index(title) < text.index(proof.summary) for title in named)


@pytest.mark.parametrize("form", [render_html, render_markdown])
def test_open_checks_stand_before_those_that_hold(several, form):
    proof = evidence(verdict="unproved")
    table = unescape(form(several, proof)).rpartition("What it rests on")[2]
    places = [
        table.index(check.title)
        for verdict in ("unproved", "proved")
        for check in proof.checks
        if check.verdict == verdict
    ]
    assert places == sorted(places)


def test_of_many_open_checks_three_are_named(several):
    checks = tuple(
        replace(evidence(verdict="unproved").checks[-1], id=f"c{n}", title=f"Check {n} holds") for n in range(8)
    )
    proof = evidence(verdict="unproved", checks=checks)
    sentence = "Check 0 holds; Check 1 holds; Check 2 holds; and 5 more."
    assert sentence in visible_text(render_html(several, proof)) and sentence in render_markdown(several, proof)


def test_every_run_says_how_far_it_was_to_go(several):
    first, second, third, *others = evidence().runs
    runs = (
        replace(first, status="ended", steps_bound=None),
        replace(second, status="stopped", steps_bound=20),
        replace(third, status="timeout", steps_bound=20, error="it had made no backward call"),
        *others,
    )
    content = page(several, evidence(runs=runs))
    assert [row.until for row in content.measures.rows[:3]] == ["its end", "its bound of 20 steps", "its time was up"]
    assert content.measures.rows[2].count == "–" and not content.measures.rows[2].drawn
    text = visible_text(render_html(several, evidence(runs=runs)))
    assert "its bound of 20 steps" in text and "its time was up: it had made no backward call" in text


def clocked(proof, factor):
    """The same evidence as a busier or freer machine would give it: other speeds, other memory of the processes."""
    runs = tuple(replace(run, peak_memory=int(run.peak_memory * factor)) for run in proof.runs)
    return replace(proof, runs=runs)


@pytest.mark.parametrize("form", [render_html, render_markdown])
@pytest.mark.parametrize("factor", [0.5, 1.003, 3.0])
def test_a_machine_at_another_pace_gives_the_same_page(several, form, factor):
    assert form(several, clocked(evidence(), factor)) == form(several, evidence())


@pytest.mark.parametrize("form", [render_html, render_markdown])
def test_of_a_script_that_does_not_repeat_itself_no_loss_is_told_as_a_number(several, form):
    once = varying()
    runs = tuple(
        replace(run, losses=tuple(loss and loss * 1.25 for loss in run.losses), deviation=run.deviation and 0.02)
        for run in once.runs
    )
    text, again = (
        re.sub(r"<svg\b.*?</svg>", "", form(several, found), flags=re.DOTALL)
        for found in (once, replace(once, runs=runs))
    )
    assert text == again and "varies" in text and "The script is not reproducible" in text


def test_memory_is_told_of_a_gpu_only_and_in_two_digits(several):
    assert "Peak memory" not in render_html(several, evidence())
    html = visible_text(render_html(several, evidence(device="NVIDIA H100")))
    assert "Peak memory" in html and "about 410 MiB" in html and "412" not in html
