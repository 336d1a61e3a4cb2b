"""Sessions of which little or nothing came: the page says so in a sentence, draws nothing blank, invents nothing."""

from __future__ import annotations

import pytest

import fake_collectives
import fake_results as fake
from browser_helpers import each_tab, needs_chromium, opened, pages, too_wide, unmarked
from parabench.report.build import write_report
from parabench.store.record import Failure, Status

pytestmark = needs_chromium

WRONG = Failure("loss 3.1 of step 2 differs from the reference's 3.0")


def failing(status=Status.FAILED, blocks=2):
    return [fake.launch(fake.case(bucket_mib=b), block=k, status=status, failure=WRONG)
            for k in range(blocks) for b in (1.0, 25.0)]  # fmt: skip


def without_memory():
    launches = fake.sweep([fake.case(world_size=n) for n in (2, 4)], lambda c: 0.04, noise=0.01)
    for one in launches:
        one.samples = [sample for sample in one.samples if sample.metric != "peak_rss_bytes"]
    return launches


def collective(*launches, **told):
    return lambda path: fake_collectives.write(path, launches, **told)


def training(launches, **told):
    return lambda path: fake.write(path, launches, **told)


ONE = fake_collectives.case()
STATES = {
    # What was recorded, and a sentence that the page must say.
    "no launch": (training([], finished=False), "No launch was recorded"),
    "one skipped": (
        training([], skipped=[(fake.case(world_size=8), "world_size 8 needs 8 cores")]),
        "1 case was skipped: world_size 8 needs 8 cores.",
    ),
    "steps without length": (
        training([fake.launch(fake.case(), 0.0, block=block) for block in range(2)]),
        "2 of 3 planned launches succeeded, none with a known step time (1 case).",
    ),
    "not to the end": (
        training([fake.launch(fake.case(), 0.04)], finished=False),
        "The session is not finished",
    ),
    "no launch ok": (training(failing()), "None: no launch succeeded."),
    "all skipped": (
        training([], skipped=[(fake.case(world_size=n), f"needs {n} cores; this machine has 2") for n in (4, 8)]),
        "needs 8 cores; this machine has 2",
    ),
    "a single case": (training(fake.sweep([fake.case()], lambda c: 0.04, noise=0.01)), "Only one configuration"),
    "one world size": (
        training(fake.sweep([fake.case(bucket_mib=b) for b in (1.0, 4.0, 25.0)], lambda c: 0.04, noise=0.01)),
        "Only one world size was measured, so scaling is unknown.",
    ),
    "no memory": (training(without_memory()), "Peak memory was not recorded: unknown, not zero."),
    "one launch each": (
        training(fake.sweep([fake.case(bucket_mib=b) for b in (1.0, 4.0)], lambda c: 0.04, blocks=1)),
        "One block cannot be",
    ),
    "all wrong": (training(failing(Status.WRONG)), "No launch succeeded"),
    "interrupted": (
        training(
            [fake.launch(fake.case()), fake.launch(fake.case(bucket_mib=1.0), status=Status.INTERRUPTED)],
            finished=False,
        ),
        "The session is not finished",
    ),
    "no instrumented steps": (
        training(fake.sweep([fake.case(world_size=n) for n in (2, 4)], lambda c: 0.04, noise=0.01)),
        "No instrumented steps",
    ),
    "collectives, none": (collective(finished=False), "No launch was recorded, so there is no fastest algorithm."),
    "collectives, none ok": (
        collective(fake_collectives.launch(ONE, float, status=Status.HUNG, failure=Failure("no end"))),
        "No launch succeeded, so there is nothing to draw.",
    ),
    "collectives, all wrong": (
        collective(fake_collectives.launch(ONE, lambda s: 1e-3, status=Status.WRONG, wrong=3, failure=WRONG)),
        "12 elements are wrong.",
    ),
    "collectives, one": (
        collective(fake_collectives.launch(ONE, lambda s: 1e-3 + s * 1e-9)), "all_reduce, 2 ranks"
    ),
}  # fmt: skip
NOT_SAID = ("NaN", "nan ", "undefined", "null", "None,", "Infinity", "[object", "inf ")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("states")
    return lambda name: write_report(STATES[name][0](folder / f"{name}.db"), folder / f"{name}.html")


# Sentences that come of one place have one state of it.
ALIKE = (
    "all skipped", "one skipped", "no launch ok", "not to the end", "interrupted", "one launch each", "one world size",
    "all wrong", "collectives, none ok", "collectives, all wrong", "collectives, one",
)  # fmt: skip


@pytest.mark.parametrize("name", pages([name for name in STATES if name not in ALIKE], slow=ALIKE))
def test_each_state_has_its_sentence_and_no_blank_figure(browser, written, name):
    with opened(browser, written(name), width=360) as page:
        said = [page.locator("header").inner_text()]
        for tab in each_tab(page):
            assert too_wide(page) <= 0, tab
            assert unmarked(page) == [], tab
            text = page.locator("[role=tabpanel]:visible").inner_text()
            assert len(text.split()) > 3, f"{tab} is empty"
            said.append(text)
    whole = "\n".join(said)
    assert STATES[name][1].lower() in whole.lower()
    for word in NOT_SAID:
        assert word not in whole, word
