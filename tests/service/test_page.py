"""The page in a browser: live updates, no messages on the console, no serious accessibility violations."""

import random
import re
import shutil
import tempfile
import time

import httpx2
import numpy as np
import pytest

import ecl2o as ec
from axe import find_violations
from ecl2o.policy import Contract

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1400,1000"),
)

_LONG = "a-long-name." + "of-some-region:" * 7 + "x"


pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    profile = tempfile.mkdtemp(prefix="ecl2o-chromium-")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()
    shutil.rmtree(profile, ignore_errors=True)


def wait_for(driver, script: str, wanted, seconds: float) -> float:
    """Wait until the script returns the value; return the seconds that it took."""
    began = time.monotonic()
    while (found := driver.execute_script(script)) != wanted:
        assert time.monotonic() - began < seconds, (script, found, wanted)
        time.sleep(0.02)
    return time.monotonic() - began


def step(url: str, stream: str, context: float) -> dict:
    answer = httpx2.post(f"{url}/streams/{stream}/steps", json={"context": [context]}, timeout=60)
    answer.raise_for_status()
    return answer.json()


def test_a_step_appears_in_the_table_and_in_the_chart(url, browser):
    for context in (1.0, 3.0, 2.0):
        last = step(url, "a", context)
    browser.get(url)
    wait_for(browser, "return document.getElementById('connection').textContent", "live", 20)
    fresh = step(url, "a", 4.0)
    cell = "return document.querySelector('#row-a [data-field=\"steps\"]').textContent"
    assert wait_for(browser, cell, str(last["step"] + 1), 20) < 2.0

    browser.get(f"{url}/watch/a")
    wait_for(browser, "return document.getElementById('connection').textContent", "live", 20)
    points = "return Number(document.querySelector('#actions svg').getAttribute('data-points'))"
    wait_for(browser, points, fresh["step"], 20)
    step(url, "a", 1.0)
    assert wait_for(browser, points, fresh["step"] + 1, 20) < 2.0
    # The chart follows the keyboard.
    browser.execute_script("document.querySelector('#actions svg').focus()")
    browser.switch_to.active_element.send_keys("\ue012")  # arrow left
    assert f"step {fresh['step'] + 1}" in browser.execute_script(
        "return document.querySelector('.readout').textContent"
    )
    wait_for(
        browser, "return document.querySelectorAll('#actions path.k-optimum').length", 1, 30
    )  # the optimum in hindsight
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


@pytest.fixture(scope="module")
def crowded_url(url):
    """The URL of a service with a stream of the longest name and an active guard, one without steps, and ten more."""
    with httpx2.Client(base_url=url, timeout=60) as client:
        for stream in (_LONG, "new", *(f"site-{number}" for number in range(10))):
            client.put(f"/streams/{stream}", json={"policy": "small", "x0": [0.0]}).raise_for_status()
        for context in (1.0, 9.0, 0.0):
            contexts = {_LONG: [context]} | {f"site-{number}": [context * number] for number in range(10)}
            answers = client.post("/steps", json=contexts).raise_for_status().json()["answered"]
        assert answers[_LONG]["guard_active"]
    return url


def test_streams_are_found_and_sorted(crowded_url, browser):
    browser.get(crowded_url)
    shown = "return [...document.querySelectorAll('#rows tr')].filter((row) => !row.hidden).map((row) => row.dataset.stream)"
    names = browser.execute_script(shown)
    assert names == sorted(names)
    browser.find_element("id", "find").send_keys("SITE-3")
    assert browser.execute_script(shown) == ["site-3"]
    browser.find_element("id", "find").send_keys("none-such")
    assert browser.execute_script(shown) == []
    assert browser.find_element("id", "none").is_displayed()
    browser.find_element("id", "find").clear()
    browser.execute_script("find = document.getElementById('find'); find.dispatchEvent(new Event('input'))")
    browser.find_element("id", "order").send_keys("promise")
    sorted_names = browser.execute_script(shown)
    shares = browser.execute_script(
        "return [...document.querySelectorAll('#rows tr')].map((row) => row.dataset.share).filter(Boolean).map(Number)"
    )
    assert set(sorted_names) == set(names)
    assert len(shares) >= 11
    assert shares == sorted(shares)
    least = browser.find_element("id", "least").text
    assert least.endswith(f"({sorted_names[0]})")
    assert read_number(least.split("%")[0]) == pytest.approx(shares[0] * 100, abs=1)


def read_number(text: str) -> float:
    """Read a number of the page: narrow spaces between thousands, a minus sign, M, G or T after it."""
    digits, unit = re.fullmatch(r"([\d.e-]+)([MGT]?)", re.sub(r"\s", "", text).replace("\u2212", "-")).groups()
    return float(digits) * {"": 1, "M": 1e6, "G": 1e9, "T": 1e12}[unit]


def call_format(browser, expression: str, *arguments):
    """Evaluate an expression of the page's `format` module and of `given`, the arguments."""
    script = "const done = arguments[arguments.length - 1], given = arguments;"
    return browser.execute_async_script(
        f"{script} import('/static/format.js').then((format) => done({expression}))", *arguments
    )


def test_numbers_and_shares_are_those_that_were_formatted(url, browser):
    browser.get(url)
    rng = random.Random(0)
    values = [sign * 10 ** rng.uniform(-12, 18) for sign in (-1, 1) for _ in range(300)]
    values += [1e6, 999_999.6, 1e15, 1e-4, 38_124.0, 0.0021, 3.84e6, 0.0, -2e-9]
    for expression in (
        "given[0].map((value) => format.formatNumber(value))",
        "given[0].map((v) => format.formatNumbers([v]))",
    ):
        texts = call_format(browser, expression, values)
        np.testing.assert_allclose(list(map(read_number, texts)), values, rtol=6e-4)
        assert all(len(text) <= 12 and " " not in text for text in texts)
    assert call_format(browser, "format.formatNumber(null)") == "\u2013"
    shares = [0.0, 1e-9, 0.0004, 0.002, 0.0349, 0.0996, 0.5, 0.9996, 1.0]
    shown = call_format(browser, "given[0].map(format.formatShare)", shares)
    bare = [re.sub(r"\s", "", text) for text in shown]
    assert bare == ["0%", "<0.1%", "<0.1%", "0.2%", "3.5%", "9%", "50%", "99%", "100%"]


@pytest.mark.parametrize("center", [28_500.0, 0.0021, 3.84e6, -38_000.0, 0.0, 1e13, 2e-9])
def test_labels_of_an_axis_differ_and_are_exact(url, browser, center):
    browser.get(url)
    for step in (10.0 ** np.floor(np.log10(abs(center) or 1.0)) * np.array([1.0, 0.5, 0.02, 1e-3, 1e-6])).tolist():
        ticks = [(round(center / step) + k) * step for k in range(-3, 4)]
        labels = call_format(browser, "format.formatTicks(given[0], given[1])", ticks, step)
        assert len(set(labels)) == len(ticks)
        np.testing.assert_allclose(list(map(read_number, labels)), ticks, rtol=0, atol=1e-3 * step)


_SERIES = {"load": (28_500.0, 8_500.0), "tiny": (0.0021, 4e-4), "requests": (3.84e6, 2e3), "export": (-38_000.0, 9e3)}


@pytest.fixture(scope="module")
def metered_url(url):
    """The URL of a service whose streams have values of real units; of `load`, two readings are bad and two are stuck."""
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
    screen = {"plausible": [(1e3, 1e5)], "stuck_after": [2.0], "units": ["MW"], "columns": ["load"]}
    guarded = ec.Policy(
        ec.Competitive(ec.HittingMinimizer(), ratio=1.6), problem, contract=Contract(context_dim=1, **screen)
    )
    with httpx2.Client(base_url=url, timeout=60) as client, tempfile.TemporaryDirectory() as folder:
        ec.save(f"{folder}/metered.ecl2o", guarded)
        with open(f"{folder}/metered.ecl2o", "rb") as file:
            client.put("/policies/metered", content=file.read()).raise_for_status()
        for stream, (middle, _) in _SERIES.items():
            policy = "metered" if stream == "load" else "small"
            client.put(f"/streams/{stream}", json={"policy": policy, "x0": [middle]}).raise_for_status()
        for hour in range(30):
            wave = {stream: [middle + spread * np.sin(hour / 4)] for stream, (middle, spread) in _SERIES.items()}
            wave["load"] = {5: [0.0], 9: [None], 20: [30_000.0], 21: [30_000.0], 22: [30_000.0], 23: [30_000.0]}.get(
                hour, wave["load"]
            )
            client.post("/steps", json=wave).raise_for_status()
    return url


_LINES = """return [...document.querySelectorAll(arguments[0])].filter((node) => node.checkVisibility()).map((node) => {
  const words = [], walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  for (let text; (text = walker.nextNode());) for (const word of text.data.matchAll(/[^ ,]+/g)) {
    const range = document.createRange();
    range.setStart(text, word.index); range.setEnd(text, word.index + word[0].length);
    words.push(new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size);
  }
  return Math.max(0, ...words);
})"""
_LABELS = """return [...document.querySelectorAll(`${arguments[0]} svg text`)].map((node) => {
  const box = node.getBBox(), frame = node.ownerSVGElement.viewBox.baseVal;
  return [node.textContent, box.x >= 0 && box.x + box.width <= frame.width];
})"""


@pytest.mark.parametrize("width", [1400, 390])
def test_numbers_of_real_units_are_whole(metered_url, browser, width):
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for stream, (middle, _) in _SERIES.items():
        browser.get(f"{metered_url}/watch/{stream}")
        wait_for(browser, "return document.getElementById('connection').textContent", "live", 20)
        for chart in ("#actions", "#costs"):
            labels = browser.execute_script(_LABELS, chart)
            assert all(inside for _, inside in labels), (stream, labels)
            texts = [text for text, _ in labels if text != "step"]
            ticks = texts[: 1 + max(k for k, text in enumerate(texts) if not text.isdigit() or text == "0")]
            assert len(set(ticks)) == len(ticks) >= 2
        assert set(browser.execute_script(_LINES, ".tile .big, .tile .soft span, td.n")) == {1}
        assert read_number(browser.find_element("css selector", "[data-field=action]").text) == pytest.approx(
            middle, rel=0.5
        )
    browser.get(metered_url)
    assert set(browser.execute_script(_LINES, "td.n")) == {1}


def test_replaced_and_stuck_readings_are_counted(metered_url, browser):
    browser.get(f"{metered_url}/watch/load")
    wait_for(browser, "return document.getElementById('connection').textContent", "live", 20)
    found = "return document.querySelector('[data-field=readings]').textContent.match(/\\d+/g)?.map(Number)"
    assert browser.execute_script(found) == [2, 2]
    answer = httpx2.post(f"{metered_url}/streams/load/steps", json={"context": [0.0]}, timeout=60).raise_for_status()
    assert answer.json()["screened"]
    wait_for(browser, found, [3, 2], 20)
    browser.get(metered_url)
    row = "return document.querySelector('#row-load [data-field=readings]').textContent.match(/\\d+/g)?.map(Number)"
    wait_for(browser, row, [3, 2], 20)
    assert browser.execute_script("return document.querySelector('#row-tiny [data-field=readings]').textContent") == ""


@pytest.mark.parametrize("path", ["/", "/watch/load"])
@pytest.mark.parametrize("about", ["guard", "promise"])
def test_guard_and_promise_are_explained(metered_url, browser, path, about):
    """By keyboard, by touch and by mouse; the text lies within the window."""
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(metered_url + path)
    wait_for(browser, "return document.getElementById('connection').textContent", "live", 20)
    is_open = f"return document.getElementById('about-{about}').matches(':popover-open')"
    button = browser.find_element("css selector", f"[popovertarget=about-{about}]")
    assert button.accessible_name
    assert not browser.execute_script(is_open)
    browser.execute_script("arguments[0].focus()", button)
    browser.switch_to.active_element.send_keys("\ue007")  # Enter
    assert browser.execute_script(is_open)
    box = browser.execute_script(f"return document.getElementById('about-{about}').getBoundingClientRect().toJSON()")
    assert 0 <= box["left"] < box["right"] <= 390
    assert 0 <= box["top"] < box["bottom"] <= 844
    assert find_violations(browser) == []
    browser.switch_to.active_element.send_keys("\ue00c")  # Escape
    assert not browser.execute_script(is_open)
    middle = {key: button.rect[key] + button.rect[side] / 2 for key, side in (("x", "width"), ("y", "height"))}
    middle["y"] -= browser.execute_script("return scrollY")
    for kind, points in (("touchStart", [middle]), ("touchEnd", [])):
        browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    wait_for(browser, is_open, True, 5)
    browser.execute_script(f"document.getElementById('about-{about}').hidePopover()")
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **middle})
    wait_for(browser, is_open, True, 5)


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_layout_contrast_and_accessibility(crowded_url, browser, width, scheme):
    url = crowded_url
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for path in ("/", f"/watch/{_LONG}", "/watch/new", "/docs"):
        browser.get(url + path)
        wide = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, (path, width)
        assert browser.execute_script(_CONTRAST) >= 4.5  # WCAG AA, for the softest text on a card
        if path != "/docs":
            wait_for(browser, "return document.getElementById('connection').textContent", "live", 20)
        assert find_violations(browser) == []
    assert browser.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches") is (scheme == "dark")


_CONTRAST = """
const level = (name) => {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const [r, g, b] = getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  probe.remove();
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const [one, other] = [level("--soft"), level("--card")];
return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
"""


def test_the_page_says_what_became_of_the_advice(url, browser, tmp_path):
    for name, shadow in (("guard", False), ("shadow", True)):
        ec.save(tmp_path / name, ec.guard_policy(promise=2.0, shadow=shadow))
        httpx2.put(f"{url}/policies/{name}", content=(tmp_path / name).read_bytes(), timeout=60).raise_for_status()
        made = httpx2.put(f"{url}/streams/{name}", json={"policy": name, "x0": [10.0]}, timeout=60)
        made.raise_for_status()
        body = {"context": [11.0], "advice": [30.0]}
        answer = httpx2.post(f"{url}/streams/{name}/steps", json=body, timeout=60).json()
        assert "moved from 30 to" in answer["change"]
        browser.get(f"{url}/watch/{name}")
        found = "return document.querySelector('[data-field=\"change\"]').textContent"
        wait_for(browser, found, answer["change"], 20)
        wait_for(
            browser,
            "return document.querySelector('[data-field=\"guard\"]').textContent",
            "shadow" if shadow else "active",
            20,
        )
        assert answer["change"] in browser.execute_script("return document.getElementById('latest').textContent")
