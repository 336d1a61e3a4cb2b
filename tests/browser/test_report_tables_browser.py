"""The tables of all cases and launches, their files, a case's details and the figures of trust, in a real browser."""

import csv
import io
import re
from pathlib import Path

import pytest

import fake_results as fake
from browser_helpers import choose, needs_chromium, opened, too_wide
from parabench.plan.case import Case
from parabench.report.build import write_report
from parabench.store.record import Failure, Status
from paths import DOCS

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """130 cases in 2 repetitions, and 8 that failed."""
    folder = tmp_path_factory.mktemp("many")
    cases = [fake.case(bucket_mib=i / 4, world_size=n) for i in range(1, 66) for n in (2, 4)]
    launches = fake.sweep(cases, lambda c: 0.04 + c.bucket_mib / 1000 + c.world_size / 1e4, repetitions=2, noise=0.01)
    bad = [fake.case(strategy="fsdp", bucket_mib=float(i)) for i in range(1, 9)]
    launches += [fake.launch(each, status=Status.FAILED, failure=Failure("no reason")) for each in bad]
    return write_report(fake.write(folder / "r.db", launches, label="many"), folder / "report.html")


def column(page, table, at):
    return page.locator(f"#{table} tbody tr td:nth-child({at})").all_inner_texts()


def sort(page, table, head):
    page.locator(f"#{table} th", has_text=head).locator("button").click()


def rows_said(page, table):
    return page.locator(f"#{table} .pager output").inner_text()


def test_a_table_sorts_both_ways_and_back_with_unknown_last(browser, rich):
    with opened(browser, rich, "#tab=data") as page:
        head = page.locator("#cases th", has_text="Step")
        fastest = column(page, "cases", 3)
        assert head.get_attribute("aria-sort") == "ascending"
        assert [float(each) for each in fastest[:-1]] == sorted(float(each) for each in fastest[:-1])
        assert fastest[-1] == "–"
        sort(page, "cases", "Step")
        assert head.get_attribute("aria-sort") == "descending"
        assert column(page, "cases", 3) == [*fastest[-2::-1], "–"]
        assert page.locator("#cases th[aria-sort]").count() == 1
        sort(page, "cases", "Step")
        assert column(page, "cases", 3) == fastest
        sort(page, "launches", "Step")
        assert column(page, "launches", 4)[-3:] == ["–"] * 3
        sort(page, "launches", "Step")
        assert column(page, "launches", 4)[-3:] == ["–"] * 3


def test_launches_follow_the_filters_and_references_are_among_all_of_them(browser, rich):
    with opened(browser, rich, "#tab=data") as page:
        assert rows_said(page, "launches") == "85 rows"
        assert column(page, "launches", 2)[0] == "reference"
        choose(page, "status", "crashed")
        assert (rows_said(page, "cases"), rows_said(page, "launches")) == ("1 row", "3 rows")
        assert page.locator("#launches .status.bad").count() == 3
        assert column(page, "launches", 9) == ["rank 2: killed by SIGKILL"] * 3
    with opened(browser, rich, "#tab=data&strategy=single&world_size=4") as page:
        assert (
            page.locator("#cases .empty, #launches .empty").all_inner_texts()
            == ["No configuration matches the filters. “Show all” clears them."] * 2
        )
        assert page.locator("#cases table:visible").count() == 0


def test_many_rows_come_a_hundred_at_a_time_and_keys_turn_the_page(browser, many):
    with opened(browser, many, "#tab=data", width=360) as page:
        assert rows_said(page, "cases") == "rows 1 to 100 of 138"
        assert page.locator("#cases tbody tr").count() == 100
        to = {name: page.locator(f"#cases [data-to={name}]") for name in ("first", "previous", "next", "last")}
        to["next"].focus()
        page.keyboard.press("Enter")
        assert rows_said(page, "cases") == "rows 101 to 138 of 138"
        page.keyboard.press("Enter")  # the last page, and the focus stays
        assert rows_said(page, "cases") == "rows 101 to 138 of 138"
        assert page.evaluate("document.activeElement.dataset.to") == "next"
        assert [to[name].get_attribute("aria-disabled") for name in to] == ["false", "false", "true", "true"]
        to["first"].click()
        assert rows_said(page, "cases") == "rows 1 to 100 of 138"
        to["last"].click()
        sort(page, "cases", "Configuration")  # another order begins at its first row
        assert rows_said(page, "cases") == "rows 1 to 100 of 138"
        choose(page, "strategy", "fsdp")
        assert (rows_said(page, "cases"), to["next"].is_hidden()) == ("8 rows", True)
        assert too_wide(page) <= 0
        first = page.locator("#cases tbody td:first-child").first
        assert first.bounding_box()["width"] >= 140
        page.locator("#cases .scroll").evaluate("frame => { frame.scrollLeft = 300; }")
        assert first.bounding_box()["x"] >= 0  # it stays in sight


def downloaded(page, table):
    with page.expect_download() as download:
        page.locator(f"#{table} .save").click()
    raw = Path(download.value.path()).read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf")
    text = raw.decode("utf-8-sig")
    assert "\n" not in re.sub(r'"[^"]*"', "", text.replace('""', "")).replace("\r\n", "")
    return download.value.suggested_filename, list(csv.DictReader(io.StringIO(text, newline="")))


def unexplained(heads):
    """Those that docs/reference/report.md says nothing about."""
    told = (DOCS / "reference/report.md").read_text(encoding="utf-8")
    return {head for head in heads if f"`{head}`" not in told}


def test_a_file_has_the_selected_rows_in_the_tables_order_with_all_that_is_known(browser, many):
    with opened(browser, many, "#tab=data&world_size=4") as page:
        sort(page, "cases", "Step")
        name, rows = downloaded(page, "cases")
        assert (name, len(rows)) == ("many-cases.csv", 65)
        assert [row["label"] for row in rows] == page.locator("#cases tbody .name").all_inner_texts()
        slowest = rows[0]
        assert (slowest["bucket_mib"], slowest["world_size"], slowest["seq_len"]) == ("16.25", "4", "64")
        assert len(slowest["step_time_s"]) > 5  # more digits than the table shows
        assert float(slowest["step_time_s"]) == pytest.approx(0.0566, rel=0.05)
        assert int(slowest["peak_memory_bytes"]) == pytest.approx(103 * 2**20, rel=1e-4)
        assert slowest["throughput_unit"] == "tokens/s"
        assert set(Case().to_dict()) <= set(slowest)
        assert unexplained(set(slowest) - set(Case().to_dict())) == set()
        assert not {"work", "n"} & set(slowest)
        name, launches = downloaded(page, "launches")
        assert (name, len(launches)) == ("many-launches.csv", 65 * 2)
        assert unexplained(launches[0]) == set()


def open_case(page, name):
    page.locator("#cases tbody button.name", has_text=re.compile(f"^{re.escape(name)}$")).click()
    page.wait_for_selector("dialog[data-drawn=yes]")


def test_a_click_on_a_case_opens_its_details_and_escape_gives_the_focus_back(browser, rich):
    with opened(browser, rich, "#tab=data") as page:
        open_case(page, "ddp ring 25 MiB, 4 ranks")
        dialog = page.locator("dialog.detail")
        message = dialog.inner_text()
        for part in ("fastest", "tokens/s", "22.2 ± 0.3 ms", "Measure this configuration again"):
            assert part in message, part
        assert "Timeline, collectives" not in message  # the page has no figure of the case
        assert page.evaluate("location.hash").endswith("case=ddp-ring-w4-25mib-e1a5941d")
        assert len(dialog.locator("[aria-label='Launches'] td:nth-child(3)").all_inner_texts()) == 3
        page.keyboard.press("Escape")
        assert not dialog.is_visible()
        page.wait_for_url(lambda url: "case=" not in url)
        assert page.evaluate("document.activeElement.textContent") == "ddp ring 25 MiB, 4 ranks"
        page.go_forward()
        page.wait_for_selector("dialog[open]")
        dialog.get_by_role("button", name="Close").click()
        assert not dialog.is_visible()
        page.wait_for_url(lambda url: "case=" not in url)
