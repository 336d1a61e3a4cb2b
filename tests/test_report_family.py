"""The report of a session with every strategy: what only some of them have, and what is no answer."""

from __future__ import annotations

import fake_results as fake
import pytest
from test_report import Page, figures

from parabench.family import STRATEGIES
from parabench.pages.palette import STRATEGY
from parabench.report import render


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    return render(fake.family(tmp_path_factory.mktemp("family") / "r.db"))


def rendered(tmp_path, launches):
    page = render(fake.write(tmp_path / "r.db", launches))
    return Page(page).text, figures(page)


def traces(figure):
    return {trace["name"]: trace for trace in figure["data"]}


def test_every_section_is_there(family):
    ids = [attrs["id"] for tag, attrs in Page(family).tags if tag == "section"]
    assert ids[1:9] == ["bucket", "heat", "scaling", "parts", "anatomy", "pipelines", "state", "memory"]


def test_what_is_no_answer_is_marked_wherever_it_stands(family):
    text = Page(family).text
    assert "local_only, 4 ranks headroom, no answer" in text
    assert "another training: stale gradients, 1.5 updates on average, 4 at most" in text
    drawn = figures(family)
    assert "local_only<br>4 ranks (headroom, no<br>answer)" in drawn["parts-0"]["layout"]["yaxis"]["ticktext"]
    headroom = traces(drawn["scaling-0"])["local_only"]
    assert headroom["line"]["dash"] == "dash"
    assert traces(drawn["scaling-0"])["ddp"]["line"]["dash"] == "solid"
    assert "Fastest: local_only" not in text


def test_the_ideal_without_one_device_is_not_the_headrooms(tmp_path):
    cases = [fake.case(strategy=s, world_size=n) for s in ("ddp", "local_only") for n in (2, 4)]
    speed = {"ddp": 0.2, "local_only": 0.1}
    _, drawn = rendered(tmp_path, fake.sweep(cases, lambda one: speed[one.strategy] / one.world_size))
    assert traces(drawn["scaling-0"])["ideal"]["y"] == pytest.approx([8 * 64 / 0.1, 8 * 64 / 0.05])


def test_a_part_that_a_step_does_not_have_is_no_zero(family):
    bars = traces(figures(family)["parts-0"])
    names = list(bars["forward"]["customdata"])
    assert list(bars) == ["data", "forward", "backward", "forward and backward in turns", "optimizer"]
    for label, forward, both in zip(
        names, bars["forward"]["x"], bars["forward and backward in turns"]["x"], strict=True
    ):
        taking_turns = label.startswith("pp") or "grad_accumulation" in label
        assert ((forward is None), (both is None)) == (taking_turns, not taking_turns), label
    assert len({bar["marker"]["color"] for bar in bars.values()}) == len(bars)
    assert "Case Data Forward Backward Forward and backward in turns Optimizer" in Page(family).text


def test_without_turns_there_is_no_such_part(tmp_path):
    _, drawn = rendered(tmp_path, fake.sweep([fake.case()], lambda _: 0.04))
    assert "forward and backward in turns" not in traces(drawn["parts-0"])


def test_a_line_crosses_no_world_size_that_was_not_measured(tmp_path):
    """hsdp has 4 ranks alone, so its point stands alone; zero1 has 2 and 8 where others have 4."""
    single = fake.case(strategy="single", world_size=1)
    cases = [
        single,
        *(fake.case(world_size=n) for n in (2, 4, 8)),
        *(fake.case(strategy="zero1", world_size=n) for n in (2, 8)),
    ]
    cases += [fake.case(strategy="hsdp", ranks_per_node=2, world_size=4)]
    launches = fake.sweep(cases, lambda one: 0.08 / one.world_size)
    for one in launches:
        fake.tell(one, fake.SIZES, parameter_bytes=1.0, gradient_bytes=1.0, optimizer_bytes=2.0)
    _, drawn = rendered(tmp_path, launches)
    for name in ("scaling-0", "scaling-1"):
        lines = traces(drawn[name])
        points = {
            strategy: [x for x, y in zip(lines[strategy]["x"], lines[strategy]["y"], strict=True) if y is not None]
            for strategy in ("ddp", "zero1", "hsdp")
        }
        assert points == {"ddp": [1, 2, 4, 8], "zero1": [1, 2, 8], "hsdp": [1, 4]}
        assert lines["zero1"]["x"] == [1, 2, 4, 8]
        assert lines["hsdp"]["x"] == [1, 2, 4]
        assert lines["single"]["x"] == [1]
        assert not any(line.get("connectgaps") for line in lines.values())
    held = traces(drawn["state-0"])
    assert (held["zero1"]["x"], [y is None for y in held["zero1"]["y"]]) == ([2, 4, 8], [False, True, False])
    assert held["hsdp"]["x"] == [4]


def test_the_ideal_does_not_press_the_curves_down(tmp_path):
    """Where 8 ranks are no faster than one, the ideal is eight times as high; the axis ends far below."""
    single = fake.case(strategy="single", world_size=1)
    cases = [single, *(fake.case(world_size=n) for n in (2, 4, 8))]
    _, flat = rendered(tmp_path, fake.sweep(cases, lambda _: 0.08))
    rate = 8 * 64 / 0.08
    assert traces(flat["scaling-0"])["ideal"]["y"][-1] == pytest.approx(8 * rate)
    assert flat["scaling-0"]["layout"]["yaxis"]["range"] == pytest.approx([0, 1.05 * 1.5 * rate])
    (tmp_path / "steep").mkdir()
    _, steep = rendered(tmp_path / "steep", fake.sweep(cases, lambda one: 0.1 / one.world_size))
    assert steep["scaling-0"]["layout"]["yaxis"]["range"] == pytest.approx([0, 1.05 * 8 * 8 * 64 / 0.1])


def test_the_section_of_the_training_state_begins_with_its_answer(family):
    section = family[family.index('id="state"') :]
    assert section.index('class="lead">Least training state') < section.index('class="caption"')
    assert "(headroom" not in "".join(traces(figures(family)["state-0"]))
    assert "local_only (dashed) exchanges nothing" in section


@pytest.mark.parametrize(("blocks", "first"), [(1, "Least training state"), (3, "Fastest")])
def test_the_page_begins_with_what_is_certain(tmp_path, blocks, first):
    seconds = {"ddp": 0.03, "fsdp": 0.06}
    cases = [fake.case(strategy=name) for name in seconds]
    launches = fake.sweep(cases, lambda one: seconds[one.strategy], blocks=blocks)
    for one in launches:
        fake.tell(one, fake.SIZES, parameter_bytes=seconds[one.case.strategy], gradient_bytes=1.0, optimizer_bytes=2.0)
    page = render(fake.write(tmp_path / "r.db", launches))
    assert page.split('class="verdict">')[1].startswith(first)
    assert page.count('class="verdict">') == 2


def test_the_bubble_of_each_pipeline_beside_its_theory(family):
    text = Page(family).text
    assert "Pipelines: the bubble, theory and measured" in text
    assert "pp gpipe microbatches 4, 4 ranks gpipe 4 4 20 % 30 %" in text


def test_the_training_state_is_drawn_with_its_theory(family):
    drawn = figures(family)
    lines = traces(drawn["state-0"])
    assert lines["ddp"]["y"] == pytest.approx([48, 48])
    assert lines["fsdp, theory"]["y"] == pytest.approx([26, 14])
    bars = next(figure for name, figure in drawn.items() if name.startswith("state") and len(figure["data"]) == 4)
    assert list(traces(bars)) == ["parameters", "gradients", "optimizer state", "theory"]
    assert "ddp native, 2 ranks 4K 12.0 12.0 24.0 48.0 48.0 1.00" in Page(family).text
    assert "fsdp native, 2 ranks E + 4K/n 6.00 6.00 12.0 24.0 26.0 0.92" in Page(family).text


def test_a_users_strategy_has_no_theory(tmp_path):
    one = fake.launch(fake.case(strategy="my.module:ddp"))
    fake.tell(one, fake.SIZES, parameter_bytes=4.0, gradient_bytes=4.0, optimizer_bytes=8.0)
    text, drawn = rendered(tmp_path, [one])
    assert traces(drawn["state-0"])["theory"]["x"] == [None]
    assert "my.module:ddp native, 2 ranks unknown" in text


def test_strong_and_weak_scaling_have_their_own_panels(tmp_path):
    single = fake.case(strategy="single", world_size=1)
    cases = [single, fake.case(world_size=2), fake.case(world_size=2, global_batch=16)]
    seconds = dict(zip(cases, (0.040, 0.025, 0.050), strict=True))
    results = fake.write(tmp_path / "r.db", fake.sweep(cases, seconds.__getitem__))
    page = Page(render(results)).text
    for title in ("Strong scaling, global batch 8", "Weak scaling, 8 samples a rank"):
        assert f"{title}: throughput" in page
        assert f"{title}: efficiency" in page
    assert "the work grows with the ranks" in page
    drawn = figures(render(results))
    for efficiency in ("scaling-1", "scaling-3"):
        assert traces(drawn[efficiency])["ddp native"]["y"] == pytest.approx([100, 80])


def test_a_model_without_sequences_is_never_said_to_take_tokens(tmp_path):
    cases = [fake.case(model="mlp", data="synthetic", seq_len=1, world_size=n) for n in (2, 4)]
    text, drawn = rendered(tmp_path, fake.sweep(cases, lambda one: 0.08 / one.world_size))
    assert "Samples/s" in text
    assert "okens/s" not in text
    assert drawn["scaling-0"]["layout"]["yaxis"]["title"]["text"] == "throughput (samples/s)"


def test_every_strategy_has_a_colour_of_its_own():
    assert set(STRATEGY) == set(STRATEGIES)
    assert len(set(STRATEGY.values())) == len(STRATEGY)
