"""Measure the cost of writing and of using a report.

    python -m benchmarks.report_cost STORE... [--report FILE] [--browser PATH]

Runs `parabench report STORE...` and prints its time, peak memory and the size of the file. Then opens the page in
Chromium, visits each tab, sets and clears each filter in it, sorts the table and opens a configuration. Prints for each
action the longest task of the page's thread, in wall time and CPU time. The exit code is 1 if the page wrote to the
console. `python -m benchmarks.big_store` makes a large database.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from parabench.store.record import MIB

TASK = "ThreadControllerImpl::RunTask"
DRAWN = "html[data-drawn=yes]"
PATIENCE_MS = 120_000


def write(stores: list[str], report: Path) -> None:
    """Write the report in a separate process, and print its cost."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "parabench", "report", *stores, "-o", str(report)], check=True)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"written in {seconds:.1f} s, peak memory {peak / MIB:,.0f} MiB, file {report.stat().st_size / 1e6:.1f} MB")


def read(report: Path, browser: str) -> list[str]:
    """Use the page, print its longest task in each action, and return its console messages."""
    messages: list[str] = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=browser, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(PATIENCE_MS)
        watch(page)
        page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: messages.append(f"error: {error}"))
        page.goto(report.resolve().as_uri())
        longest(page, "open")
        tabs = [str(tab.get_attribute("data-tab")) for tab in page.locator("[role=tab]").all()]
        for tab in tabs:
            page.locator(f"[role=tab][data-tab={tab}]").click()
            longest(page, f"tab {tab}")
        filters = [str(each.get_attribute("data-filter")) for each in page.locator("#filters .filter").all()]
        for tab in tabs:
            page.locator(f"[role=tab][data-tab={tab}]").click()
            longest(page, "")
            for name in filters:
                choose(page, name)
                longest(page, f"{tab}: filter {name}")
                page.get_by_role("button", name="Show all").click()
                longest(page, f"{tab}: show all")
        page.locator("[role=tab][data-tab=data]").click()
        for head in page.locator("#tab-data th button").all():
            column = head.inner_text().replace("\n", " ")
            head.click()
            longest(page, f"sort by {column}")
        page.locator("#tab-data tbody button").first.click()
        page.wait_for_selector("dialog[open]")
        longest(page, "open a case")
        chromium.stop_tracing()
        chromium.close()
    return messages


def choose(page: Page, name: str) -> None:
    """Set a filter's first value."""
    own = page.locator(f"#filters .filter[data-filter='{name}']")
    own.locator("summary").click()
    own.locator("input").first.check()
    own.locator("summary").click()


def watch(page: Page) -> None:
    """Start to trace the threads."""
    assert page.context.browser is not None
    page.context.browser.start_tracing(page=page, categories=["toplevel"])


def longest(page: Page, use: str) -> None:
    """Wait until the page is drawn, and print the longest task since the last call."""
    page.wait_for_selector(DRAWN, state="attached")
    assert page.context.browser is not None
    events: list[dict[str, Any]] = json.loads(page.context.browser.stop_tracing())["traceEvents"]
    watch(page)
    threads = {
        (each["pid"], each["tid"])
        for each in events
        if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
    }
    tasks = [each for each in events if each["name"] == TASK and (each["pid"], each["tid"]) in threads]
    if use:
        wall, own = (max((each.get(name, 0) for each in tasks), default=0) / 1e3 for name in ("dur", "tdur"))
        print(f"{wall:6.0f} ms, {own:4.0f} of CPU time  {use}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="+", metavar="STORE")
    parser.add_argument("--report", type=Path, help="Keep the page there.")
    parser.add_argument("--browser", default=shutil.which("chromium"), help="Chromium's program.")
    given = parser.parse_args()
    if given.browser is None:
        sys.exit("no chromium is installed; give --browser the path of one")
    with tempfile.TemporaryDirectory() as folder:
        report = given.report or Path(folder) / "report.html"
        write(given.stores, report)
        messages = read(report, given.browser)
    if messages:
        sys.exit("the page wrote to the console:\n" + "\n".join(dict.fromkeys(messages)))


if __name__ == "__main__":
    main()
