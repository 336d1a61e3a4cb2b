"""Custom models: detected features, errors for missing parts, and the examples."""

import re
import shutil
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import verified_helpers
from parabench.cli import main
from parabench.data.datasets import dataset_of
from parabench.errors import UsageError
from parabench.machine.machine import Machine
from parabench.models import BLOCKS, FIRST, MODELS, TENSOR
from parabench.models.factory import build_model
from parabench.plan.case import Case
from parabench.plan.plan import make_plan
from parabench.plan.protocol import Protocol
from parabench.plan.suite import Suite, sweep
from parabench.plan.validate import entry_of_model
from parabench.strategies import STRATEGIES
from paths import DOCS, ROOT
from process_helpers import query

EXAMPLE = ROOT / "examples" / "own_model.py"


def plan(machine: Any, **axes: Any) -> Any:
    suite = Suite(name="s", path=Path(), question="q", sweeps=(sweep(**axes),), protocol=Protocol())
    return make_plan(suite, {}, suite.protocol, machine, 0)


# -- the example ----------------------------------------------------------------------------------------------------


def test_the_example_is_benchmarked_under_ddp_and_fsdp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(EXAMPLE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])  # the command adds the folder it is called in
    command = ["run", "strategies", "--model", "own_model:factory", "--out", "out"]
    axes = ["--set", "strategy=ddp,fsdp", "--set", "world_size=2", "--set", "device=cpu"]
    steps = ["--launches", "1", "--warmup", "2", "--steps", "3"]
    done = CliRunner().invoke(main, [*command, *axes, *steps])
    assert done.exit_code == 0, done.output
    launches = query(Path("out/results.db"), "SELECT strategy, status FROM launch ORDER BY strategy")
    # Status ok includes the verification: a launch that differs from the reference is `wrong`, and an unverified one
    # has a warning.
    assert launches == [("ddp", "ok"), ("fsdp", "ok"), ("single", "ok")]
    assert query(Path("out/results.db"), "SELECT code FROM finding WHERE code = 'unverified'") == []


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (DOCS / "how-to/own-model.md").read_text()
    glue = EXAMPLE.read_text().partition("# --- for parabench ---\n")[2]
    assert glue in re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_docs_have_the_size_of_every_model() -> None:
    page = (DOCS / "reference/models.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)` \| [^|]* \| ([\d,]+) \|", page, re.MULTILINE))
    assert rows == {name: f"{entry.parameters:,}" for name, entry in MODELS.items()}


# -- features


def test_building_a_model_shows_its_features() -> None:
    entry = entry_of_model(Case(model="own_helpers:rich"))
    assert entry.brings == {BLOCKS, TENSOR, FIRST}
    assert (entry.blocks, entry.widths, entry.features) == (4, (24,), 12)
    assert entry.parameters == 12 * 16 + 16 + 16 * 24 + 24 + 24 * 4 + 4
    assert (entry.vocabulary, entry.sequences, entry.synthetic, entry.images) == (None, False, True, True)
    assert not entry_of_model(Case(model="own_helpers:bare")).synthetic
    assert not entry_of_model(Case(model="own_helpers:bare")).brings


def test_a_model_of_sequences_takes_the_case(machine: Any) -> None:
    entry = entry_of_model(Case(model="own_helpers:sequential"))
    assert (entry.takes_case, entry.sequences, entry.vocabulary, entry.context) == (True, True, 512, 128)
    (case,) = plan(machine, strategy="single", model="own_helpers:sequential", seq_len=16).cases
    assert (case.seq_len, case.data) == (16, "text")
    with pytest.raises(UsageError, match="seq_len 256 is longer than the context"):
        plan(machine, strategy="single", model="own_helpers:sequential", seq_len=256)
    # A model without sequences ignores seq_len: every value gives the same case.
    assert len(plan(machine, strategy="single", model="own_helpers:model", seq_len=(16, 32)).cases) == 1


def test_features_may_depend_on_the_case(machine: Any) -> None:
    lengths = (16, 1024)
    made = plan(machine, strategy="single", model="own_helpers:as_long", seq_len=lengths)
    assert [(case.seq_len, case.data) for case in made.cases] == [(n, "text") for n in lengths]
    # Two blocks are enough for two stages, and one is not.
    (case,) = plan(machine, strategy="pp", world_size=2, model="own_helpers:as_deep", seq_len=16).cases
    assert entry_of_model(case).blocks == 2
    with pytest.raises(UsageError, match="own_helpers:as_deep has 1 blocks"):
        plan(machine, strategy="pp", world_size=2, model="own_helpers:as_deep", seq_len=8)


def test_entry_points_name_models_and_data_of_packages(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"parabench.model": ("theirs", "own_helpers:rich"), "parabench.data": ("rows", "own_helpers:rows")}

    def entry_points(group: str, name: str) -> list[EntryPoint]:
        known, value = installed.get(group, ("", ""))
        return [EntryPoint(name, value, group)] if name == known else []

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    assert entry_of_model(Case(model="theirs")).blocks == 4
    (case,) = plan(machine, strategy="tp", world_size=2, model="theirs", data="rows").cases
    assert len(dataset_of(case, build_model(case))) == 40
    with pytest.raises(UsageError, match="data 'row' is unknown"):
        plan(machine, strategy="tp", world_size=2, model="theirs", data="row")


# -- missing parts


@pytest.mark.parametrize("strategy", [name for name, entry in STRATEGIES.items() if entry.needs])
def test_skipped_strategy_names_the_missing_part(machine: Any, strategy: str) -> None:
    made = plan(machine, strategy=("ddp", strategy), world_size=2, model="own_helpers:model")
    assert [case.strategy for case in made.cases] == ["ddp"]
    ((skipped,),) = [made.skipped]
    (need,) = STRATEGIES[strategy].needs
    assert f"model own_helpers:model has no {need} for {strategy}; give Model.{need}" in skipped.reason


def test_pipeline_refuses_blocks_that_are_not_the_whole_module(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    for model in ("own_model:factory", "own_helpers:blocks_alone"):
        made = plan(machine, strategy=("pp", "layer_split", "fsdp", "ddp"), world_size=2, model=model)
        assert [case.strategy for case in made.cases] == ["fsdp", "ddp"]
        assert [skipped.reason for skipped in made.skipped] == [
            f"model {model} has blocks without inside.weight for {strategy}; "
            "give Model.blocks (and stem and head, where the blocks are not the whole module)"
            for strategy in ("pp", "layer_split")
        ]
    assert len(plan(machine, strategy="pp", world_size=2, model="own_helpers:blocks_and_ends").cases) == 1


def test_a_width_that_does_not_divide_is_refused(machine: Any) -> None:
    with pytest.raises(UsageError, match="does not divide a layer's width of 24 in own_helpers:rich for tp"):
        plan(type(machine)(cores=16), strategy="tp", world_size=16, model="own_helpers:rich", global_batch=16)


# -- the example models

MODELS_FOLDER = ROOT / "examples" / "models"

# The examples compute the same for every split of their batch, except BatchNorm's statistics.
EXAMPLES: dict[str, dict[str, Any]] = {
    "encoder_decoder": {},
    "batch_norm": {},
    "own_optimizer": {},
    "iterable_data": {"data": "iterable_data:Texts"},
}
# The zoo has models like these with other strategies.
TRIED = ("ddp", "fsdp")


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Case]]:
    """Plan the cases of each example, as a session does."""
    machine = Machine(cores=2, gpus_reason="a test has none")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(MODELS_FOLDER)
        plans = {
            name: plan(machine, model=f"{name}:factory", strategy=TRIED, world_size=2, **axes)
            for name, axes in EXAMPLES.items()
        }
    assert not any(each.skipped for each in plans.values())
    return {name: [*each.cases] for name, each in plans.items()}


@pytest.fixture(scope="module")
def ended(cases: dict[str, list[Case]], tmp_path_factory: pytest.TempPathFactory) -> dict[Case, str]:
    every = [case for own in cases.values() for case in own]
    return dict(
        zip(every, verified_helpers.verified(every, tmp_path_factory.mktemp("examples"), MODELS_FOLDER), strict=True)
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains_what_one_device_trains(
    name: str, cases: dict[str, list[Case]], ended: dict[Case, str]
) -> None:
    assert {case.strategy: ended[case] for case in cases[name]} == dict.fromkeys(TRIED, "ok")
    assert {case.verification for case in cases[name]} == {"same_split" if name == "batch_norm" else "exact"}


def test_all_examples_are_run() -> None:
    files = {path.stem for path in MODELS_FOLDER.glob("*.py")}
    assert files - {"hf_llama"} == {*EXAMPLES, "validation_loop"}
