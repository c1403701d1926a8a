"""The site in a real Chromium, in both languages, at a desk and on a phone, without a network."""

from __future__ import annotations

import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, urlsplit

import pyodide_package
import pytest

pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("site")]

DESK, PHONE = (1280, 800), (390, 844)
PAGES = (
    "index.html",
    "tutorial.html",
    "playground.html",
    "troubleshooting.html",
    "faq.html",
    "choices.html",
    "rules/index.html",
    "rules/AMP601.html",
    "gallery/flat-script.html",
    "zh/index.html",
    "zh/tutorial.html",
    "zh/playground.html",
    "zh/troubleshooting.html",
    "zh/faq.html",
    "zh/verify.html",
    "zh/quantization.html",
    "zh/from_others.html",
)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site_folder):
    """Where the site is served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site_folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def opened(chromium, address):
    """Opens a page at a size, and returns the browser."""

    def call(page, size=DESK):
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        chromium.get("about:blank")
        for kind in ("browser", "performance"):
            chromium.get_log(kind)
        chromium.get(address + page)
        return chromium

    return call


def until(driver, script, seconds=10):
    from selenium.webdriver.support.wait import WebDriverWait

    return WebDriverWait(driver, seconds).until(lambda browser: browser.execute_script(script))


def hosts(driver):
    """Every machine that was asked for something."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [item["params"]["request"]["url"] for item in messages if item["method"] == "Network.requestWillBeSent"]
    return {urlsplit(url).hostname for url in asked if url.startswith("http")}


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_and_its_menu_is_reached(opened, page, size):
    driver = opened(page, size)
    assert driver.execute_script("return [document.documentElement.scrollWidth <= innerWidth, innerWidth]") == [
        True,
        size[0],
    ]
    if size == PHONE:
        driver.find_element("css selector", ".mobile-header .nav-overlay-icon").click()
    # The drawer slides in.
    seen = """
      const links = [...document.querySelectorAll('.sidebar-drawer .sidebar-tree a')].slice(0, 5);
      const front = links.map(link => link.getBoundingClientRect())
        .filter(box => box.left >= 0 && box.right <= innerWidth && box.width > 0);
      return links.length == 5 && front.length == 5;
    """
    assert until(driver, seen)
    is_chinese = page.startswith("zh/")
    texts = driver.execute_script(
        "return ['.sidebar-tree', '.toc-title', '.sidebar-search'].map(name => document.querySelector(name))"
        ".map(e => e ? e.textContent + (e.placeholder || '') : '')"
    )
    assert [any("\u4e00" <= letter <= "\u9fff" for letter in text.replace("中文", "")) for text in texts if text] == [
        is_chinese
    ] * len([text for text in texts if text])
    assert driver.execute_script("return document.documentElement.lang") == ("zh-CN" if is_chinese else "en")
    assert [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert hosts(driver) == {"127.0.0.1"}


@pytest.mark.parametrize("page", ["index.html", "zh/index.html"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_the_first_screen_says_that_nothing_was_run_on_cuda(opened, page, size):
    driver = opened(page, size)
    text, bottom = driver.execute_script(
        "const said = [...document.querySelectorAll('article strong')].find(e => e.textContent.includes('CUDA'));"
        "return [said.textContent, said.getBoundingClientRect().bottom]"
    )
    assert text and bottom < size[1]


@pytest.mark.parametrize(("page", "other"), [("tutorial.html", "zh/tutorial.html"), ("zh/index.html", "index.html")])
def test_a_page_leads_to_itself_in_the_other_language(opened, address, page, other):
    driver = opened(page)
    assert driver.find_element("css selector", ".other-language a").get_attribute("href") == address + other


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("混合精度", "zh/tutorial.html"),
        ("损失缩放", "zh/troubleshooting.html"),
        ("损失", "zh/tutorial.html"),
        ("飞桨 混合精度", "zh/from_paddle.html"),
        ("逐位相同", "zh/faq.html"),
        ("校准", "zh/quantization.html"),
        ("epsilon underflow", "rules/AMP605.html"),
    ],
)
def test_the_search_finds_words_of_both_languages(opened, question, found):
    driver = opened(f"search.html?q={quote(question)}")
    links = "return [...document.querySelectorAll('#search-results li a')].map(e => e.getAttribute('href'))"
    until(driver, "return document.querySelector('#search-results .search-summary')?.textContent", 30)
    assert found in {urlsplit(link).path for link in driver.execute_script(links)}


def test_the_search_finds_nothing_for_chinese_that_stands_nowhere(opened):
    driver = opened(f"search.html?q={quote('鲸鱼')}")
    until(driver, "return document.querySelector('#search-results .search-summary')?.textContent", 30)
    assert driver.execute_script("return document.querySelectorAll('#search-results li').length") == 0


# ---- the playground ----------------------------------------------------------------------------------------

FINDINGS = """
  return [...document.querySelectorAll('#playground .findings li')].map(item =>
    [item.querySelector('a').textContent.split(' ')[0], item.querySelector('a').href])
"""


SAID = {
    "playground.html": ("1 finding", "Nothing found.", "Line 4", "Line 3"),
    "zh/playground.html": ("1 个问题", "没有发现问题。", "第 4 行", "第 3 行"),
}
"""What the page says to one finding, to none, to an error of the syntax, and of a finding's place."""


@pytest.mark.parametrize(
    ("page", "size"),
    [("playground.html", DESK), ("playground.html", PHONE), ("zh/playground.html", PHONE)],
    ids=["desk", "phone", "chinese"],
)
def test_the_playground_finds_as_one_types(opened, address, site_folder, page, size):
    if not pyodide_package.is_there():
        pytest.skip("Pyodide was not fetched: python docs/_ext/pyodide_package.py")
    one, nothing, broken, place = SAID[page]
    says = "return document.querySelector('#playground .status').textContent"
    driver = opened(page, size)
    until(driver, "return document.getElementById('playground').dataset.judged", 180)
    found = driver.execute_script(FINDINGS)
    assert {code for code, _ in found} >= {"AMP601", "AMP811"}
    for code, link in found:
        assert link == f"{address}rules/{code}.html" and (site_folder / "rules" / f"{code}.html").is_file()
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    # A finding shows its place.
    driver.execute_script("document.querySelector('#playground .findings button').click()")
    selected = "const box = document.querySelector('#playground textarea');"
    selected += "return box.value.slice(box.selectionStart, box.selectionEnd)"
    assert driver.execute_script(selected) == "-1e9"
    box = driver.find_element("css selector", "#playground textarea")
    box.clear()
    box.send_keys("import torch\ndef f(a, b, mask):\n    return torch.matmul(a, b).masked_fill(mask, -1e9)\n")
    until(driver, f"{says} == '{one}'", 60)
    assert [code for code, _ in driver.execute_script(FINDINGS)] == ["AMP601"]
    assert driver.find_element("css selector", "#playground .findings button").text == place
    # The mode counts: bf16 holds this number.
    driver.find_element("css selector", "#playground select[name=dtype] option:last-child").click()
    until(driver, f"{says} == '{nothing}'", 60)
    box.send_keys("def broken(:")
    until(driver, f"{says}.startsWith('{broken}')", 60)
    assert hosts(driver) == {"127.0.0.1"}
    assert [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.parametrize("page", SAID)
def test_ten_migrations_have_both_targets(opened, page):
    driver = opened(page)
    shown = driver.execute_script(
        "return [...document.querySelectorAll('article details')].map(e =>"
        "[e.querySelectorAll('.sd-tab-set > label').length, e.querySelectorAll('.highlight-diff').length])"
    )
    assert len(shown) == 10 and all(tabs == 2 for tabs, _ in shown)
    assert [diffs for _, diffs in shown].count(2) >= 8
