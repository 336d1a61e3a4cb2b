"""A session with every strategy: parts that only some have, and unranked strategies."""

import pytest

import fake_results as fake
from page_helpers import Page, data, figures
from parabench.report.build import render


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    return render(fake.family(tmp_path_factory.mktemp("family") / "r.db"))


def by_label(page):
    cases = data(page)["cases"]
    return {label: {name: values[row] for name, values in cases.items()} for row, label in enumerate(cases["label"])}


def test_unranked_configurations_are_marked(family):
    cases = by_label(family)
    headroom = cases["local_only, 4 ranks"]
    assert (headroom["mark"], headroom["ranked"], headroom["ranking"]) == ("baseline, not ranked", False, "")
    stale = cases["parameter_server_async, 4 ranks"]
    assert stale["mark"] == "another training: stale gradients, 1.5 updates on average, 4 at most"
    assert (cases["ddp native, 4 ranks"]["mark"], cases["ddp native, 4 ranks"]["ranked"]) == ("", True)
    scaling = {trace["name"].split()[0]: trace for trace in figures(family)["scaling-0"]["data"]}
    assert (scaling["local_only"]["line"]["dash"], scaling["ddp"]["line"]["dash"]) == ("dash", "solid")
    assert "Fastest: local_only" not in Page(family).text


def test_missing_part_of_a_step_is_unknown(family):
    for label, case in by_label(family).items():
        taking_turns = label.startswith("pp") or "grad_accumulation" in label
        absent = (case["forward_s"] is None, case["forward_backward_s"] is None)
        assert absent == (taking_turns, not taking_turns), label


@pytest.mark.parametrize(("repetitions", "first"), [(1, "Smallest model states"), (3, "Fastest")])
def test_page_starts_with_certain_facts(tmp_path, repetitions, first):
    seconds = {"ddp": 0.03, "fsdp": 0.06}
    cases = [fake.case(strategy=name) for name in seconds]
    launches = fake.sweep(cases, lambda one: seconds[one.strategy], repetitions=repetitions)
    for one in launches:
        fake.tell(one, fake.SIZES, parameter_bytes=seconds[one.case.strategy], gradient_bytes=1.0, optimizer_bytes=2.0)
    page = render(fake.write(tmp_path / "r.db", launches))
    assert page.split('class="verdict">')[1].startswith(first)
    assert page.count('class="verdict">') == 2


def test_pipelines_have_theory_and_measured_bubble(family):
    text = Page(family).text
    assert "Pipeline bubbles: theory and measured" in text
    assert "pp gpipe microbatches 4, 4 ranks gpipe 4 4 20% 30%" in text
