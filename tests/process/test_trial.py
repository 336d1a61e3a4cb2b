"""One batch is tried before the first launch: each mistake is one line, and `parabench check` lists the results."""

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from command_line import parabench
from docs.site import schemas
from parabench import Model
from parabench.data import trial
from parabench.data.trial import needs_of_ddp, trial_of
from parabench.errors import UsageError
from parabench.models import EXACT, IGNORED_LABELS, RANDOM_DATA, SAME_SPLIT, SUSPECTS, remedies
from parabench.plan.case import Case
from parabench.plan.validate import check

UNUSED = "needs --set find_unused_parameters=on, see the warning"

MISTAKES = {
    "mistakes:all_frozen": "no parameter of module requires a gradient",
    "mistakes:no_gradient": "loss has no gradient; it must depend on the parameters of module",
    "mistakes:tuple_loss": "loss gives tuple; return a tensor with one real number, the mean over the samples",
    "mistakes:unreduced_loss": "loss gives a tensor of torch.float32, shape (2,); return a tensor with one real number",
    "mistakes:complex_loss": "loss gives a tensor of torch.complex64, shape (); return a tensor with one real number",
    "mistakes:wrong_head": "out of bounds.; fix Model.loss",
    "mistakes:wrong_width": "fails on a batch of shapes (2, 12), (2,): RuntimeError: mat1 and mat2 shapes cannot",
    "mistakes:replaces_a_parameter": "forward replaces parameter weight, and the optimizer",
    "mistakes:calls_a_method": "forward does not call the module that it receives, and DDP and FSDP act only",
    "mistakes:double_data": "the inputs are float64 and the weights are not; give float32",
    "mistakes:data_parallel": "module is a DataParallel, which would use the devices of other ranks; give the module",
    "zoo:sparse": "the gradient of 0.weight is sparse, which AdamW does not take; use sparse=False",
    "zoo:loss_with_weights": "loss has parameters, which the optimizer does not train; make it a part of module",
    "zoo:singleton": "returns a module that it returned before; make a new one in each call",
    "zoo:uses_dist": "cannot be built: ValueError: Default process group has not been initialized",
    "mistakes:optimizer_of_other_parameters": "its optimizer has a parameter that it did not receive; use the list",
    "own_helpers:nothing": "cannot be loaded: AttributeError",
    "own_helpers:broken": "cannot be built: OSError: no weights at all; fix that function",
    "own_helpers:no_model": "gives Linear; return a parabench.Model",
    "own_helpers:wrong_first": "first is '1', which is not a linear layer",
    "own_helpers:wrong_plan": "a plan has 'blocks.*.up', which is not part of module",
    "own_helpers:module_class": "module is the class Linear; it must be an nn.Module",
    "own_helpers:lazy": "module has a parameter without a shape; give lazy layers their sizes",
    "own_helpers:fewer_targets": "batch gives tuple with the tensors (64, 12) on cpu, (63,) on cpu, asked for 64",
    "own_helpers:dict_batch": "unexpected keyword argument 'inputs'",
}


def case(name: str, **axes: Any) -> Case:
    fields = {"strategy": "ddp", "world_size": 2, "data": "synthetic", "device": "cpu", "backend": "gloo", "seq_len": 1}
    return Case(model=name, **{**fields, **axes})


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_one_line_before_any_launch(here: Path, name: str) -> None:
    axes = ["--set", "strategy=ddp", "--set", "world_size=2", "--set", "device=cpu"]
    done = parabench("run", "strategies", "--model", name, *axes, "--out", "out")
    assert done.exit_code == 2
    (line,) = done.output.splitlines()
    assert line.startswith(f"parabench: model {name!r}")
    assert MISTAKES[name] in line
    assert [*here.iterdir()] == []


def test_missing_transformers_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match="needs transformers: pip install transformers"):
        Model.from_transformers(None)


# -- reasons why correct training runs differ


@pytest.mark.parametrize(
    ("name", "suspect"),
    [("zoo:dropout", "dropout"), ("zoo:batch_norm", "batch_norm"), ("zoo:ignoring", IGNORED_LABELS)],
)
def test_suspects_are_found_in_model_and_batch(name: str, suspect: str) -> None:
    assert trial_of(case(name)).suspects == (suspect,)
    found = parabench("check", "--model", name)
    assert f"warning    {SUSPECTS[suspect]}" in found.stdout.splitlines()


def test_items_drawn_at_random_are_found() -> None:
    noisy = case("zoo:unused", data="zoo:augmented")
    assert RANDOM_DATA in trial_of(noisy).suspects
    assert trial_of(case("zoo:unused", data="zoo:table")).suspects == ()


def test_trial_names_buffers_that_forward_changes_and_reads() -> None:
    tried = trial_of(case("zoo:centered"))
    assert tried.suspects == ("buffer:1.mean",)
    (line,) = remedies(tried.suspects, EXACT).values()
    assert line.endswith("use --set verification=same_split with ddp or zero1")
    (line,) = remedies(tried.suspects, SAME_SPLIT).values()
    assert line.endswith("only DDP sends rank 0's to all ranks; use ddp or zero1")


def test_trial_names_parameters_the_optimizer_leaves_out() -> None:
    assert trial_of(case("mistakes:with_partial_optimizer")).left_out == ("0.bias", "2.weight", "2.bias")
    found = parabench("check", "--model", "mistakes:with_partial_optimizer")
    left = "the optimizer leaves out 0.bias, 2.weight, 2.bias (3 of the trainable parameters); they are not trained"
    assert f"warning    {left}" in found.stdout.splitlines()
    assert found.exit_code == 0


@pytest.mark.parametrize(
    ("words", "level"),
    [([], "same_split"), (["exact"], "exact"), (["first_loss"], "first_loss"), (["auto"], "same_split")],
)
def test_a_given_level_overrides_the_models(words: list[str], level: str) -> None:
    axes = [f"verification={word}" for word in words]
    told = parabench("check", "--model", "zoo:batch_norm_same_split", *[w for a in axes for w in ("--set", a)])
    assert f"verified   at level {level}" in told.stdout.splitlines()


def test_unused_parameters_name_the_axis() -> None:
    tried = trial_of(case("zoo:unused"))
    assert tried.unused == ("unused.weight", "unused.bias")
    found = parabench("check", "--model", "zoo:unused", "--set", "strategy=ddp,fsdp")
    assert found.exit_code == 0
    *_, ddp, fsdp = found.stdout.splitlines()
    assert ddp == "ddp       needs --set find_unused_parameters=on, see the warning"
    assert fsdp == "fsdp      nothing missing"
    handled = ["--set", "strategy=ddp", "--set", "find_unused_parameters=on"]
    found = parabench("check", "--model", "zoo:unused", *handled)
    assert found.stdout.endswith("ddp       nothing missing\n")


@pytest.mark.parametrize(
    ("name", "field", "lacks"),
    [
        ("zoo:unused", "unused", [UNUSED, None, None]),
        ("zoo:unread_output", "unread", [UNUSED, None, "needs --set find_unused_parameters=on, and static_graph off"]),
        ("zoo:unread_field", "hidden", ["needs a dict or a tuple as output, see the warning"] * 3),
    ],
)
def test_trial_tells_when_ddp_finds_unused_parameters(name: str, field: str, lacks: list[str | None]) -> None:
    tried = trial_of(case(name))
    found = {key: getattr(tried, key) for key in ("unused", "unread", "hidden") if getattr(tried, key)}
    layer = "unused" if field == "unused" else "second"
    assert found == {field: (f"{layer}.weight", f"{layer}.bias")}
    options = ((False, False), (True, False), (False, True))
    assert [needs_of_ddp(tried, "ddp", find_unused=each, static=static) for each, static in options] == lacks
    assert needs_of_ddp(tried, "fsdp", find_unused=False, static=False) is None


def test_model_that_is_too_large_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "OPERATIONS_PER_CORE", 1.0)
    trial._tried.cache_clear()
    axes = ["--set", "strategy=ddp", "--set", "world_size=2", "--set", "device=cpu", "--dry-run"]
    told = parabench("run", "strategies", "--model", "own_helpers:model", *axes).stdout
    trial._tried.cache_clear()
    why = "is not tried before the first launch: a batch of its 4.1e-07G parameters would take too long"
    assert f"note: model own_helpers:model {why}" in told


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("mistakes.py:model", "write mistakes:model"),
        ("no_such_module:model", "run parabench in the folder of that module, or add the folder to PYTHONPATH"),
        ("imports_missing:model", "imports_missing imports no_such_package; install it"),
    ],
)
def test_model_that_is_not_found_has_a_remedy(
    name: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imports_missing.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=f"cannot be loaded: ModuleNotFoundError: .*; {remedy}"):
        check(case("model").replace(model=name))


def test_json_of_check_fits_its_schema() -> None:
    schema = schemas.schema("check")
    told = parabench("check", "--model", "zoo:unused", "--json", "-").stdout
    jsonschema.validate(json.loads(told), schema)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no model is given; give --model package.module:name"),
        (
            ["--model", "toy", "--set", "world_size=2,4"],
            "--set world_size has 2 values, and check takes one; leave one",
        ),
        (["--model", "toy", "--set", "strategy=dpp"], "strategy 'dpp' is unknown; did you mean"),
    ],
)
def test_check_refuses_what_it_cannot_do(words: list[str], message: str) -> None:
    done = parabench("check", *words)
    assert done.exit_code == 2
    assert message in done.stderr


# -- blocks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["zoo:by_keyword", "zoo:tuple_blocks"])
def test_blocks_that_are_not_the_module_skip_pipelines_alone(name: str) -> None:
    found = parabench("check", "--model", name, "--json", "-")
    assert found.exit_code == 0
    rows = json.loads(found.stdout)["tables"]["strategies"]
    strategies = {row["strategy"]: row["missing"] for row in rows}
    for pipeline in ("pp", "layer_split"):
        assert strategies[pipeline].startswith("head(blocks(stem(x))) is not module(x)")
    assert [strategies[each] for each in ("ddp", "fsdp", "zero2")] == [None] * 3
