"""The page in a real Chromium: at a desk, on a phone, in the dark, by keyboard, on paper."""

from __future__ import annotations

import base64
import itertools
import json
import re

import pytest
from amp_migrate.report.html import render_html
from samples import FIXTURES, evidence, migration

pytestmark = pytest.mark.heavy

DESK, PHONE = (1280, 800), (390, 844)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The page of a migration of several files, with a long line and names that tags are made of."""
    folder = tmp_path_factory.mktemp("pages")
    done = migration(FIXTURES / "runnable/trainer_other_files", FIXTURES / "runnable/lbfgs_closure", ddp=True)
    proof = evidence("a" * 120 + ".py", notes=("x" * 300, "</script><b>"))
    (folder / "report.html").write_text(render_html(done, proof), encoding="utf-8")
    return (folder / "report.html").as_uri()


@pytest.fixture
def opened(chromium, address):
    """Opens the page at a size and in a scheme, and returns the browser."""

    def call(size=DESK, scheme="light", fragment="", page=address):
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        chromium.get("about:blank")
        for kind in ("browser", "performance"):
            chromium.get_log(kind)
        chromium.get(page + fragment)
        return chromium

    yield call
    chromium.execute_script("try { localStorage.clear() } catch {}")


def press(driver, *keys):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def focused(driver):
    return driver.execute_script(
        "const e = document.activeElement; return [e.tagName, e.id, e.textContent.trim().slice(0, 40)]"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_the_page_has_no_errors_fetches_nothing_and_fits(opened, address, size, scheme):
    driver = opened(size, scheme)
    assert driver.execute_script("return [document.documentElement.scrollWidth <= innerWidth, innerWidth]") == [
        True,
        size[0],
    ]
    # Unfolded too.
    driver.execute_script("for (const box of document.querySelectorAll('details')) box.open = true")
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert [entry["message"] for entry in driver.get_log("browser")] == []
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    requests = [item["params"]["request"]["url"] for item in messages if item["method"] == "Network.requestWillBeSent"]
    assert requests[:1] == [address] and all(url.startswith("data:") for url in requests[1:])
    assert not [item for item in messages if item["method"] == "Network.loadingFailed"]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """A page for each verdict; the reach is as long as that of a script in all levels and several processes."""
    folder = tmp_path_factory.mktemp("outcomes")
    done = migration(FIXTURES / "runnable/lbfgs_closure")
    for verdict in ("proved", "unproved", "disproved"):
        proof = evidence("experiments/finetune/train_with_a_long_name.py", verdict=verdict)
        (folder / f"{verdict}.html").write_text(render_html(done, proof), encoding="utf-8")
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("verdict", ["proved", "unproved", "disproved"])
def test_the_verdict_and_where_it_ends_are_read_without_scrolling(opened, outcomes, verdict, size, scheme):
    driver = opened(size, scheme, page=(outcomes / f"{verdict}.html").as_uri())
    script = """
      const parts = ['.headline', '.reach', '.in-the-way'].map(name => document.querySelector('.verdict ' + name));
      return parts.map(part => {
        if (!part) return null;
        const box = part.getBoundingClientRect(), style = getComputedStyle(part);
        const front = document.elementFromPoint(box.left + 5, (box.top + box.bottom) / 2);
        return {top: box.top, bottom: box.bottom, right: box.right, size: parseFloat(style.fontSize),
                seen: part.contains(front) && part.checkVisibility({opacityProperty: true, visibilityProperty: true})};
      })
    """
    headline, reach, in_the_way = driver.execute_script(script)
    shown = [part for part in (headline, in_the_way, reach) if part]
    assert len(shown) == (2 if verdict == "proved" else 3)
    for part in shown:
        assert part["seen"] and part["bottom"] < size[1] and part["right"] <= size[0] and part["size"] >= 14
    # Nothing but the title is larger, or comes before.
    assert [part["top"] for part in shown[1:]] == sorted(part["top"] for part in shown[1:])
    sizes = driver.execute_script(
        "return [...document.querySelectorAll('#summary *:not(h1)')].map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert headline["size"] == max(sizes)


def test_the_summary_is_on_the_first_screen(opened):
    driver = opened(DESK)
    last = driver.execute_script("return document.querySelector('#summary table').getBoundingClientRect().bottom")
    assert last < DESK[1]
    tiles = driver.execute_script(
        "return [...document.querySelectorAll('.tile')].map(tile => tile.getBoundingClientRect().bottom)"
    )
    assert len(tiles) >= 6 and max(tiles) < DESK[1] * 0.75


def test_on_a_phone_a_change_is_one_column_with_all_old_lines_first(opened):
    driver = opened(PHONE)
    script = """
      return [...document.querySelectorAll('tbody.changed')].map(block =>
        ['td.old:not(.none) code', 'td.new:not(.none) code'].map(kind =>
          [...block.querySelectorAll(kind)].map(cell => cell.getBoundingClientRect()).map(box => [box.left, box.top])))
    """
    blocks = driver.execute_script(script)
    both = [(old, new) for old, new in blocks if old and new]
    assert both
    for old, new in both:
        assert max(top for _, top in old) < min(top for _, top in new)
        assert len({left for left, _ in old + new}) == 1


def test_on_a_phone_the_whole_menu_is_seen(opened):
    driver = opened(PHONE)
    links = driver.execute_script(
        "return [...document.querySelectorAll('.bar nav a')].map(e => [e.textContent, e.getBoundingClientRect()])"
    )
    assert [text for text, _ in links][:3] == ["Summary", "Verification", "Changes"] and len(links) >= 6
    assert all(box["left"] >= 0 and box["right"] <= PHONE[0] and box["height"] for _, box in links)
    # What a link leads to is not hidden behind the menu.
    driver.execute_script("location.hash = '#changes-title'")
    below = "return document.querySelector('.bar').getBoundingClientRect().bottom"
    title = "return document.getElementById('changes-title').getBoundingClientRect().bottom"
    assert driver.execute_script(below) < driver.execute_script(title)


def test_each_rule_leads_to_the_changes_that_it_made(opened):
    driver = opened(DESK)
    script = """
      return [...document.querySelectorAll('.rule')].map(rule => {
        const code = rule.querySelector('.code').textContent;
        const made = [...document.querySelectorAll('.hunk')].filter(hunk =>
          [...hunk.querySelectorAll('.labels .code')].some(label => label.textContent == code));
        const led = [...rule.querySelectorAll('.places a')].map(link => link.getAttribute('href'));
        return [made.map(hunk => '#' + hunk.id), led];
      })
    """
    rules = driver.execute_script(script)
    assert len(rules) > 5 and all(made == led for made, led in rules) and any(len(led) > 1 for _, led in rules)


def test_at_a_desk_both_sides_stand_beside_each_other(opened):
    driver = opened(DESK)
    script = """
      return [...document.querySelectorAll('.two tr')].map(row => [...row.querySelectorAll('code')])
        .filter(pair => pair.length == 2).map(pair => pair.map(cell => cell.getBoundingClientRect()))
        .map(([old, now]) => [old.top == now.top, old.right <= now.left, Math.abs(old.width - now.width) < 2])
    """
    rows = driver.execute_script(script)
    assert len(rows) > 20 and all(row == [True, True, True] for row in rows)


def test_the_keyboard_reaches_everything(opened):
    from selenium.webdriver.common.keys import Keys

    driver = opened(DESK)
    seen = []
    for _ in range(400):
        press(driver, Keys.TAB)
        seen.append(
            driver.execute_script(
                "const e = document.activeElement;"
                "return [e.tagName, e.className, e.id, e.getAttribute('href'), e.parentElement?.className]"
            )
        )
        if seen[-1][0] == "BODY":
            break
    assert seen[-1][0] == "BODY", "the focus never left the page"
    assert seen[0][3] == "#main"
    assert any(item[2] == "theme" for item in seen)
    hunks = driver.execute_script("return document.querySelectorAll('.hunk').length")
    assert len({item[3] for item in seen if str(item[3]).startswith("#hunk-")}) == hunks > 5
    summaries = [item[4] for item in seen if item[0] == "SUMMARY"]
    assert {"file", "fold", "why", "more"} <= set(summaries)
    assert len(summaries) == driver.execute_script(
        "return [...document.querySelectorAll('summary')].filter(e => e.checkVisibility()).length"
    )


def test_what_has_the_focus_is_outlined(opened):
    from selenium.webdriver.common.keys import Keys

    driver = opened(DESK)
    for _ in range(4):
        press(driver, Keys.TAB)
        style = driver.execute_script(
            "const s = getComputedStyle(document.activeElement); return [s.outlineStyle, parseFloat(s.outlineWidth)]"
        )
        assert style[0] == "solid" and style[1] >= 2


def test_n_and_p_go_from_change_to_change(opened):
    driver = opened(DESK)
    press(driver, "n")
    first = driver.execute_script("return document.activeElement.getAttribute('href')")
    press(driver, "n", "n")
    third = driver.execute_script("return document.activeElement.getAttribute('href')")
    press(driver, "p")
    second = driver.execute_script("return document.activeElement.getAttribute('href')")
    assert [first, second, third] == ["#hunk-1", "#hunk-2", "#hunk-3"]
    place = driver.execute_script("return document.activeElement.getBoundingClientRect().top")
    assert 40 < place < DESK[1]


def test_the_toggle_switches_and_is_remembered(opened):
    driver = opened(DESK, "light")
    ground = "return getComputedStyle(document.body).backgroundColor"
    bright = driver.execute_script(ground)
    driver.find_element("id", "theme").click()
    dark = driver.execute_script(ground)
    assert (luminance(bright), luminance(dark)) == (pytest.approx(1), pytest.approx(0, abs=0.02))
    driver.refresh()
    assert driver.execute_script(ground) == dark
    assert driver.find_element("id", "theme").text == "Light"
    press(driver, "t")
    assert driver.execute_script(ground) == bright


def test_a_link_into_something_folded_unfolds_it(opened):
    driver = opened(DESK)
    driver.execute_script("for (const box of document.querySelectorAll('details')) box.open = false")
    driver.execute_script("location.hash = '#hunk-6'")
    opened_box = "return document.getElementById('hunk-6').closest('details.file').open"
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(driver, 5).until(lambda browser: browser.execute_script(opened_box))


def test_on_paper_nothing_is_folded_and_nothing_is_dark(opened, tmp_path):
    driver = opened(DESK, "dark")
    whole = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    data = base64.b64decode(whole["data"])
    assert data.startswith(b"%PDF") and 3 <= len(re.findall(rb"/Type\s*/Page\b", data)) < 40
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    try:
        hidden = driver.execute_script(
            "return [...document.querySelectorAll('details:not(.why) > *:not(summary)')]"
            ".filter(e => !e.checkVisibility()).length"
        )
        assert hidden == 0
        ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert luminance(ground) == pytest.approx(1)
        assert driver.execute_script("return getComputedStyle(document.querySelector('.bar')).display") == "none"
    finally:
        driver.execute_script("dispatchEvent(new Event('afterprint'))")
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert driver.execute_script("return document.querySelectorAll('details.fold[open]').length") == 0


def test_figures_have_words_and_tables_have_heads(opened):
    driver = opened(DESK)
    figures = driver.execute_script(
        "return [...document.querySelectorAll('svg')].map(e => [e.getAttribute('role'), e.getAttribute('aria-label')])"
    )
    assert len(figures) == 2 and all(role == "img" and len(label) > 40 for role, label in figures)
    tables = driver.execute_script(
        "return [...document.querySelectorAll('table')].map(e => ["
        "!!e.caption?.textContent.trim(), e.querySelectorAll('thead th[scope=col]').length,"
        "Math.max(...[...e.querySelectorAll('tbody tr')].map(row => row.cells.length))])"
    )
    assert tables and all(caption and heads == cells for caption, heads, cells in tables)


def test_headings_are_nested_and_landmarks_are_named(opened):
    driver = opened(DESK)
    levels = driver.execute_script(
        "return [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map(e => Number(e.tagName[1]))"
    )
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels))
    assert driver.execute_script("return document.documentElement.lang") == "en"
    assert (
        driver.execute_script("return document.querySelectorAll('main, nav[aria-label], header, footer').length") == 4
    )
    nameless = driver.execute_script(
        "return [...document.querySelectorAll('a, button, summary')]"
        ".filter(e => !(e.textContent.trim() || e.getAttribute('aria-label'))).length"
    )
    assert nameless == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_enough_contrast(opened, scheme):
    driver = opened(DESK, scheme)
    driver.execute_script("for (const box of document.querySelectorAll('details')) box.open = true")
    # For each kind of text its colour and the first ground behind it that is not clear.
    script = """
      const seen = new Map();
      const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      for (let node; (node = walker.nextNode());) {
        const element = node.parentElement;
        if (!node.data.trim() || element.closest('svg, script, style, .unseen') || !element.checkVisibility()) continue;
        const style = getComputedStyle(element);
        let ground = element;
        const clear = colour => /, 0\\)$/.test(colour);
        while (ground && clear(getComputedStyle(ground).backgroundColor)) ground = ground.parentElement;
        const behind = ground ? getComputedStyle(ground).backgroundColor : 'rgb(255, 255, 255)';
        seen.set(style.color + behind, [style.color, behind, element.className + ': ' + node.data.trim().slice(0, 30)]);
      }
      return [...seen.values()];
    """
    pairs = driver.execute_script(script)
    assert len(pairs) > 15
    for colour, ground, text in pairs:
        assert contrast(colour, ground) >= 4.5, (text, colour, ground)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_line_and_bar_of_the_figures_is_seen(opened, scheme):
    driver = opened(DESK, scheme)
    ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    names = ["original", "o0", "o1", "o2", "o3", "together", "o1-together"]
    colours = driver.execute_script(
        "return arguments[0].map(name => { const e = document.createElement('i'); e.style.color = `var(--${name})`;"
        "document.body.append(e); const c = getComputedStyle(e).color; e.remove(); return c; })",
        names,
    )
    assert len(set(colours)) == len(names)
    for colour in colours:
        assert contrast(colour, ground) >= 3
    left = driver.execute_script("return document.querySelector('figure').innerHTML.match(/#0f1e[0-9a-f]{2}/)")
    assert left is None


def channels(colour):
    return [float(part) for part in re.findall(r"[\d.]+", colour)[:3]]


def luminance(colour):
    parts = [value / 255 for value in channels(colour)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colour, other):
    low, high = sorted((luminance(colour), luminance(other)))
    return (high + 0.05) / (low + 0.05)
