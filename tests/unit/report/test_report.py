import base64
import hashlib

import pytest

import fake_results as fake
from page_helpers import Page, data, figures
from parabench.report.build import render
from parabench.store.record import Failure, Status


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    return render(fake.rich(tmp_path_factory.mktemp("rich") / "r.db"))


def test_the_page_answers_in_order(rich):
    page = Page(rich)
    ids = [attrs["id"] for tag, attrs in page.tags if tag == "section" and "id" in attrs]
    assert ids[:6] == ["verdict", "ranking", "front", "bucket", "algorithms", "scaling"]
    tabs = [attrs["data-tab"] for _, attrs in page.tags if attrs.get("role") == "tab"]
    assert tabs == [
        "answer", "buckets", "algorithms", "scaling", "anatomy", "memory", "energy", "trust", "environment", "data",
    ]  # fmt: skip
    for message in (
        "Which algorithm and bucket size is fastest for DDP here?",
        "Fastest: ddp ring 25 MiB, 4 ranks: 22.2 ms per step",
        "81 of 84 launches succeeded (28 configurations, 3 repetitions, 20 measured steps each)",
        "The CPU governor is powersave. Set it to performance.",
        "rank 2 · SIGKILL",
        "RuntimeError: peer closed",
        "tp native, 8 ranks: world_size 8 needs 8 cores; this machine has 4",
        "parabench run quick --label nightly --set bucket_mib=1,4,25,default",
        "not available: no NVIDIA driver",
    ):
        assert message in page.text, message


def test_page_policy_allows_only_its_scripts(rich):
    page = Page(rich)
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv"))
    runnable = [
        text
        for text, (_, attrs) in zip(page.scripts, [t for t in page.tags if t[0] == "script"], strict=True)
        if "type" not in attrs
    ]
    assert len(runnable) == 2
    for script in runnable:
        assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert "'unsafe-eval'" not in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]
    assert not [t for t in page.tags if t[1].get("src") or t[1].get("href", "#")[0] not in "#d"]


def text_of(tmp_path, launches, **more):
    return Page(render(fake.write(tmp_path / "r.db", launches, **more))).text


def test_session_without_good_launch_has_sentences(tmp_path):
    text = text_of(tmp_path, [], finished=False)
    assert "No launch was recorded, so the fastest configuration is unknown." in text
    assert "The session is not finished" in text
    assert "No configuration was launched." in text
    bad = [fake.launch(fake.case(), status=Status.HUNG, failure=Failure("no step for 60 s"))]
    text = text_of(tmp_path, bad)
    assert text.count("No launch succeeded, so nothing is drawn.") >= 5
    assert "no step for 60 s" in text


def test_a_single_case_has_sentences_for_what_cannot_be_drawn(tmp_path):
    launches = fake.sweep([fake.case()], lambda _: 0.04)
    for one in launches:
        one.samples = [s for s in one.samples if s.metric in ("step_s", "loss")]
    text = text_of(tmp_path, launches)
    assert "Only one configuration has a result, so nothing can be ranked." in text
    for sentence in (
        "No strategy has more than one bucket size at one world size.",
        "No algorithm was measured along with native",
        "No strategy has two world sizes",
        "The parts of a step were not recorded.",
        "Peak memory was not recorded: unknown, not zero.",
        "Bytes of the model states were not recorded: unknown, not zero.",
    ):
        assert sentence in text


def test_several_works_each_have_their_answer_and_their_name(tmp_path):
    cases = [fake.case(bucket_mib=b, global_batch=g) for g in (8, 16) for b in (1.0, 4.0)]
    launches = fake.sweep(cases, lambda c: 0.001 * c.global_batch * c.bucket_mib, noise=0.01)
    page = render(fake.write(tmp_path / "r.db", launches))
    assert Page(page).text.count("Fastest: ") == 2
    found = data(page)
    assert Page(page).text.count("Ranking") == 1
    assert list(figures(page))[:2] == ["ranking-0", "ranking-1"]
    assert [found["cases"]["global_batch"][i] for i in range(4)] == [8, 16, 8, 16]
