"""The dashboard in a real browser: what people see, click and filter. Skipped where Chromium is not installed."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from slurm_hadar.controller.journal import Decision, Journal, RoundRecord
from slurm_hadar.testing.journals import write_journal

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
_NEEDED = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no browser: on Debian `apt install chromium chromium-driver`"
)
pytestmark = [pytest.mark.built, _NEEDED]

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip
PAGES = (
    "/",
    "/?colour=user",
    "/queue",
    "/job/1",
    "/node/a100-1",
    "/timeline",
    "/ended",
    "/users",
    "/partitions",
    "/prices",
)


@contextmanager
def serving(state: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``hadar web`` as an administrator starts it, on a free port: its address and its process."""
    argv = [sys.executable, "-m", "slurm_hadar.cli.main", "web", "--listen", "127.0.0.1:0",
            "--set", f"controller.state_dir={state}"]  # fmt: skip
    process = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True)
    try:
        said = process.stderr.readline()
        yield re.fullmatch(r"dashboard at (http://127\.0\.0\.1:\d+)/\n", said)[1], process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture(scope="module")
def site(state: Path) -> Iterator[str]:
    """Its address. It ends well when it is told to."""
    with serving(state) as (address, process):
        yield address
        process.terminate()
        assert process.wait(300) == 0


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium with a profile of its own, which notes what it fetches."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    assert BROWSER is not None
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}", "--window-size=1200,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.get("about:blank")  # the browser's own first page asks for things
    yield driver
    driver.quit()


def fetched(browser: Any) -> list[str]:
    """The addresses that were asked for since the last call."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def column(browser: Any, title: str) -> list[str]:
    """The texts of the queue's cells below a title."""
    heads = [re.sub(r"[▴▾\s]+", " ", th.text).strip() for th in browser.find_elements("css selector", "thead th")]
    cells = f"tbody td:nth-child({heads.index(title) + 1})"
    script = "return [...document.querySelectorAll(arguments[0])].map(cell => cell.innerText.trim())"
    return browser.execute_script(script, cells)


def brightness(browser: Any, name: str) -> int:
    """The sum of red, green and blue (0 to 765) of one of the body's colours."""
    colour = browser.execute_script(f"return getComputedStyle(document.body).{name}")
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3])


def press(browser: Any, element: Any) -> None:
    """Click on what leads to another page, and wait for that."""
    from selenium.webdriver.support.expected_conditions import staleness_of
    from selenium.webdriver.support.ui import WebDriverWait

    page = browser.find_element("tag name", "html")
    element.click()
    WebDriverWait(browser, 30).until(staleness_of(page))


def follow(browser: Any, text: str) -> None:
    press(browser, browser.find_element("partial link text", text))


def test_every_page_loads_without_a_complaint(site: str, browser: Any) -> None:
    """Nothing is refused, missing or fetched from another host, whatever page it is."""
    fetched(browser)
    browser.get_log("browser")
    for page in PAGES:
        browser.get(site + page)
        assert browser.find_element("tag name", "h1").text
        assert browser.execute_script("return getComputedStyle(document.body).marginTop") == "0px"  # the style is there

    assert browser.get_log("browser") == []
    addresses = [urlsplit(url) for url in fetched(browser)]
    assert {a.netloc for a in addresses if a.scheme in ("http", "https", "ws", "wss")} == {urlsplit(site).netloc}


def test_links_lead_through_all_pages(site: str, browser: Any) -> None:
    """From the map to a job, and by the navigation to every other page."""
    browser.get(site + "/")
    gpu = browser.find_element("css selector", "a.gpu")
    job = gpu.get_attribute("href").rsplit("/", 1)[1]
    press(browser, gpu)
    assert browser.find_element("tag name", "h1").text.startswith(f"Job {job} ")
    for words, title in (("Queue", "The queue"), ("Timeline", "Who ran where"), ("Prices", "What a GPU costs"),
                         ("Overview", "The cluster")):  # fmt: skip
        follow(browser, words)
        assert browser.find_element("tag name", "h1").text == title
        assert browser.find_element("css selector", "nav [aria-current]").text == words
    addresses = {a.get_attribute("href") for a in browser.find_elements("css selector", "main a[href]")}
    for address in sorted(addresses)[:60]:
        assert address.startswith(site)
        assert httpx.get(address, trust_env=False).status_code == 200


def test_the_queue_is_sorted_and_filtered_by_hand(site: str, browser: Any) -> None:
    """A click on a title sorts, another turns it round; the form filters and keeps the order."""
    from selenium.webdriver.support.ui import Select

    browser.get(site + "/queue")
    follow(browser, "GPUs")
    up = [int(text) for text in column(browser, "GPUs")]
    follow(browser, "GPUs")
    down = [int(text) for text in column(browser, "GPUs")]
    assert up == sorted(up) and down == sorted(down, reverse=True) and up[0] < down[0]

    Select(browser.find_element("name", "user")).select_by_value("ann")
    Select(browser.find_element("name", "state")).select_by_value("pending")
    press(browser, browser.find_element("css selector", ".filters button"))
    assert set(column(browser, "user")) == {"ann"} and set(column(browser, "state")) == {"pending"}
    kept = [int(text) for text in column(browser, "GPUs")]
    assert kept == sorted(kept, reverse=True)

    browser.find_element("name", "text").send_keys("no such job")
    press(browser, browser.find_element("css selector", ".filters button"))
    assert "No job matches" in browser.find_element("tag name", "main").text


def test_pages_of_the_queue(site: str, browser: Any) -> None:
    """Next and previous lead on and back."""
    browser.get(site + "/queue?sort=job")
    first = column(browser, "job")
    follow(browser, "next")
    second = column(browser, "job")
    follow(browser, "previous")

    assert len(first) == len(second) == 100 and not set(first) & set(second)
    assert column(browser, "job") == first


def test_a_nasty_name_stays_text(site: str, browser: Any) -> None:
    """It is read as it was written, and nothing of it runs."""
    browser.get(site + "/job/1")

    assert '<script>alert("1")</script>' in browser.find_element("tag name", "h1").text
    sources = [script.get_attribute("src") for script in browser.find_elements("tag name", "script")]
    assert sources == [site + "/live.js"]


def test_the_page_follows_the_journal_in_place(browser: Any, tmp_path: Path) -> None:
    """What is new comes by itself; the place on the page, what is open and what did not change stay. When the dashboard
    is gone, the page says so."""
    from selenium.webdriver.support.ui import WebDriverWait

    write_journal(tmp_path / "journal.db", time.time(), jobs=60, nodes=8).close()
    with serving(tmp_path) as (address, process):
        browser.get(address + "/")
        browser.execute_script(
            "document.querySelector('summary').click(); scrollTo(0, 400); document.querySelector('a.gpu').mark = 1"
        )
        journal = Journal(tmp_path / "journal.db")
        number = journal.add_round(RoundRecord(time.time(), "act", "another"))
        journal.add_decisions(number, time.time(), [Decision("4711", "start", why="<b>new</b>")])
        journal.close()
        WebDriverWait(browser, 60).until(lambda b: "4711" in b.find_element("tag name", "main").text)

        assert "policy another" in browser.find_element("tag name", "main").text
        assert "<b>new</b>" in browser.find_element("tag name", "main").text
        kept = "return [document.querySelector('details').open, scrollY, document.querySelector('a.gpu').mark]"
        assert browser.execute_script(kept) == [True, 400, 1]
        process.kill()
        WebDriverWait(browser, 60).until(lambda b: b.find_element("id", "stale").is_displayed())
        assert "does not answer" in browser.find_element("id", "stale").text
    browser.get_log("browser")  # that the dashboard was gone


@contextmanager
def phone(browser: Any) -> Iterator[None]:
    """As on a phone held upright."""
    device = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("page", ["/queue", "/queue?state=pending", "/ended", "/users", "/partitions", "/job/1"])
def test_tables_are_cards_on_a_phone(site: str, browser: Any, page: str) -> None:
    """Nothing is cut or beyond the edge, and each value has its title."""
    cells = (
        "return [...document.querySelectorAll('td')].filter(c => c.offsetParent).map(c => [c.innerText, "
        "getComputedStyle(c, '::before').content, c.getBoundingClientRect().right, c.scrollWidth - c.clientWidth])"
    )
    with phone(browser):
        browser.get(site + page)
        found = browser.execute_script(cells)
        assert not any(head.is_displayed() for head in browser.find_elements("tag name", "thead"))
    assert found
    assert all(len(title) > 3 and right <= 390 and cut <= 0 for _, title, right, cut in found)
    assert not any(text.strip() in ("", "-") for text, *_ in found)


def test_the_timeline_begins_at_now_on_a_phone(site: str, browser: Any) -> None:
    """Its right end is in sight and the past is scrolled to; names of nodes stay."""
    edges = "return [...document.querySelectorAll('.gantt .bars, .gantt .names')].map(e => e.getBoundingClientRect())"
    with phone(browser):
        browser.get(site + "/timeline?span=1d")
        names, bars = browser.execute_script(edges)
        assert 0 <= names["left"] < names["right"] <= 100
        assert bars["left"] < names["right"] < 300 < bars["right"] <= 390
        browser.execute_script("document.querySelector('.gantt .scroll').scrollLeft = -10000")
        assert browser.execute_script(edges)[1]["left"] >= names["right"] - 1


def test_squares_have_whole_ids_and_fill_the_page(site: str, browser: Any) -> None:
    """Each job's squares say its id, in a colour of its own beside its neighbours; the widest row ends at the edge."""
    browser.get(site + "/")
    script = (
        "return [...document.querySelectorAll('a.gpu')].map(g => [g.querySelector('b').innerText, g.href, "
        "g.querySelector('b').scrollWidth <= g.querySelector('b').clientWidth, getComputedStyle(g).backgroundColor, "
        "g.closest('.node').querySelector('.name').innerText])"
    )
    squares = browser.execute_script(script)
    assert squares and all(whole and href.endswith(f"/job/{job}") for job, href, whole, *_ in squares)
    for job, _, _, colour, node in squares:
        beside = {other for other, _, _, look, there in squares if there == node and look == colour}
        assert beside == {job}
    right = browser.execute_script(
        "return Math.max(...[...document.querySelectorAll('.node')]"
        ".map(n => n.getBoundingClientRect().right)) / innerWidth"
    )
    assert right > 0.95


WIDTHS = (320, 390, 1200)


def looks(browser: Any, width: int, dark: bool) -> None:
    """Show the page that is open on a screen so wide, in a colour scheme."""
    device = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 1000}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})


@pytest.mark.parametrize("page", [*PAGES, "/job/399", "/nowhere"])
def test_every_width_and_both_colour_schemes(site: str, browser: Any, page: str) -> None:
    """The body never scrolls sideways, down to the smallest phones, and text stands out from its paper."""
    browser.get(site + page)
    try:
        for width, dark in itertools.product(WIDTHS, (False, True)):
            looks(browser, width, dark)
            assert browser.execute_script("return window.innerWidth") == width
            assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth"), width
            paper, ink = (brightness(browser, name) for name in ("backgroundColor", "color"))
            assert paper < 150 < 500 < ink if dark else ink < 150 < 600 < paper
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.thorough
def test_it_reads_the_same_without_colours(site: str, browser: Any) -> None:
    """What a colour says, a title or a label says too: GPUs of the map, lines of the prices."""
    browser.get(site + "/")
    gpus = browser.find_elements("css selector", ".gpu")[:20]
    assert gpus and all(gpu.get_attribute("title") for gpu in gpus)
    browser.get(site + "/prices")
    dashes = {
        browser.execute_script("return getComputedStyle(arguments[0]).strokeDasharray", line)
        for line in browser.find_elements("css selector", "figure > svg .curve")
    }
    assert len(dashes) == 4
    assert [s.text for s in browser.find_elements("css selector", ".legend span")] == ["a100", "k80", "p100", "v100"]
