"""The report in a real browser: it renders without errors, fits a phone, sorts, hovers and changes its theme."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(120)


def _open(browser: Any, page: Path, width: int, theme: str = "light") -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())


def _column(browser: Any, table: str, number: int) -> list[str]:
    script = """return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]
        .map((row) => row.cells[arguments[1]].textContent)"""
    texts: list[str] = browser.execute_script(script, table, number)
    return texts


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_renders_without_errors_at_every_width(browser: Any, written_report: Path, theme: str, width: int) -> None:
    _open(browser, written_report, width, theme)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script("return document.querySelectorAll('.figure svg').length") >= 5
    lightness = browser.execute_script(
        "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    )
    assert (sum(lightness) / 3 < 100) == (theme == "dark")
    # The figures' text has the page's ink, not matplotlib's black.
    ink, text = browser.execute_script(
        """const text = document.querySelector('.figure svg text');
        return [getComputedStyle(document.body).color, getComputedStyle(text).fill]"""
    )
    assert ink == text


def test_tables_sort_by_number_and_back(browser: Any, written_report: Path) -> None:
    _open(browser, written_report, 1200)
    names = _column(browser, "structure", 0)
    browser.execute_script("document.querySelectorAll('#structure th button')[4].click()")
    counts = [int(text.replace(",", "")) for text in _column(browser, "structure", 4)]
    assert counts == sorted(counts, reverse=True)
    browser.execute_script("document.querySelectorAll('#structure th button')[4].click()")
    counts = [int(text.replace(",", "")) for text in _column(browser, "structure", 4)]
    assert counts == sorted(counts)
    browser.execute_script("document.querySelectorAll('#structure th button')[0].click()")
    assert sorted(_column(browser, "structure", 0)) == sorted(names)
    total = browser.execute_script("return document.querySelector('#structure tfoot td').textContent")
    assert total == "total"


def test_hovering_a_layer_tells_about_it(browser: Any, written_report: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    _open(browser, written_report, 1200)
    bar = browser.find_element("css selector", '[data-figure="macs"] [data-layer="2"] path')
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", bar)
    ActionChains(browser).move_to_element(bar).perform()
    tip = browser.find_element("id", "tip")
    assert tip.is_displayed()
    assert tip.text.startswith("layer1.0.conv2")
    assert "bases" in tip.text
    ActionChains(browser).move_to_element(browser.find_element("tag name", "h1")).perform()
    assert not tip.is_displayed()


def test_theme_button_and_layer_choice(browser: Any, written_report: Path) -> None:
    _open(browser, written_report, 1200)
    color = "return getComputedStyle(document.body).backgroundColor"
    before = browser.execute_script(color)
    browser.find_element("id", "theme").click()
    assert browser.execute_script(color) != before
    shown = "return [...document.querySelectorAll('[data-part^=weights]')].filter((part) => !part.hidden).length"
    assert browser.execute_script(shown) == 1
    assert browser.get_log("browser") == []
