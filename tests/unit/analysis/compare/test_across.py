"""Two machines: which cases are the same work, ratios with a known truth, and what is said and written of them."""

from __future__ import annotations

import json
import re

import jsonschema
import numpy as np
import pytest
from markupsafe import Markup

import fake_results as fake
from command_line import parabench
from fake_results import OOM
from parabench.analysis.compare.across import across, machines
from parabench.analysis.compare.overall import overall
from parabench.analysis.compare.sides import side_of
from parabench.analysis.stats.geometric import Logs, geometric_mean
from parabench.analysis.text import across as across_text
from parabench.errors import UsageError
from parabench.report.views import comparison, markdown
from parabench.store.record import MIB, DeviceSample
from schema_helpers import EVIL, SCHEMA, check

BUCKETS = (1.0, 4.0, 25.0)
CPU = [fake.case(bucket_mib=b) for b in BUCKETS]
CUDA = [fake.case(bucket_mib=b, device="cuda", backend="nccl") for b in BUCKETS]


def on(name, count, **more):
    return fake.ENVIRONMENT | {"gpus": [{"name": name, "memory_bytes": 80 * 2**30}] * count} | more


def side(tmp_path, role, launches, **more):
    return side_of(fake.write(tmp_path / f"{role}.db", launches, label=role, **more), role=role)


def burning(launch, watts, metric="energy_j"):
    """The launch, whose devices spend `watts` from a second before its measured steps to a second after."""
    launch.facts |= {"clock": {"began_s": 100.0}, "phases": {"measure": [101.0, 103.0]}}
    for device in range(launch.case.world_size):
        launch.device_samples += [
            DeviceSample(device, t, metric, watts * t if metric == "energy_j" else watts)
            for t in np.arange(0.0, 4.1, 0.1)
        ]
    return launch


@pytest.fixture(scope="module")
def gpu_sides(tmp_path_factory):
    """0.4 times the step; three quarters of the power; the same peak."""
    folder = tmp_path_factory.mktemp("gpus")
    old = [burning(each, 400.0) for each in fake.sweep(CUDA, lambda c: 0.05, noise=0.01, blocks=4, seed=1)]
    new = [burning(each, 300.0) for each in fake.sweep(CUDA, lambda c: 0.02, noise=0.01, blocks=4, seed=2)]
    other = {"versions": {"torch": "2.14.0"}, "host": EVIL}
    return machines(
        side(folder, "base", old, environment=on("A100", 8)),
        side(folder, "candidate", new, environment=on("H200", 2, **other), argv=["parabench", EVIL]),
    )


@pytest.fixture(scope="module")
def gpus(gpu_sides):
    return across(gpu_sides)


@pytest.fixture(scope="module")
def mixed_sides(tmp_path_factory):
    """CUDA against a CPU, with cases on one side alone, one that failed, and one with a single launch."""
    folder = tmp_path_factory.mktemp("mixed")
    alone, failed, once = (
        fake.case(strategy=name, device="cuda", backend="nccl") for name in ("fsdp", "zero1", "zero2")
    )
    old = [*fake.sweep(CUDA, lambda c: 0.05, noise=0.01), fake.launch(alone), fake.launch(failed), fake.launch(once)]
    new = fake.sweep(CPU, lambda c: 0.5, noise=0.01, seed=1)
    new += [fake.launch(fake.case(strategy="zero1"), **OOM), fake.launch(fake.case(strategy="zero2"), 0.4)]
    new += [fake.launch(fake.case(strategy="tp"))]
    return machines(
        side(folder, "base", old, environment=on("A100", 8)),
        side(folder, "candidate", new, skipped=[(fake.case(strategy="fsdp"), f"too small {EVIL}")], finished=False),
    )


@pytest.fixture(scope="module")
def mixed(mixed_sides):
    return across(mixed_sides)


def test_ratios_of_a_known_truth(gpus):
    assert gpus.step_time.ratio == pytest.approx(0.4, rel=0.01)
    assert gpus.step_time.low < 0.4 < gpus.step_time.high
    assert (gpus.step_time.cases, gpus.step_time.base_blocks, gpus.step_time.candidate_blocks) == (3, 4, 4)
    # Devices burn for two seconds of 20 steps, whatever those took: 8 x 64 tokens a step.
    for case in gpus.cases:
        assert case.per_joule.base == pytest.approx(20 * 8 * 64 / (400 * 2 * 2))
        assert case.per_joule.ratio == pytest.approx(4 / 3)
        assert case.per_gb.candidate == pytest.approx(8 * 64 / case.step_time.candidate / (101 * MIB / 1e9))
        assert case.per_gb.ratio == pytest.approx(1 / case.step_time.ratio)
        assert case.step_time.low < case.step_time.ratio < case.step_time.high
        assert len(case.step_time.base_launches) == len(case.step_time.candidate_launches) == 4
    assert gpus.per_joule.ratio == pytest.approx(4 / 3)
    assert gpus.per_gb.ratio == pytest.approx(1 / gpus.step_time.ratio)


def test_it_is_said_like_a_person(gpus):
    assert re.match(
        r"On candidate \(2 x H200\) a step takes 0.40 times as long as on base \(8 x A100\), geometric mean of 3 "
        r"cases \(95 %: 0.39\d to 0.40\d\). Tokens per joule: 1.33 times \(95 %: .*\). Tokens/s per GB of peak "
        r"memory: 2.5\d times \(95 %: 2.\d+ to 2.\d+\).$",
        across_text.sentence(gpus),
    )


def test_what_is_unknown_has_its_reason(mixed):
    cases = {case.label: case for case in mixed.cases}
    failed, once = cases["zero1 native, 2 ranks"], cases["zero2 native, 2 ranks"]
    assert failed.step_time.ratio is None
    assert failed.step_time.reason == "on candidate, its launches ended oom"
    assert once.step_time.ratio == pytest.approx(10)
    assert (once.step_time.low, once.step_time.reason) == (
        None, "an interval needs 2 launches per side; there are 1 and 1"
    )  # fmt: skip
    assert mixed.step_time.cases == 3
    assert mixed.per_joule.ratio is None
    assert "on base, no energy of its devices was recorded and on candidate, it ran on CPU cores" in (
        mixed.per_joule.reason
    )
    alone = {(each.side, each.label): each.reason for each in mixed.alone}
    assert alone["base", "fsdp native, 2 ranks"].startswith("skipped in candidate: too small")
    assert alone["candidate", "tp native, 2 ranks"] == "not measured in base"
    text = across_text.sentence(mixed)
    assert "Tokens per joule: unknown: on base, no energy" in text
    assert text.endswith("Left out: 1 only in base, 1 only in candidate, 1 that failed on a side.")


def test_doubts(gpus, mixed):
    assert [each.code for each in gpus.findings] == ["one_machine", "software"]
    assert [each.code for each in mixed.findings] == ["one_machine", "statistic", "memory", "unfinished"]
    assert "the median of its steps on base and the 10th percentile on candidate" in mixed.findings[1].message


def test_nothing_in_common_and_one_session_twice_are_refused(tmp_path):
    old, new = (side(tmp_path, name, [fake.launch(case)]) for name, case in (("a", CPU[0]), ("b", CPU[1])))
    with pytest.raises(UsageError, match=r"no case of a of .* has the same workload as one of b of "):
        machines(old, new)
    with pytest.raises(UsageError, match=r"both sides are a of "):
        machines(old, old)


def logs(random, cases, blocks, shared):
    """One side: what a block's launches share, and noise of each launch."""
    common = random.normal(0, shared, blocks)
    return [Logs(np.arange(blocks), common + random.normal(0, 0.01, blocks)) for _ in range(cases)]


def test_the_means_interval_takes_blocks_for_its_unit():
    """Blocks that share their drift: launches as the unit would cover the truth half the time."""
    random = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        pairs = list(zip(logs(random, 8, 5, 0.05), logs(random, 8, 5, 0.05), strict=True))
        found = geometric_mean(pairs, "")
        covered += found.low < 1 < found.high
    assert 0.9 <= covered / 200 <= 0.99


def test_with_every_launch_there_it_is_welchs_test_of_block_means():
    from scipy import stats

    random = np.random.default_rng(1)
    sides = logs(random, 3, 4, 0.05), logs(random, 3, 6, 0.02)
    found = geometric_mean(list(zip(*sides, strict=True)), "")
    means = [np.mean([case.value for case in side], axis=0) for side in sides]
    expected = stats.ttest_ind(means[1], means[0], equal_var=False).confidence_interval()
    assert np.log([found.low, found.high]) == pytest.approx([expected.low, expected.high])


@pytest.mark.parametrize("which", ["gpus", "mixed"])
def test_json_is_what_the_schema_says(request, which):
    written = check(request.getfixturevalue(which))
    assert written["kind"] == "across hardware"
    for place in (written, written["cases"][0], written["cases"][0]["step_time"], written["step_time"]):
        place["new"] = 1
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(SCHEMA).validate(written)
        del place["new"]


@pytest.mark.parametrize("which", ["gpu_sides", "mixed_sides"])
def test_markdown_and_page_hold_every_case_and_no_script(request, which):
    sides = request.getfixturevalue(which)
    found = across(sides)
    written, page = markdown.render(found), comparison.render(sides)
    assert "<script" not in written
    assert "<script>alert" not in page
    for label in [case.label for case in found.cases] + [each.label for each in found.alone]:
        assert label in page
        assert label in written
    tables = re.sub(r"(`{3,})\n.*?\n\1\n", "", written, flags=re.DOTALL)
    for block in re.findall(r"(?:^\|.*\|\n)+", tables, flags=re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1, block


def test_the_page_leads_with_the_mean_of_all_common_cases_whatever_their_work(tmp_path):
    """Also of what trains nothing in common (`local_only`), and of another batch."""
    cases = [fake.case(), fake.case(strategy="local_only"), fake.case(global_batch=16)]
    old = fake.sweep(cases, lambda c: 0.05, noise=0.01)
    new = fake.sweep(cases, lambda c: 0.05 if c.strategy == "local_only" else 0.02, noise=0.01, seed=1)
    sides = machines(side(tmp_path, "old", old), side(tmp_path, "new", new))
    found = across(sides)
    assert found.step_time.ratio == pytest.approx(0.4 ** (2 / 3), rel=0.02)
    assert len(overall(sides)) == 2
    page = comparison.render(sides)
    assert page.count('<p class="verdict">') == 1
    assert str(Markup.escape(across_text.sentence(found))) in page


def test_machines_have_no_pass_and_no_fail(tmp_path):
    stores = tmp_path / "a.db", tmp_path / "b.db"
    fake.write(stores[0], fake.sweep(CPU, lambda c: 0.04, noise=0.001))
    fewer = fake.ENVIRONMENT | {"cores": 4}
    fake.write(stores[1], fake.sweep(CPU, lambda c: 0.08, noise=0.001), environment=fewer)
    refused = parabench("compare", *stores)
    assert refused.exit_code == 2
    assert "--across-hardware" in refused.stderr
    files = "--json", "-", "--markdown", tmp_path / "c.md", "--html", tmp_path / "c.html"
    result = parabench("compare", *stores, "--across-hardware", *files)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["step_time"]["ratio"] == pytest.approx(2, rel=0.01)
    assert (tmp_path / "c.md").read_text().startswith("## 4 cores of Some CPU against 8 cores of Some CPU")
    assert (tmp_path / "c.html").read_text().startswith("<!doctype html>")
