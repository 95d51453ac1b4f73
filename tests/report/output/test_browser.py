"""The report in Chromium, opened as a file: it works offline, on a phone and a desktop, and no
label runs.

FEDBENCH_REPORT=results/report/index.html tries a real report, FEDBENCH_SCREENSHOT=folder keeps the
screenshots.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support import browser_checks as checks
from support.study_entries import made_up

from fedbench.report.experiments import experiment as experiments
from fedbench.report.output.page import write_page

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
CHROMEDRIVER = shutil.which("chromedriver")
pytest.importorskip("selenium", reason="selenium is not installed (pip install fedbench-lab[dev])")
pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium here (Debian: apt-get install chromium)"),
    pytest.mark.skipif(
        not CHROMEDRIVER, reason="no chromedriver here (Debian: apt-get install chromium-driver)"
    ),
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with checks.browser(CHROMIUM, CHROMEDRIVER, tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    if real := os.environ.get("FEDBENCH_REPORT"):
        return Path(real)
    folder = tmp_path_factory.mktemp("report")
    write_page(made_up(folder), folder / "results" / "report" / "index.html", folder / "results")
    return folder / "results" / "report" / "index.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [checks.PHONE, checks.DESKTOP], ids=["phone", "desktop"])
def test_it_opens_without_an_error_and_fits(driver, report, tmp_path, size, scheme):
    checks.open_page(driver, report, size, scheme)
    checks.nothing_ran(driver)
    checks.fits(driver, size[0])
    folder = Path(os.environ.get("FEDBENCH_SCREENSHOT", tmp_path))
    checks.screenshot(driver, folder / f"report-{size[0]}-{scheme}.png")
    driver.execute_script(
        "document.querySelectorAll('details').forEach(part => (part.open = true))"
    )
    checks.fits(driver, size[0])
    checks.no_errors(driver)


def test_every_experiment_is_there(driver, report, tmp_path):
    checks.open_page(driver, report)
    names = checks.experiments(driver)
    real = "FEDBENCH_REPORT" in os.environ
    assert names == (experiments.names() if real else [entry.name for entry in made_up(tmp_path)])


def test_a_report_of_everything_has_at_most_three_megabytes(report):
    assert report.stat().st_size < 3_000_000


def test_tables_sort(driver, report):
    checks.open_page(driver, report)
    for table in checks.select(driver, "table.sortable"):
        checks.sorts(driver, table)
    checks.no_errors(driver)


def test_a_click_on_a_header_puts_the_rows_in_order(driver, tmp_path):
    """The same as above, but by a real click and on rows whose order is known."""
    entries = made_up(tmp_path)
    write_page(entries, tmp_path / "index.html", tmp_path)
    checks.open_page(driver, tmp_path / "index.html")
    runs = checks.select(driver, ".overview th[data-sort] button")[1]
    by_runs = sorted(entries, key=lambda entry: entry.done)
    scroll_to(driver, runs)
    runs.click()
    assert checks.shown_in_overview(driver) == [entry.name for entry in by_runs]
    runs.click()
    by_runs = sorted(entries, key=lambda entry: -entry.done)
    assert checks.shown_in_overview(driver) == [entry.name for entry in by_runs]


def scroll_to(driver, part) -> None:
    driver.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", part
    )


def test_cells_without_a_number_come_last(driver, tmp_path):
    write_page(made_up(tmp_path)[:1], tmp_path / "index.html", tmp_path)
    checks.open_page(driver, tmp_path / "index.html")
    table = checks.select(driver, "figure.grid table")[0]
    head = table.find_elements("css selector", "th[data-sort]")[8]
    for _, _, keys in checks.clicked(driver, table, [head], 2)[0]:
        assert keys[-2:] == ["", ""]
        assert "" not in keys[:-2]


def test_the_filter_finds(driver, report):
    checks.open_page(driver, report)
    checks.filters(driver)
    checks.no_errors(driver)


def test_a_command_is_copied_or_selected(driver, report):
    checks.open_page(driver, report)
    button = checks.select(driver, "button.copy")[0]
    scroll_to(driver, button)
    button.click()
    checks.until(driver, lambda: button.text in ("Copied", "Selected"))


def test_it_is_readable_without_scripts(driver, report):
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        checks.open_page(driver, report)
        assert all(
            section.is_displayed() for section in checks.select(driver, "article.experiment")
        )
        assert not [
            part for part in checks.select(driver, ".filters, button") if part.is_displayed()
        ]
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
