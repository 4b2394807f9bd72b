"""The built site in a browser: axe finds nothing serious, search works from the disk, nothing is fetched from elsewhere."""

import os
import re
import shutil
from pathlib import Path

import pytest

from axe import find_violations

SITE = Path(os.environ.get("ECL2O_SITE", Path(__file__).resolve().parents[2] / "site"))
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SIZES = {"desk": (1280, 900), "phone": (390, 844)}
pytestmark = pytest.mark.skipif(
    not (SITE / "index.html").is_file(), reason="the site is not built; make docs builds it"
)


@pytest.fixture(scope="module", params=["light", "dark"])
def browser(request):
    if BROWSER is None or DRIVER is None:
        pytest.skip("no Chromium or no chromedriver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    scheme = {"features": [{"name": "prefers-color-scheme", "value": request.param}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    driver.scheme = request.param
    yield driver
    driver.quit()


@pytest.mark.parametrize("page", ["index.html", "guarantees.html", "api/agents.html", "tutorials/first_policy.html"])
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_serious(browser, page: str, size: str):
    browser.set_window_size(*SIZES[size])
    browser.get((SITE / page).as_uri())
    shots = os.environ.get("ECL2O_SCREENSHOTS")
    if shots:
        browser.save_screenshot(str(Path(shots) / f"{Path(page).stem}-{size}-{browser.scheme}.png"))
    assert find_violations(browser) == []
    width = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
    assert width <= 1, "the page scrolls sideways"


def test_search_works_from_the_disk(browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    browser.set_window_size(*SIZES["desk"])
    browser.get((SITE / "index.html").as_uri())
    box = browser.find_element(By.CSS_SELECTOR, "input.md-search__input")
    browser.execute_script("arguments[0].focus()", box)
    box.send_keys("GuardWrapper")
    WebDriverWait(browser, 20).until(lambda b: b.find_elements(By.CSS_SELECTOR, ".md-search-result__link"))


def test_nothing_is_fetched_from_elsewhere():
    """Scripts, styles, fonts and pictures come with the site; links for people may lead anywhere."""
    for page in SITE.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(https?:[^\"\s>]+)", text)
        loaded += re.findall(r"<link[^>]*rel=\"?(?:stylesheet|preload|preconnect)[^>]*href=\"?(https?:[^\"\s>]+)", text)
        assert loaded == [], page


def test_llms_txt_leads_to_every_page_of_the_menu():
    text = (SITE / "llms.txt").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)]+)\)", text))
    assert [page for page in sorted(linked) if not (SITE / page).is_file()] == []
    pages = {page.relative_to(SITE).as_posix() for page in SITE.rglob("*.html")} - {"404.html", "index.html"}
    assert {page for page in pages if not page.startswith("api/")} - linked == set()


def test_every_page_says_its_kind():
    kinds = {page.name: 'class="kind"' in page.read_text(encoding="utf-8") for page in SITE.rglob("*.html")}
    assert [name for name, said in kinds.items() if not said] == ["404.html"]


def test_every_public_name_is_in_the_reference():
    import ecl2o

    names = set(ecl2o._HOME) - {"metrics", "advisors"}  # modules
    reference = "".join(page.read_text(encoding="utf-8") for page in (SITE / "api").glob("*.html"))
    assert [name for name in sorted(names) if not re.search(rf'id="ecl2o\.[\w.]*\b{name}"', reference)] == []


def test_start_leads_to_each_case_in_two_clicks():
    first, second = ((SITE / page).read_text(encoding="utf-8") for page in ("index.html", "start.html"))
    assert re.search(r'href="?start\.html', first)
    cases = [page.relative_to(SITE).as_posix() for page in (SITE / "cases").glob("*.html")]
    assert len(cases) >= 3
    assert [case for case in cases if not re.search(rf'href="?{re.escape(case)}', second)] == []
