"""Dumps of torch's flight recorder: calls, ranks that did not come, pickles that hold more than values."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import recordings
from parabench.errors import UsageError
from parabench.imports import flight_recorder, joined, literals, read_folder
from parabench.imports.into_store import launch_of
from parabench.store.record import Status
from recordings import RUNNING, dump, entry


def read(folder: Path, told: Any, rank: int = 0) -> Any:
    path = folder / f"nccl_trace_rank_{rank}"
    path.write_bytes(pickle.dumps(told, 2))
    return flight_recorder.read(path)[0]


def findings(folder: Path, *dumps: Any) -> list[Any]:
    return joined.story([read(folder, told, rank) for rank, told in enumerate(dumps)], "case").findings


def test_a_call_has_its_size_and_how_long_it_took(tmp_path):
    (call,) = read(tmp_path, dump(entry(5))).calls
    assert (call.step, call.seq, call.op, call.ranks, call.bytes, call.dtype) == (
        5, 4, "all_reduce", (0, 1), 4000, "float32",
    )  # fmt: skip
    assert (call.made_ns, call.start_ns, call.duration_ns) == (1_700_000_000_000_000_005, None, 1_500_000)


def test_values_are_those_that_were_pickled(tmp_path):
    value = {
        "a": [1, -5, 2**40, -(2**80), 1.5, None, True, False, "é" * 300, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)]
    }
    value["again"] = value["a"]
    for protocol in (2, 3, 4, 5):
        (tmp_path / "x").write_bytes(pickle.dumps(value, protocol))
        assert literals.read(tmp_path / "x") == value


class Evil:
    def __reduce__(self) -> Any:
        return print, ("executed",)


@pytest.mark.parametrize("value", [Evil(), [Evil()], {"entries": Evil()}, 1j, print, {"a": Path("x")}])
def test_a_pickle_of_anything_else_is_refused(tmp_path, value, capsys):
    for protocol in (2, 4, 5):
        (tmp_path / "dump_0").write_bytes(pickle.dumps(value, protocol))
        with pytest.raises(UsageError, match="nothing else is unpickled") as refused:
            flight_recorder.read(tmp_path / "dump_0")
        assert "\n" not in str(refused.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x02", b"\x80\x02]", b"\x80\x02e.", b"\x80\x02(u.", b"\x80\x02h\x05.", b"\x80\x02q\x05.",
        b"\x80\x02\x87.",
        b"\x80\x02}(K\x01u.", b"\x80\x02](K\x01K\x02s.", b"\x80\x02K\x01K\x02a.", b"\x80\x02.",
        b"\x80\x02}(\x85N\x85Nu.", b"\x80\x02X\xff\xff\xff\x7fabc", b"\x80\x02]r\xff\xff\xff\xff.", b"\x80\x02\xff.",
    ],
)  # fmt: skip
def test_a_damaged_pickle_is_refused_in_a_line(tmp_path, raw):
    (tmp_path / "dump_0").write_bytes(raw)
    with pytest.raises(UsageError, match="cannot be read") as refused:
        flight_recorder.read(tmp_path / "dump_0")
    assert "\n" not in str(refused.value)


def test_who_does_not_come_is_named_with_the_call(tmp_path):
    whole = [entry(1), entry(2)]
    (found,) = findings(
        tmp_path, dump(*whole, entry(3, **RUNNING)), dump(*whole), dump(*whole, entry(3, **RUNNING))
    )  # fmt: skip
    assert found.code == "recording_hang"
    assert "Call 3 of group 0 (default_pg), all_reduce of 4,000 bytes of float32" in found.message
    assert "entered by ranks 0, 2 and not by rank 1, whose last call of the group was its call 2" in found.message


def test_who_never_called_anything_is_named_where_its_dump_goes_back_to_the_begin(tmp_path):
    other = entry(1) | {"process_group": ["1", "mesh_tp"], "record_id": 0}
    first = dump(entry(1, **RUNNING))
    (found,) = findings(tmp_path, first, dump(other))
    assert "not by rank 1, whose last call of the group was none" in found.message
    # Where the recorder dropped calls nobody knows.
    assert findings(tmp_path, first, dump(other | {"record_id": 900})) == []


def test_call_that_no_rank_finished_is_named(tmp_path):
    (found,) = findings(tmp_path, *[dump(entry(1), entry(2, **RUNNING))] * 2)
    assert found.message == (
        "Call 2 of group 0 (default_pg), all_reduce of 4,000 bytes of float32, was entered by all 2 ranks and finished "
        "on none."
    )


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (entry(2, "nccl:broadcast"), "rank 0 called all_reduce of 4,000 bytes of float32; rank 1 called broadcast"),
        (entry(2, input_sizes=[[9]], output_sizes=[[9]]), "rank 1 called all_reduce of 36 bytes"),
        (entry(2, input_dtypes=["Half"], output_dtypes=["Half"]), "rank 1 called all_reduce of 2,000 bytes of float16"),
    ],
)
def test_ranks_that_call_different_things_are_named(tmp_path, other, said):
    (found,) = findings(tmp_path, dump(entry(1), entry(2)), dump(entry(1), other))
    assert found.code == "recording_mismatch"
    assert "Call 2 of group 0 (default_pg)" in found.message
    assert said in found.message


def test_messages_and_groups_of_calls_are_no_collectives_of_all(tmp_path):
    sent = entry(1, "nccl:send 0->1", is_p2p=True, p2p_seq_id=4)
    found = read(tmp_path, dump(sent, entry(2, "nccl:coalesced")))
    assert found.entries[0].op == "coalesced"
    assert [(call.op, call.step) for call in found.calls] == [("send", 4)]
    assert found.left_out == {"they are no collectives": 1}


def test_a_hang_is_how_the_launch_ended(tmp_path):
    recordings.write(tmp_path, rank_0__json=dump(entry(1, **RUNNING)), rank_1__json=dump())
    launch = launch_of(read_folder(tmp_path))
    # Both dumps hold active calls only, so rank 1 is not in the call.
    assert launch.status is Status.HUNG
    recordings.write(tmp_path, rank_0__json=dump(entry(1), entry(2, **RUNNING)), rank_1__json=dump(entry(1)))
    assert launch_of(read_folder(tmp_path)).status is Status.HUNG
