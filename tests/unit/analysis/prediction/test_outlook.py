"""What more ranks than a session trained with are predicted to give: at which numbers of ranks, and in which words."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest
from click.testing import CliRunner

import fake_results as fake
import prediction_helpers as helpers
from parabench.analysis.prediction.outlook import MOST_RANKS, outlooks
from parabench.analysis.prediction.predict import Prediction
from parabench.analysis.session import holds, session_data
from parabench.analysis.text import outlook as text
from parabench.cli import main
from paths import DOCS

SCHEMA = json.loads((DOCS / "reference/best.schema.json").read_text())

THREE_STRATEGIES = [helpers.case(name) for name in ("ddp", "zero1", "tp")]


def only(results):
    [found] = outlooks(session_data(results))
    return found


@pytest.fixture(scope="module")
def between(tmp_path_factory):
    """A store that knows links between nodes."""
    return helpers.write(tmp_path_factory.mktemp("between") / "results.db", link_nodes=(1, 2), cores=2)


@pytest.fixture(scope="module")
def inside(tmp_path_factory):
    """A store of one node with cores for two ranks."""
    return helpers.write(tmp_path_factory.mktemp("inside") / "results.db", cores=2)


def test_a_store_of_trainings_alone_says_nothing(tmp_path):
    results = helpers.write(tmp_path / "r.db", computed=())
    assert not holds(results, "compute")
    assert holds(results, "collectives")
    assert text.lines(session_data(results)) == []


def test_a_store_whose_computing_failed_says_nothing(tmp_path):
    path = tmp_path / "r.db"
    fake.write(path, [fake.launch(helpers.case(), **fake.OOM)], plan={"kind": "compute", "cases": []})
    results = fake.write(path, [fake.launch(helpers.case())])
    assert holds(results, "compute")
    assert text.lines(session_data(results)) == []


def test_another_model_was_computed(tmp_path):
    results = helpers.write(tmp_path / "r.db", trained=[(helpers.case(model="gpt-small"), 0.1)])
    assert text.lines(session_data(results)) == []


# -- which numbers of ranks --------------------------------------------------------------------------------------


def test_links_between_nodes_let_nodes_fill(between):
    found = only(between)
    assert (found.most, found.per_node, found.next_sizes) == (2, 2, [4, 8, 16])
    assert [found.ranks_per_node(n) for n in (2, 3, 4, 16)] == [2, None, 2, 2]
    assert found.lacking() == ([], [])
    assert [each.case.nodes for each in map(found.fastest, found.next_sizes)] == [2, 4, 8]


def test_without_them_a_node_has_as_many_ranks_as_cores(tmp_path):
    found = only(helpers.write(tmp_path / "r.db", cores=8))
    assert [found.ranks_per_node(n) for n in (4, 8, 16)] == [4, 8, None]
    assert found.lacking() == ([16], ["between nodes"])
    assert [each and each.case.nodes for each in map(found.fastest, found.next_sizes)] == [1, 1, None]


def test_without_any_link_nothing_is_told(tmp_path):
    found = only(helpers.write(tmp_path / "r.db", link_nodes=(), cores=8))
    assert [found.fastest(n) for n in found.next_sizes] == [None, None, None]
    assert found.lacking() == ([4, 8, 16], ["within a node", "between nodes"])


def test_ranks_of_devices_are_as_many_as_these(tmp_path):
    cuda = [helpers.case(device="cuda")]
    results = helpers.write(
        tmp_path / "r.db", computed=cuda, trained=[(each, 0.03) for each in cuda], gpus=[{"name": "a GPU"}] * 4
    )
    found = only(results)
    assert found.room == 4
    assert [found.ranks_per_node(n) for n in (4, 8)] == [4, None]


# -- what is told of them ------------------------------------------------------------------------------------------


class Given:
    """Predicts what it is given, by strategy."""

    def __init__(self, **seconds):
        self.seconds = seconds

    def predict(self, case):
        step_s = self.seconds.get(case.strategy)
        return Prediction(case=case, refused="unknown") if step_s is None else Prediction(case=case, step_s=step_s)


def test_the_fastest_needs_the_least_time_for_a_sample(tmp_path):
    results = helpers.write(
        tmp_path / "r.db",
        computed=THREE_STRATEGIES,
        trained=[(each, 0.03) for each in THREE_STRATEGIES],
        link_nodes=(1, 2),
    )
    # Of 4 ranks a step of ddp has 16 samples, one of tensor parallel 8.
    found = replace(only(results), predictor=Given(ddp=0.03, tp=0.02, zero1=0.04))
    assert found.fastest(4).case.strategy == "ddp"
    found = replace(found, predictor=Given(ddp=0.03, tp=0.01))
    assert found.fastest(4).case.strategy == "tp"
    assert replace(found, predictor=Given()).fastest(4) is None


def test_strategies_that_trained_come_first_by_their_speed(tmp_path):
    trained = [(helpers.case("zero1"), 0.03), (helpers.case("tp"), 0.02)]
    found = only(helpers.write(tmp_path / "r.db", computed=THREE_STRATEGIES, trained=trained))
    assert found.strategies == ["tp", "zero1", "ddp"]
    assert found.pattern("ddp") is None


def test_a_curve_goes_on_from_the_fastest_training(tmp_path):
    trained = [(helpers.case(), 0.030), (helpers.case(algorithm="ring", bucket_mib=1.0), 0.026)]
    found = only(helpers.write(tmp_path / "r.db", trained=trained, link_nodes=(1, 2), cores=2))
    curve = found.curve("ddp")
    assert [each.case.world_size for each in curve] == [2, 4, 8, 16, 32, MOST_RANKS]
    assert {(each.case.algorithm, each.case.bucket_mib) for each in curve} == {("ring", 1.0)}
    assert [each.measured_s is not None for each in curve] == [True] + 5 * [False]
    assert curve[0].measured_s == pytest.approx(0.026, rel=0.02)
    assert all(each.low_s < each.step_s < each.high_s for each in curve)
    # Nothing within a rank changes, so more ranks are never faster.
    assert [each.step_s for each in curve] == sorted(each.step_s for each in curve)


def test_a_curve_ends_where_links_do(inside):
    assert [each.case.world_size for each in only(inside).curve("ddp")] == [2]


def test_a_curve_fills_nodes_of_any_size(tmp_path):
    of_six = [helpers.case(world_size=6)]
    results = helpers.write(tmp_path / "r.db", computed=of_six, trained=[(of_six[0], 0.03)], link_nodes=(1, 2))
    found = only(results)
    assert [(each.case.world_size, each.case.nodes) for each in found.curve("ddp")] == [
        (6, 1), (12, 2), (24, 4), (48, 8),
    ]  # fmt: skip


def test_what_makes_no_case_is_left_out(tmp_path):
    """Ranks that share layers by fours are no two."""
    fours = helpers.case("tp_ddp", world_size=4, tp_size=4)
    results = helpers.write(tmp_path / "r.db", computed=[helpers.case(), fours], link_nodes=(1, 2), cores=2)
    found = only(results)
    assert 2 not in [each.case.world_size for each in found.curve("tp_ddp")]
    assert replace(found, predictor=Given(ddp=0.03)).fastest(4).case.strategy == "ddp"
    assert replace(found, predictor=Given(ddp=0.03)).fastest(2).case.strategy == "ddp"


def test_several_models_have_an_outlook_each(tmp_path):
    both = [helpers.case(), helpers.case(model="gpt-small")]
    results = helpers.write(tmp_path / "r.db", computed=both, trained=[(each, 0.03) for each in both], cores=2)
    found = outlooks(session_data(results))
    assert [each.heading for each in found] == ["gpt-nano", "gpt-small"]
    assert {each.case.model for each in found[1].asked.computed} == {"gpt-small"}
    assert [line.partition(":")[0] for line in text.lines(session_data(results))] == ["gpt-nano", "gpt-small"]


def test_of_several_batches_the_one_that_trained_counts(tmp_path):
    larger = helpers.case(global_batch=16)
    found = only(helpers.write(tmp_path / "r.db", computed=[helpers.case(), larger], trained=[(larger, 0.05)]))
    assert [each.case.global_batch for each in found.asked.computed] == [16]
    assert found.fastest(4).case.global_batch == 32


# -- in words ------------------------------------------------------------------------------------------------------


def test_the_sentences(between):
    measured, *more = text.lines(session_data(between))
    assert measured == "Measured up to 2 ranks."
    best = only(between).fastest(4)
    low, high = (f"{seconds * 1e3:.1f}" for seconds in (best.low_s, best.high_s))
    assert more[0] == (
        f"At 4 ranks on 2 nodes ddp ring {best.case.bucket_mib:g} MiB is expected to be the fastest: "
        f"{best.step_s * 1e3:.1f} ms per step (90 %: {low} to {high})."
    )
    assert len(more) == 3


def test_what_to_give(inside):
    said = f"For more ranks: parabench predict {inside.path} --world-size 4,8,16 --link node=25GB/s,20us"
    assert text.lines(session_data(inside)) == [said]


def best(path, *words):
    """The lines of `parabench best`, and its answers as JSON, checked against their schema."""
    json_file = path.with_name("best.json")
    told = CliRunner().invoke(main, ["best", str(path), "--json", str(json_file), *words])
    assert told.exit_code == 0, told.output
    answers = json.loads(json_file.read_text())
    jsonschema.validate(answers, SCHEMA, jsonschema.Draft202012Validator)
    return told.stdout, answers


def test_best_says_it_and_its_json_has_it_beside_the_answer(inside, between):
    said, [answer] = best(inside.path)
    assert "\nFor more ranks: parabench predict " in said
    assert "predict" not in answer["sentence"]
    more = answer["more_ranks"]
    assert (more["measured_ranks"], more["fastest"]) == (2, [])
    assert f"\nFor more ranks: {more['command']}\n" in said
    said, [answer] = best(between.path)
    more = answer["more_ranks"]
    assert [each["case"]["world_size"] for each in more["fastest"]] == [4, 8, 16]
    assert more["command"] is None
    first, expected = more["fastest"][0], only(between).fastest(4)
    assert (first["label"], first["step_time_s"]) == (expected.case.label, expected.step_s)
    assert first["low_s"] < first["step_time_s"] < first["high_s"]
    said, [answer] = best(between.path, "--objective", "memory")
    assert "predict" not in said
    assert "more_ranks" not in answer


def test_each_model_has_its_own_in_the_json(tmp_path):
    both = [helpers.case(), helpers.case(model="gpt-small")]
    trained = [(case, 0.03) for case in both]
    results = helpers.write(tmp_path / "r.db", computed=both[:1], trained=trained, link_nodes=(1, 2))
    _, answers = best(results.path)
    assert {answer["work"]["model"]: "more_ranks" in answer for answer in answers} == {
        both[0].model: True, "gpt-small": False,
    }  # fmt: skip


def test_a_store_of_trainings_alone_has_none_in_its_json(tmp_path):
    results = helpers.write(tmp_path / "r.db", computed=())
    assert all("more_ranks" not in answer for answer in best(results.path)[1])


def test_what_it_says_to_give_is_enough(inside):
    [said] = text.lines(session_data(inside))
    words = said.partition(": parabench ")[2].split()
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 0, told.output
    assert "ddp native, 16 ranks on 8 nodes" in told.output
