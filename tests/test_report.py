from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import fake_results as fake
import plotly.graph_objects as go
import pytest

from parabench.errors import UsageError
from parabench.pages.page import script_json
from parabench.record import Failure, Finding, Status
from parabench.report import render, write_report

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u2028&amp;"


class Page(HTMLParser):
    """What a browser would see: elements by id, and all text outside of scripts and style."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.scripts, self._open = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open == "script":
            self.scripts[-1] += data
        elif self._open != "style":
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", "".join(self.words))


def figures(text):
    return json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.S)[1])


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    return render(fake.rich(tmp_path_factory.mktemp("rich") / "r.db"))


def test_the_page_answers_in_order(rich):
    page = Page(rich)
    figures_of = ["bucket", "heat", "scaling", "parts", "anatomy", "state", "memory", "front"]
    over_time = ["time-memory", "time-devices", "usage"]
    tables_of = ["cases", "findings", "failed", "launches", "machine", "environment", "reproduce"]
    ids = [attrs["id"] for tag, attrs in page.tags if tag == "section"]
    assert ids == ["verdict", *figures_of, *over_time, *tables_of]
    for said in (
        "Which algorithm and bucket size is fastest for DDP here?",
        "Fastest: ddp ring, 4 to 25 MiB, 4 ranks: 22.2 ms a step",
        "81 of 84 launches ended well (28 cases, 3 blocks, 20 measured steps each)",
        "The CPU governor is powersave. Set it to performance.",
        "rank 2 · SIGKILL",
        "RuntimeError: peer closed",
        "tp native, 8 ranks: world_size 8 needs 8 cores; this machine has 4",
        "parabench run quick --label nightly --set bucket_mib=1,4,25,default",
        "not available: no NVIDIA driver",
    ):
        assert said in page.text, said


def test_every_figure_is_one_that_plotly_accepts_with_units_on_its_axes(rich):
    drawn = figures(rich)
    assert {name.split("-")[0] for name in drawn} == {"bucket", "heat", "scaling", "parts", "memory", "front"}
    for name, figure in drawn.items():
        go.Figure(figure)
        titles = [figure["layout"][axis].get("title", {}).get("text", "") for axis in ("xaxis", "yaxis")]
        assert any(re.search(r"\((MiB|ms|ranks|tokens/s|%)\)", title) for title in titles), (name, titles)


def test_the_default_bucket_stands_apart_and_error_bars_are_the_launches(rich):
    figure = figures(rich)["bucket-1"]
    assert figure["layout"]["xaxis"]["ticktext"] == ["1", "4", "25", "default"]
    numbered, default = [trace for trace in figure["data"] if trace["name"] == "native"]
    assert (len(numbered["x"]), numbered["mode"]) == (3, "lines+markers")
    assert (len(default["x"]), default["mode"]) == (1, "markers")
    assert default["x"][0] > max(numbered["x"])
    assert min(numbered["error_y"]["array"] + numbered["error_y"]["arrayminus"]) >= 0


def test_names_keep_their_colours(rich):
    seen = {}
    for name, figure in figures(rich).items():
        if name.startswith("bucket"):
            for trace in figure["data"]:
                seen.setdefault(trace["name"], set()).add(trace["marker"]["color"])
    assert set(seen) == {"native", "ring", "tree"}
    assert all(len(colours) == 1 for colours in seen.values())


def test_only_its_own_scripts_may_run_and_nothing_is_loaded(rich):
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


def test_hostile_text_stays_text(tmp_path):
    failure = Failure(HOSTILE, rank=0, traceback=HOSTILE)
    results = fake.write(
        tmp_path / "r.db",
        [
            *fake.sweep([fake.case(bucket_mib=b) for b in (1.0, 2.0)], lambda _: 0.04),
            fake.launch(fake.case(bucket_mib=4.0), status=Status.FAILED, failure=failure),
        ],
        label=HOSTILE,
        question=HOSTILE,
        environment=fake.ENVIRONMENT | {"host": HOSTILE, "cpu": HOSTILE, "env": {HOSTILE: HOSTILE}},
        argv=["parabench", HOSTILE],
        skipped=[(fake.case(bucket_mib=8.0), HOSTILE)],
        findings=[Finding(HOSTILE, HOSTILE, HOSTILE)],
    )
    text = render(results)
    page = Page(text)
    assert "alert(1)" in page.text
    assert not [t for t in page.tags if t[0] == "img" or "onerror" in t[1]]
    assert sum(tag == "script" for tag, _ in page.tags) == 3
    assert text.count("<script>alert") == 0


def test_json_in_a_script_holds_no_character_that_html_acts_on():
    text = script_json({"a": HOSTILE})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a": HOSTILE}


def empty(tmp_path, launches, **more):
    page = render(fake.write(tmp_path / "r.db", launches, **more))
    return Page(page).text, figures(page)


def test_no_launch_at_all(tmp_path):
    text, drawn = empty(tmp_path, [], finished=False)
    assert drawn == {}
    assert "No launch was recorded, so there is no fastest configuration." in text
    assert "The session is not finished" in text
    assert "No case was launched." in text


def test_no_good_launch(tmp_path):
    bad = [fake.launch(fake.case(), status=Status.HUNG, failure=Failure("no step for 60 s"))]
    text, drawn = empty(tmp_path, bad)
    assert drawn == {}
    assert text.count("No launch ended well, so there is nothing to draw.") == 8
    assert "no step for 60 s" in text


def test_a_single_case_has_sentences_for_what_cannot_be_drawn(tmp_path):
    launches = fake.sweep([fake.case()], lambda _: 0.04)
    for one in launches:
        one.samples = [s for s in one.samples if s.metric in ("step_s", "loss")]
    text, drawn = empty(tmp_path, launches)
    assert drawn == {}
    assert "Only one configuration has a result, so there is nothing to rank." in text
    assert "No strategy was measured with more than one bucket size." in text
    assert "This needs at least two algorithms and two bucket sizes" in text
    assert "Only one world size was measured" in text
    assert "The parts of a step were not recorded." in text
    assert "Peak memory was not recorded: unknown, not zero." in text
    assert "Bytes of parameters, gradients and optimizer state were not recorded: unknown, not zero." in text


def test_missing_keys_of_the_environment_and_the_plan_are_no_error(tmp_path):
    text, _ = empty(tmp_path, fake.sweep([fake.case()], lambda _: 0.04), environment={})
    assert "memoryunknown" in text.replace(" ", "")


def test_without_one_device_the_ideal_is_the_best_base(tmp_path):
    cases = [fake.case(algorithm=a, world_size=n) for a in ("native", "ring") for n in (2, 4)]
    _, drawn = empty(tmp_path, fake.sweep(cases, lambda c: (0.1 if c.algorithm == "ring" else 0.2) / c.world_size))
    ideal = drawn["scaling-0"]["data"][0]
    assert ideal["y"] == pytest.approx([8 * 64 / 0.05, 8 * 64 / 0.025])


def test_several_works_each_have_their_answer(tmp_path):
    cases = [fake.case(bucket_mib=b, global_batch=g) for g in (8, 16) for b in (1.0, 4.0)]
    text, drawn = empty(tmp_path, fake.sweep(cases, lambda c: 0.001 * c.global_batch * c.bucket_mib, noise=0.01))
    assert text.count("Fastest: ") == 2
    assert "global batch 16" in text
    assert {"bucket-0", "bucket-1"} <= set(drawn)


def test_a_gpu_session_shows_torch_and_nvml_memory(tmp_path):
    page = render(fake.rich(tmp_path / "r.db", gpu=True))
    (memory,) = [figure for name, figure in figures(page).items() if name.startswith("memory")]
    assert [trace["name"] for trace in memory["data"]] == ["torch tensors", "device (NVML)"]
    assert "4 × NVIDIA H200 (140 GiB)" in Page(page).text
    assert "median of its steps" in Page(page).text


def test_the_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    results = fake.write(tmp_path / "r.db", [fake.launch(fake.case())])
    out = tmp_path / "made" / "report.html"
    assert write_report(results, out) == out
    assert out.read_text(encoding="utf-8").endswith("</html>\n")
    before = out.read_bytes()
    monkeypatch.setattr(
        "pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(UsageError, match=r"report.html cannot be written: No space left on device"):
        write_report(results, out)
    assert out.read_bytes() == before
    assert [p.name for p in out.parent.iterdir()] == ["report.html"]
    with pytest.raises(UsageError, match="cannot be written"):
        write_report(results, tmp_path / "r.db" / "x.html")


def test_an_unknown_session_is_named(tmp_path):
    results = fake.write(tmp_path / "r.db", [])
    with pytest.raises(UsageError, match="session 'no' is not in"):
        render(results, "no")
