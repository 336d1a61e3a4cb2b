"""Data: what is read, that every split reads each sample once, and the errors for unusable data."""

import base64
import gzip
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import default_collate

import own_helpers
from parabench.data import files
from parabench.data.datasets import MNIST_MEAN, MNIST_STD, BatchDataset, dataset_of, sequences
from parabench.data.loader import Loading, contiguous, shuffled
from parabench.errors import UsageError
from parabench.models.factory import build_model
from parabench.plan.case import Case
from parabench.plan.plan import make_plan
from parabench.plan.protocol import Protocol
from parabench.plan.suite import Suite, sweep
from real_launches import reference, verified

CPU = torch.device("cpu")


def plan(machine: Any, **axes: Any) -> tuple[Case, ...]:
    suite = Suite(name="s", path=Path(), question="q", sweeps=(sweep(**axes),), protocol=Protocol())
    return make_plan(suite, {}, suite.protocol, machine, 0).cases


def refused(machine: Any, **axes: Any) -> str:
    """Return the error of a plan that is refused."""
    with pytest.raises(UsageError) as error:
        plan(machine, **axes)
    assert "\n" not in str(error.value)
    return str(error.value)


# -- splits ---------------------------------------------------------------------------------------------------------


SAMPLERS = {
    "batch": lambda count, rank, ranks, epoch: contiguous(count, 12, rank, ranks),
    "sample": lambda count, rank, ranks, epoch: shuffled(count, 12, rank, ranks, 3, epoch),
}


def dealt(split: str, count: int, ranks: int, epoch: int) -> list[list[list[int]]]:
    """Return the indices by [step][rank]."""
    each = [SAMPLERS[split](count, rank, ranks, epoch) for rank in range(ranks)]
    return [list(step) for step in zip(*each, strict=True)]


@pytest.mark.parametrize("split", SAMPLERS)
@pytest.mark.parametrize("count", [60, 61, 71])
def test_global_batches_are_the_same_for_every_number_of_ranks(split: str, count: int) -> None:
    for epoch in (0, 1):
        one, *others = [dealt(split, count, ranks, epoch) for ranks in (1, 2, 3, 4)]
        batches = [set(itertools.chain(*step)) for step in one]
        assert [len(batch) for batch in batches] == [12] * 5
        assert len(set().union(*batches)) == 60  # each sample once
        for ranks, steps in enumerate(others, start=2):
            assert [set(itertools.chain(*step)) for step in steps] == batches
            assert {len(part) for step in steps for part in step} == {12 // ranks}


@pytest.mark.parametrize("split", ["batch", "sample"])
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_read_the_global_batch_whoever_loads_it(split: str, workers: int) -> None:
    """Five steps continue after an epoch of three."""
    case = Case(model="own_helpers:model", data="own_helpers:rows", split=split, workers=workers, global_batch=12)
    model = own_helpers.model()
    whole = Loading(case.replace(workers=0), model).batches(0, 1, CPU)
    halves = [Loading(case, model).batches(rank, 2, CPU) for rank in range(2)]
    for _ in range(5):
        inputs, targets = next(whole)
        parts = [next(half) for half in halves]
        mine = torch.cat([part[0][:, 0] for part in parts])
        if split == "sample":  # dealt like cards
            mine = torch.stack([part[0][:, 0] for part in parts], 1).flatten()
        assert torch.equal(mine, inputs[:, 0])
        assert sorted(torch.cat([part[1] for part in parts]).tolist()) == sorted(targets.tolist())


def test_a_rank_takes_its_columns_and_whole_targets() -> None:
    case = Case(model="mlp", data="synthetic", split="dimension")
    model = build_model(case)
    inputs, targets = next(Loading(case, model).batches(0, 1, CPU))
    for rank in range(2):
        some, theirs = next(Loading(case, model).batches(0, 1, CPU, columns=(rank, 2)))
        assert torch.equal(some, inputs[:, 128 * rank : 128 * (rank + 1)])
        assert torch.equal(theirs, targets)


def test_whole_batches_are_what_stacking_samples_makes() -> None:
    stream = torch.arange(100, dtype=torch.uint8)
    for dataset in (sequences(stream, 8), BatchDataset((torch.rand(12, 3), torch.arange(12)))):
        indices = [3, 0, 11]
        stacked = default_collate([dataset[i] for i in indices])
        for whole, expected in zip(dataset.__getitems__(indices), stacked, strict=True):
            assert torch.equal(whole, expected)
            assert whole.dtype == expected.dtype
            assert whole.is_contiguous()
    tokens = sequences(stream, 8)
    # The hundredth is the target of none: 12 x 8 inputs, each with the one after it.
    assert len(tokens) == 12
    assert tokens[11][0].tolist() == list(range(88, 96))
    assert tokens[11][1].tolist() == list(range(89, 97))


# -- DataLoader's workers, for real ---------------------------------------------------------------------------------


def test_workers_train_the_same_and_leave_with_their_ranks(machine: Any) -> None:
    """The model and the data are custom."""
    own = {"model": "own_helpers:model", "data": "own_helpers:rows", "split": "sample"}
    (case,) = plan(machine, strategy="ddp", world_size=2, workers=2, **own)
    protocol = Protocol(warmup=2, steps=2, instrumented=0)
    reference(case.reference(), protocol)  # starts the fork server
    before = set(psutil.Process().children(recursive=True))
    seen = verified(case, protocol)
    assert set(psutil.Process().children(recursive=True)) <= before
    waited = [sample.value for sample in seen.samples if sample.metric == "data_s"]
    assert len(waited) == 2 * 4
    assert all(value > 0 for value in waited)


# -- text as GPT-2's tokens -----------------------------------------------------------------------------------------

MERGES = (b"th", b"the", b" the", b"!!")
THE, END = 258, 256 + len(MERGES)


def vocabulary(folder: Path, tokens: list[bytes] | None = None) -> Path:
    path = folder / "tiny.tiktoken"
    tokens = [bytes([i]) for i in range(256)] + list(MERGES) if tokens is None else tokens
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache folder, and return it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "parabench"


def tokens_in(text: Path, words: str) -> int:
    return files.token_file(f"text:{text}", words).stat().st_size // files.TOKEN_BYTES


def test_text_becomes_tokens_by_the_merges_and_the_split(tmp_path: Path, kept: Path) -> None:
    text = tmp_path / "t.txt"
    # By hand: " the" is one token, but a space after a space goes with the word, and 'é' is two bytes without a merge.
    text.write_text("the the  the!!é<|endoftext|>th")
    expected = [257, THE, 32, THE, 259, 0xC3, 0xA9, END, 256]
    words = str(vocabulary(tmp_path))
    assert files.vocabulary_size(words) == END + 1
    assert files.encode(text, words).tolist() == expected
    assert tokens_in(text, words) == len(expected)
    dataset: Any = dataset_of(
        Case(model="own_helpers:sequential", data=f"text:{text}", vocabulary=words, seq_len=4), None
    )
    assert [part.tolist() for part in dataset.__getitems__([0, 1])] == [
        [expected[:4], expected[4:8]],
        [expected[1:5], expected[5:9]],
    ]


def test_a_text_is_encoded_once_and_again_when_it_changed(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, words = tmp_path / "t.txt", str(vocabulary(tmp_path))
    text.write_text("the the")
    calls = []
    encode = files.encode
    monkeypatch.setattr(files, "encode", lambda *args: calls.append(args) or encode(*args))
    assert [tokens_in(text, words) for _ in range(3)] == [2, 2, 2]
    assert len(calls) == 1
    text.write_text("the the the")
    assert tokens_in(text, words) == 3
    assert len(calls) == 2
    assert sorted(path.suffix for path in kept.iterdir()) == [".tokens", ".tokens"]


def test_bad_vocabularies_and_texts_are_refused(
    machine: Any, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = str(vocabulary(tmp_path))
    assert "has 261 tokens, model gpt-nano supports 256" in refused(machine, model="gpt-nano", vocabulary=words)
    assert "cannot be read: there is no such file" in refused(machine, model="gpt2", vocabulary="/no/such")
    synthetic = refused(machine, model="gpt2", data="synthetic", vocabulary=words)
    assert f"vocabulary {words!r} is for data text, and data is synthetic with model gpt2; drop it" in synthetic
    text = tmp_path / "t.txt"
    text.write_bytes(b"good \xff bad")
    assert "not UTF-8 text at byte 5" in refused(machine, model="gpt2", data=f"text:{text}", vocabulary=words)
    text.write_text(" the" * 512)
    long = refused(machine, model="gpt2", data=f"text:{text}", vocabulary=words)
    assert "holds 512 tokens, one batch needs 513" in long
    (tmp_path / "repeated").mkdir()
    twice = vocabulary(tmp_path / "repeated", [bytes([i]) for i in range(256)])
    twice.write_text(twice.read_text().replace(" 255\n", " 254\n"))
    assert "every rank from 0 on once" in refused(machine, model="gpt2", vocabulary=str(twice))
    monkeypatch.setenv("XDG_CACHE_HOME", str(text))
    assert "set XDG_CACHE_HOME" in refused(machine, model="gpt2", vocabulary=words)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install tiktoken" in refused(machine, model="gpt2", vocabulary=words)


# -- MNIST ----------------------------------------------------------------------------------------------------------


def idx_bytes(array: Any, kind: int = 8) -> bytes:
    head = bytes([0, 0, kind, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return head + array.astype(np.uint8).tobytes()


IMAGES = np.arange(20 * 28 * 28).reshape(20, 28, 28) % 256
LABELS = np.arange(20) % 10


def digits(folder: Path, images: bytes | None = None, labels: bytes | None = None, zipped: bool = False) -> str:
    folder.mkdir(exist_ok=True)
    for name, content in ((files.IMAGES, images or idx_bytes(IMAGES)), (files.LABELS, labels or idx_bytes(LABELS))):
        (folder / f"{name}.gz" if zipped else folder / name).write_bytes(gzip.compress(content) if zipped else content)
    return str(folder)


@pytest.mark.parametrize("zipped", [False, True])
def test_digits_are_read_and_normalised(machine: Any, tmp_path: Path, zipped: bool) -> None:
    folder = digits(tmp_path, zipped=zipped)
    (case,) = plan(machine, strategy="single", model="mnist", data=f"mnist:{folder}")
    inputs, targets = next(Loading(case, build_model(case)).batches(0, 1, CPU))
    assert inputs.shape == (8, 1, 28, 28)
    assert targets.tolist() == LABELS[:8].tolist()
    expected = (torch.tensor(IMAGES[:8, None]) / 255 - MNIST_MEAN) / MNIST_STD
    torch.testing.assert_close(inputs, expected, check_dtype=False)
    assert inputs.dtype == torch.float32


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"images": idx_bytes(IMAGES, kind=9)}, "is damaged, or not MNIST's train-images"),
        ({"labels": idx_bytes(IMAGES)}, "is damaged, or not MNIST's train-labels"),
        ({"labels": idx_bytes(LABELS[:19])}, "holds 20 images of 28x28 and 19 labels up to 9"),
        ({"images": idx_bytes(IMAGES[:7]), "labels": idx_bytes(LABELS[:7])}, "holds 7 samples, one batch needs 8"),
    ],
)
def test_damaged_digits_are_refused(machine: Any, tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    assert said in refused(machine, model="mnist", data=f"mnist:{digits(tmp_path, **files)}")


# -- a user's own, and what does not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"data": "own_helpers:nothing"}, "cannot be loaded"),
        ({"data": "own_helpers:broken_rows"}, "cannot be made: RuntimeError: no such bucket"),
        ({"data": "own_helpers:few_rows"}, "holds 1 samples, one batch needs 8"),
        ({"data": "own_helpers:worded_rows", "model": "own_helpers:model"}, "a batch without a tensor of inputs"),
        ({"data": "own_helpers:uneven_rows"}, "gives no first batch: RuntimeError: stack expects each tensor"),
        ({"data": "own_helpers:rows"}, "gives inputs of float32, model gpt-nano takes tokens"),
        ({"data": "text", "model": "mlp"}, "model mlp takes no tokens"),
        ({"data": "mnist:/tmp", "model": "gpt-nano"}, "model gpt-nano takes no images"),
        ({"data": "synthetic:x"}, "synthetic takes nothing after a colon"),
        ({"data": "synthetik"}, "did you mean 'synthetic'"),
        ({"model": "own_helpers:bare"}, "has no synthetic data; give Model.batch, or another data"),
    ],
)
def test_data_that_does_not_fit_is_one_line(machine: Any, axes: dict[str, str], said: str) -> None:
    assert said in refused(machine, **{"strategy": "single", **axes})


def test_default_data_fits_the_model(machine: Any) -> None:
    chosen = {name: plan(machine, strategy="single", model=name)[0].data for name in ("gpt-nano", "mlp", "mnist")}
    assert chosen == {"gpt-nano": "text", "mlp": "synthetic", "mnist": "synthetic"}
    assert plan(machine, strategy="single", model="own_helpers:few_words")[0].data == "synthetic"
