"""What must hold of a report in a real browser; each check takes a driver that has the page open.

The page may be a made-up one or that of a finished study: nothing here knows what is in it.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-sync",
    ),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
PHONE, DESKTOP = (360, 740), (1400, 900)
ROWS = ".overview tbody tr[data-for]"
CLICKS = """const [table, heads, times] = arguments;
    return heads.map(head => Array.from({length: times}, () => {
        head.querySelector('button').click();
        const rows = [...table.tBodies[0].rows]
            .filter(row => !row.classList.contains('group') && !row.hidden);
        const cells = rows.map(row => row.cells[head.cellIndex]);
        const sorted = [...table.querySelectorAll('[aria-sort]')].map(other => other.ariaSort);
        const values = cells.map(cell => cell.dataset.value ?? cell.textContent.trim());
        return [sorted, head.ariaSort, values];
    }))"""
SHOWN = """return [...document.querySelectorAll(arguments[0])]
    .filter(part => part.checkVisibility()).map(part => part.dataset.name)"""


@contextmanager
def browser(chromium: str, chromedriver: str, profile: Path) -> Iterator:
    """A headless Chromium with a fresh profile."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    try:
        yield driver
    finally:
        driver.quit()


def open_page(driver, page: Path, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> None:
    width, height = size
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    driver.get("about:blank")  # the same address again would only scroll
    driver.get(page.resolve().as_uri())
    until(
        driver, lambda: select(driver, "main")
    )  # on a busy machine the driver still looks at the blank page


def until(driver, condition: Callable) -> None:
    """Wait, for a busy machine has no pace of its own."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 30, 0.05).until(lambda _: condition())


def select(driver, selector: str) -> list:
    return driver.find_elements("css selector", selector)


def experiments(driver) -> list[str]:
    """The names of all experiments: each has a row in the overview and a section that its link
    leads to.
    """
    names = [row.get_attribute("data-name") for row in select(driver, ROWS)]
    assert names == [
        section.get_attribute("data-name") for section in select(driver, "article.experiment")
    ]
    for link in select(driver, f"{ROWS} th a"):
        anchor = link.get_attribute("href").partition("#")[2]
        assert (
            driver.execute_script("return document.getElementById(arguments[0])?.tagName", anchor)
            == "ARTICLE"
        )
    return names


def no_errors(driver) -> None:
    """Nothing on the console: no exception, nothing that the policy had to block, no file that was
    not found.
    """
    # Chromium's own start page may complain of a slow network.
    told = [one for one in driver.get_log("browser") if not one["message"].startswith("chrome://")]
    assert told == []


def nothing_ran(driver) -> None:
    """No dialog is open, and no element is there but those of the template."""
    from selenium.common.exceptions import NoAlertPresentException

    try:
        raise AssertionError(f"a label ran as a script: {driver.switch_to.alert.text}")
    except NoAlertPresentException:
        pass
    assert len(select(driver, "script")) == 1
    images = driver.execute_script(
        "return [...document.images].map(image => [image.src, image.naturalWidth])"
    )
    assert all(source.startswith("data:image/") and width for source, width in images)


def fits(driver, width: int) -> None:
    """The page is no wider than the screen; wide tables scroll inside their frames."""
    wide = driver.execute_script(
        "return Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
    )
    assert wide <= width, f"{wide} pixels on a screen of {width}"


def sorts(driver, table) -> None:
    """Every header sorts: ascending, descending, and then the order of the page again."""
    heads = table.find_elements("css selector", "th[data-sort]")
    for first, second, third, fourth, *_ in clicked(
        driver, table, heads, 6
    ):  # after six all is as it was
        assert [first[:2], second[:2]] == [[[way], way] for way in ("ascending", "descending")]
        assert third[:2] == [[], None]
        assert fourth == first
        assert sorted(first[2]) == sorted(second[2]) == sorted(third[2])
        in_order([number(key) for key in first[2]])
        in_order([-number(key) for key in second[2]])


def clicked(driver, table, heads: list, times: int) -> list:
    """For every header, after each of several clicks: all sorted headers' directions, its own, its
    column downwards.
    """
    return driver.execute_script(CLICKS, table, heads, times)


def number(key: str) -> float:
    try:
        return float(key)
    except ValueError:
        return math.nan


def in_order(values: list[float]) -> None:
    """Numbers in order; the order of words is the browser's, and not this check's to judge."""
    numbers = [value for value in values if not math.isnan(value)]
    assert numbers == sorted(numbers)


def filters(driver) -> None:
    """The text finds exactly the rows that contain it, the verdict those that have such cells;
    sections follow.
    """
    from selenium.webdriver.support.ui import Select

    field, verdict = (select(driver, f"#filter-{name}")[0] for name in ("text", "verdict"))
    rows = {row.get_attribute("data-name"): row for row in select(driver, ROWS)}
    last = list(rows)[-1]
    field.send_keys(last)
    assert shown(driver) == [
        name for name, row in rows.items() if last.lower() in row.get_attribute("data-search")
    ]
    assert last in shown(driver)
    field.clear()
    field.send_keys("no experiment is called like this")
    assert shown(driver) == []
    assert select(driver, ".nothing")[0].is_displayed()
    field.clear()
    field.send_keys(" ")
    kinds = [option.get_attribute("value") for option in Select(verdict).options]
    assert kinds[0] == ""
    assert kinds[-1] == "problems"
    for kind in kinds[1:]:
        Select(verdict).select_by_value(kind)
        assert shown(driver) == [
            name for name, row in rows.items() if row.get_attribute(f"data-{kind}") != "0"
        ]
    Select(verdict).select_by_value("")
    assert shown(driver) == list(rows)


def shown(driver) -> list[str]:
    """The experiments that are to be seen, the same in overview and sections."""
    sections = driver.execute_script(SHOWN, "article.experiment")
    assert shown_in_overview(driver) == sections
    return sections


def shown_in_overview(driver) -> list[str]:
    return driver.execute_script(SHOWN, ROWS)


def screenshot(driver, file: Path) -> None:
    """Saved, and not blank: many colours, and not nearly all of it one."""
    data = base64.b64decode(
        driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).reshape(-1, 3)
    colours, counts = np.unique(pixels, axis=0, return_counts=True)
    assert len(colours) > 20, "the page is blank"
    assert counts.max() < 0.98 * len(pixels), "the page is nearly blank"
