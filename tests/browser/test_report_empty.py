"""Pages of sessions with little or no data: sentences instead of empty figures."""

import pytest

import fake_collectives
import fake_results as fake
from browser_helpers import each_tab, needs_chromium, opened, too_wide, unmarked
from parabench.report.build import write_report

pytestmark = needs_chromium


def collective(*launches, **told):
    return lambda path: fake_collectives.write(path, launches, **told)


def training(launches, **told):
    return lambda path: fake.write(path, launches, **told)


STATES = {
    # What was recorded, and a sentence that the page must say.
    "no launch": (training([], finished=False), "No launch was recorded"),
    "steps without length": (
        training([fake.launch(fake.case(), 0.0, repetition=repetition) for repetition in range(2)]),
        "2 of 3 planned launches succeeded, none with a known step time (1 configuration).",
    ),
    "no instrumented steps": (
        training(fake.sweep([fake.case(world_size=n) for n in (2, 4)], lambda c: 0.04, noise=0.01)),
        "No instrumented step was recorded",
    ),
    "collectives, none": (collective(finished=False), "No launch was recorded, so the fastest algorithm is unknown."),
}  # fmt: skip
NOT_SAID = ("NaN", "nan ", "undefined", "null", "None,", "Infinity", "[object", "inf ")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("states")
    return lambda name: write_report(STATES[name][0](folder / f"{name}.db"), folder / f"{name}.html")


@pytest.mark.parametrize("name", STATES)
def test_each_state_has_its_sentence_and_no_blank_figure(browser, written, name):
    with opened(browser, written(name), width=360) as page:
        message = [page.locator("header").inner_text()]
        for tab in each_tab(page):
            assert too_wide(page) <= 0, tab
            assert unmarked(page) == [], tab
            text = page.locator("[role=tabpanel]:visible" if tab else "main").inner_text()
            assert len(text.split()) > 3, f"{tab} is empty"
            message.append(text)
    whole = "\n".join(message)
    assert STATES[name][1].lower() in whole.lower()
    for word in NOT_SAID:
        assert word not in whole, word
