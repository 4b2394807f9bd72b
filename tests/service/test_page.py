"""The page in a browser: live updates, no messages on the console, no serious accessibility violations."""

import shutil
import tempfile
import time

import httpx2
import pytest

from axe import find_violations

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
    assert least == f"{round(shares[0] * 100)} % ({sorted_names[0]})"


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
