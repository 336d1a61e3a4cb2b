"""The example models compute the same under each strategy as on one device."""

from pathlib import Path
from typing import Any

import pytest

from parabench.machine.machine import Machine
from parabench.plan.case import Case
from parabench.plan.plan import make_plan
from parabench.plan.protocol import Protocol
from parabench.plan.suite import Suite, sweep
from paths import ROOT
from verified_helpers import verified

FOLDER = ROOT / "examples" / "models"
MOST_LINES = 40

# The examples compute the same for every split of their batch, except BatchNorm's statistics.
EXAMPLES: dict[str, dict[str, Any]] = {
    "encoder_decoder": {},
    "batch_norm": {},
    "own_optimizer": {},
    "iterable_data": {"data": "iterable_data:Texts"},
}
# The zoo has models like these with other strategies.
STRATEGIES = ("ddp", "fsdp")


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Case]]:
    """Plan the cases of each example, as a session does."""
    machine = Machine(cores=2, gpus_reason="a test has none")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        return {
            name: [*planned(machine, f"{name}:factory", {"strategy": STRATEGIES, **axes})]
            for name, axes in EXAMPLES.items()
        }


def planned(machine: Any, model: str, axes: dict[str, Any]) -> tuple[Case, ...]:
    suite = Suite(
        name="s", path=Path(), question="q", sweeps=(sweep(model=model, world_size=2, **axes),), protocol=Protocol()
    )
    plan = make_plan(suite, {}, suite.protocol, machine, 0)
    assert not plan.skipped
    return plan.cases


@pytest.fixture(scope="module")
def ended(cases: dict[str, list[Case]], tmp_path_factory: pytest.TempPathFactory) -> dict[Case, str]:
    every = [case for own in cases.values() for case in own]
    return dict(zip(every, verified(every, tmp_path_factory.mktemp("examples"), FOLDER), strict=True))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains_what_one_device_trains(
    name: str, cases: dict[str, list[Case]], ended: dict[Case, str]
) -> None:
    assert {case.strategy: ended[case] for case in cases[name]} == dict.fromkeys(STRATEGIES, "ok")
    assert {case.verification for case in cases[name]} == {"same_split" if name == "batch_norm" else "exact"}


def test_examples_are_short_and_all_are_run() -> None:
    files = {path.stem: len([*filter(str.strip, path.read_text().splitlines())]) for path in FOLDER.glob("*.py")}
    assert {name for name in files if name != "hf_llama"} == {*EXAMPLES, "validation_loop"}
    assert max(files.values()) < MOST_LINES
