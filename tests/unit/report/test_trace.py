"""The exported trace: the Trace Event Format and its content."""

import json

import pytest

import fake_results as fake
from command_line import parabench
from parabench.store.record import DeviceSample, HostSample, Launch
from trace_rules import violations


def told(lengths=(6.0, 7.0, 9.0), step_s: float = 10.0) -> Launch:
    """Return a launch with three steps of two ranks, whose backward passes have these lengths.

    A bucket is ready at 4, called at 4.25 and starts at 4.5. A second call overlaps it, and the end of a message is
    unknown.
    """
    launch = fake.launch(fake.case(), step_s)
    for at, length in enumerate(lengths):
        for rank in range(2):
            calls = [
                {"start_s": 4.5, "made_s": 4.25, "ready_s": 4.0, "bucket": 0, "duration_s": 2.0},
                {"start_s": 6.0, "duration_s": 1.0},
                {"op": "send", "start_s": 6.5, "duration_s": None, "ranks": "0-1"},
                {"op": "all_gather", "algorithm": "ring", "start_s": 7.0, "ranks": "0-1"},
            ]
            parts = fake.LONG_PARTS | {"backward": length}
            fake.instrumented(
                launch, 25 + at, rank, begin=1000.0 + 20 * at, parts=parts, waits=[(6.0, 8.0), (7.0, 9.0)], calls=calls
            )
    layout = [{"bytes": 4_000_000, "parameters": ["head.weight"]}]
    launch.host_samples = [HostSample(rank, 4.0 * i, "rss_bytes", 1e8 + i + rank) for i in range(20) for rank in (0, 1)]
    launch.host_samples.append(HostSample(0, 21.0, "rss_bytes", None, "no permission"))
    launch.device_samples = [DeviceSample(0, 4.0 * i, "used_bytes", 5e8 + i) for i in range(20)]
    launch.device_samples.append(DeviceSample(0, 21.0, "used_bytes", 7.0, rank=0))
    return fake.tell(launch, facts={"buckets": layout, "clock": {"began_s": 1000.0}})


@pytest.fixture
def store(tmp_path):
    launches = [told(step_s=11.0), told(), told(step_s=9.0), fake.launch(fake.case(strategy="single", world_size=1))]
    for repetition, launch in enumerate(launches):
        launch.repetition = repetition
    fake.write(tmp_path / "results.db", launches)
    return tmp_path / "results.db"


@pytest.fixture
def events(store, tmp_path):
    done = parabench("export", "--trace", "ddp native, 2 ranks", store, "-o", tmp_path / "deep" / "trace.json")
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "deep" / "trace.json").read_text())
    assert written["displayTimeUnit"] == "ms"
    assert done.output.splitlines()[0] == str(tmp_path / "deep" / "trace.json")
    return written["traceEvents"]


def named(events, ph, name):
    return [event for event in events if event["ph"] == ph and event["name"] == name]


def test_trace_follows_the_event_format(events, tmp_path):
    assert violations((tmp_path / "deep" / "trace.json").read_text()) == []
    assert {event["ph"] for event in events} == {"X", "M", "i", "C", "s", "f"}
    assert len({event["id"] for event in events if event["ph"] == "s"}) == 6


def test_trace_has_a_process_for_each_rank(events):
    names = [event["args"]["name"] for event in events if event["name"] in ("process_name", "thread_name")]
    rank = ["step", "waiting", "communication 0-1 native", "communication 0-1 native (2)", "communication 0-1 ring"]
    assert names == ["rank 0", *rank, "rank 1", *rank, "device 0"]
    # The median step of the median launch: 11 s.
    assert [event["dur"] for event in named(events, "X", "step 26")] == [11e6, 11e6]
    begin = named(events, "X", "step 26")[0]["ts"]
    assert [(e["ts"] - begin, e["dur"]) for e in named(events, "X", "blocked")] == [(6e6, 3e6)] * 2
    reduced = named(events, "X", "all_reduce of bucket 0")[0]
    assert (reduced["ts"] - begin, reduced["dur"]) == (4.5e6, 2e6)
    assert reduced["args"]["bytes"] == 4_000_000
    ready = named(events, "i", "bucket 0 ready")[0]
    assert (ready["ts"] - begin, ready["args"]) == (4e6, {"bytes": 4_000_000, "parameters": ["head.weight"]})
    assert len(named(events, "i", "send, its end unknown")) == 2
    arrow = {event["ph"]: event for event in events if event.get("id") == named(events, "s", "called")[0]["id"]}
    assert (arrow["s"]["ts"] - begin, arrow["f"]["ts"] - begin) == (4.25e6, 4.5e6)
    assert arrow["s"]["tid"] != arrow["f"]["tid"] == reduced["tid"]


def test_trace_has_memory_around_the_step(events):
    # The step goes from 1020 to 1031, the launch began at 1000: readings at 20 to 32, every 4 s.
    begin = named(events, "X", "step 26")[0]["ts"]
    drawn = named(events, "C", "memory")
    ranks = [(e["ts"] - begin, e["args"]["rss_bytes"]) for e in drawn if e["pid"] == 1]
    assert ranks == [(0.0, 1e8 + 5), (4e6, 1e8 + 6), (8e6, 1e8 + 7), (12e6, 1e8 + 8)]
    device = [e["args"]["used_bytes"] for e in drawn if e["pid"] > 2]
    assert device == [5e8 + 5, 5e8 + 6, 5e8 + 7, 5e8 + 8]


def test_trace_launch_and_step_can_be_chosen(store, tmp_path):
    out = tmp_path / "trace.json"
    done = parabench("export", "--trace", "ddp-native", f"{store}@fake", "-o", out, "--launch", 3, "--step", 25)
    assert "ddp native, 2 ranks: step 25 of launch 3" in done.output
    assert json.loads(out.read_text())["otherData"]["launch"] == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--trace", "ddp", "-o", "results.db"], "results.db is a database, not a trace; give another file with -o"),
        (["--trace", "ddp", "-o", "results.db/t.json"], "results.db/t.json cannot be written: "),
        (["--trace", "ddp", "-o", "."], "cannot be written: Is a directory; give another file with -o"),
    ],
)
def test_trace_error_is_one_line(store, tmp_path, monkeypatch, arguments, text):
    monkeypatch.chdir(tmp_path)
    done = parabench("export", *arguments, "results.db")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert text in done.stderr
