"""The page while a run goes on: how far it is, when the page is made anew, and who is answered what."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from email.message import Message
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

import fake_collectives
import fake_results as fake
from browser_helpers import drawn, needs_chromium
from guard import GUARD_S
from parabench.cli import main
from parabench.errors import UsageError
from parabench.report.build import render
from parabench.serve import server
from parabench.serve.connections import Answer
from parabench.serve.progress import Standing, standing
from parabench.serve.rebuild import SHARE, Child, Page, Renewal
from parabench.serve.server import Live, listen, reply
from parabench.serve.text import progress_words
from parabench.store.record import EXPLAIN_BLOCK, REFERENCE_BLOCK, Failure, Status
from parabench.store.results import load
from parabench.store.store import Store
from process_helpers import end, signals_as_usual

CASES = [fake.case(bucket_mib=b) for b in (1.0, 4.0, 25.0)]


def planned(path, launches, blocks=3, cases=CASES, **more):
    """A store whose session has a plan of `blocks` blocks, of which these launches are done."""
    with Store.open_or_create(path) as store:
        plan = {"cases": [case.to_dict() for case in cases], "skipped": [], "protocol": {"launches": blocks}, "seed": 0}
        told = {"label": None, "suite": "quick", "argv": ["parabench"], "seed": 0, "environment": fake.ENVIRONMENT}
        session = store.begin_session(question="Which?", plan=plan | more.pop("plan", {}), **told | more)
        for launch in launches:
            store.append(session, launch)
    return path


def took(of, wall_s, block=0, **more):
    launch = fake.launch(of, block=block, **more)
    launch.wall_s = wall_s
    return launch


def now_after(seconds):
    return datetime.now(UTC) + timedelta(seconds=seconds)


# How far a session is


def test_of_a_plan_what_is_done_and_left_is_counted_and_estimated(tmp_path):
    bad = took(CASES[1], 4.0, status=Status.OOM, failure=Failure("out of\nmemory", rank=1))
    launches = [took(CASES[0], 7.0, REFERENCE_BLOCK), took(CASES[0], 7.0, EXPLAIN_BLOCK), took(CASES[0], 2.0), bad]
    seen = standing(planned(tmp_path / "r.db", launches), None)
    assert (seen.done, seen.planned, seen.failed, seen.launches, seen.going) == (2, 9, 1, 4, True)
    assert seen.left_s == 2 * 2.0 + 2 * 4.0 + 3 * 3.0
    assert seen.said == "2 of 9 launches, about 21 s left. 1 launch failed."
    assert seen.last == f"{CASES[1].label}, block 1: oom, rank 1: out of memory"


def test_an_interrupted_launch_is_neither_done_nor_failed(tmp_path):
    launches = [took(CASES[0], 2.0, REFERENCE_BLOCK), took(CASES[0], 1.0, status=Status.INTERRUPTED)]
    seen = standing(planned(tmp_path / "r.db", launches), None)
    assert (seen.done, seen.failed, seen.left_s, seen.said) == (0, 0, None, "0 of 9 launches.")
    assert seen.last == f"{CASES[0].label}, block 1: interrupted"


def test_blocks_that_were_added_count(tmp_path):
    plan = {"extra": [[CASES[0].id, CASES[1].id], [CASES[0].id]]}
    launches = [took(case, 1.0, block) for block in range(3) for case in CASES]
    seen = standing(planned(tmp_path / "r.db", launches, plan=plan), None)
    assert (seen.done, seen.planned, seen.left_s) == (9, 12, 3.0)


def test_both_sides_of_an_ab_count(tmp_path):
    for side in ("a", "b"):
        planned(tmp_path / "r.db", [took(CASES[0], 1.0)], label=side, interleaved={"run": "x", "side": side})
    seen = standing(tmp_path / "r.db", "a")
    assert (seen.done, seen.planned, seen.launches, seen.session) == (2, 18, 1, "1")
    assert seen.last.startswith("b: ")


def test_a_session_of_collectives_stands_somewhere_too(tmp_path):
    cases = [fake_collectives.case("all_reduce", name, world_size=2) for name in ("native", "ring")]
    fake_collectives.write(tmp_path / "r.db", fake_collectives.sweep(cases, lambda c, s: 1e-4 + s * 1e-9))
    seen = standing(tmp_path / "r.db", None)
    assert seen.launches == 6
    assert cases[1].label in seen.last


def test_a_finished_session_is_over_and_one_without_launches_for_long_has_stopped(tmp_path):
    path = planned(tmp_path / "r.db", [took(CASES[0], 20.0)])
    assert standing(path, None, now_after(20 + 199)).going
    stopped = standing(path, None, now_after(20 + 900))
    assert not stopped.going
    assert stopped.said == "1 of 9 launches; no launch has ended for 15 min, so the run seems to have stopped."
    finished = standing(fake.rich(tmp_path / "f.db").path, None)
    assert (finished.going, finished.said) == (False, "Finished: 84 of 84 launches. 3 launches failed.")


def test_a_deadline_of_ones_own_is_waited_for(tmp_path):
    plan = {"protocol": {"launches": 3, "deadline_s": 5000.0}}
    path = planned(tmp_path / "r.db", [took(CASES[0], 1.0)], plan=plan)
    assert standing(path, None, now_after(4990)).going
    assert not standing(path, None, now_after(5010)).going


def test_the_stamp_changes_with_what_a_page_shows(tmp_path):
    path = planned(tmp_path / "r.db", [])
    stamps = [standing(path, None).stamp]
    with Store.open_or_create(path) as store:
        for change in (
            lambda: store.append(1, took(CASES[0], 1.0)),
            lambda: store.finish_session(1),
            lambda: store.replan(1, {"cases": [], "protocol": {"launches": 1}}),
        ):
            change()
            stamps += [standing(path, None).stamp, standing(path, None).stamp]
    assert stamps[1::2] == stamps[2::2]
    assert len(set(stamps)) == 4


def test_what_is_not_there_yet_is_waited_for_and_what_is_no_store_is_refused(tmp_path):
    (tmp_path / "empty.db").touch()
    (tmp_path / "text.db").write_text("no database" * 100)
    for name in ("none.db", "empty.db", "no/folder.db"):
        seen = standing(tmp_path / name, None)
        assert (seen.stamp, seen.going) == ("", True)
        assert "There is no store" in seen.said
    planned(tmp_path / "r.db", [])
    assert "holds no session nightly yet" in standing(tmp_path / "r.db", "nightly").said
    Store.open_or_create(tmp_path / "s.db").close()
    assert "holds no session yet" in standing(tmp_path / "s.db", None).said
    for path in (tmp_path / "text.db", tmp_path):
        with pytest.raises(UsageError, match=r"give the results\.db of a run"):
            standing(path, None)


def test_one_launch_is_one():
    assert progress_words(1, 1, 0, 0.0, True, None) == "Finished: 1 of 1 launch."


# When a page is made anew


class Maker:
    """Makes pages when it is let."""

    def __init__(self):
        self.go, self.asked, self.fails, self.lacks = threading.Event(), [], "", None

    def __call__(self, store, session):
        self.asked.append((store, session))
        assert self.go.wait(GUARD_S)
        if self.fails:
            raise UsageError(self.fails)
        if self.lacks:
            raise self.lacks
        return f"page {len(self.asked)}"


@pytest.fixture
def maker():
    made = Maker()
    yield made
    made.go.set()


def test_a_page_is_made_once_of_a_store_that_stays_as_it_is(maker):
    renewal = Renewal(maker, lambda: 0.0)
    maker.go.set()
    renewal.look(Path("r.db"), Standing("nothing yet"))
    assert maker.asked == []
    for _ in range(3):
        renewal.look(Path("r.db"), Standing("", stamp="1", session="7", launches=5))
        renewal.wait()
    assert maker.asked == [(Path("r.db"), "7")]
    assert renewal.newest == Page("page 1", "1", 5)
    renewal.look(Path("r.db"), Standing("", stamp="2"))
    renewal.wait()
    assert renewal.newest.stamp == "2"


def test_never_two_at_once(maker):
    renewal = Renewal(maker, lambda: 0.0)
    for stamp in "123":
        renewal.look(Path("r.db"), Standing("", stamp=stamp))
    assert renewal.making
    maker.go.set()
    renewal.wait()
    assert len(maker.asked) == 1
    assert renewal.newest.stamp == "1"


def test_a_run_that_goes_on_is_left_alone_for_so_long_as_a_page_costs(maker):
    times = iter([0.0, 0.0, 3.0, 3.0])
    clock = [None]
    renewal = Renewal(maker, lambda: next(times) if clock[0] is None else clock[0])
    maker.go.set()
    renewal.look(Path("r.db"), Standing("", stamp="1"))
    renewal.wait()
    clock[0] = 3.0 + 3.0 * SHARE - 0.1
    renewal.look(Path("r.db"), Standing("", stamp="2"))
    renewal.wait()
    assert renewal.newest.stamp == "1"
    renewal.look(Path("r.db"), Standing("", stamp="3", going=False))
    renewal.wait()
    assert renewal.newest.stamp == "3"
    clock[0] += 0.1
    renewal.look(Path("r.db"), Standing("", stamp="4"))
    renewal.wait()
    assert renewal.newest.stamp == "4"


def test_a_page_that_cannot_be_made_leaves_the_last_and_its_reason(maker):
    renewal = Renewal(maker, lambda: 0.0)
    maker.go.set()
    renewal.look(Path("r.db"), Standing("", stamp="1"))
    renewal.wait()
    maker.fails = "page.html, line 3"
    for _ in range(2):
        renewal.look(Path("r.db"), Standing("", stamp="2"))
        renewal.wait()
    assert (renewal.newest.stamp, renewal.error, len(maker.asked)) == ("1", "page.html, line 3", 2)
    maker.fails = ""
    renewal.look(Path("r.db"), Standing("", stamp="2"), "another template")
    renewal.wait()
    assert (renewal.newest.text, renewal.error) == ("page 3", "")


def test_what_the_machine_lacks_is_said_and_tried_again(maker):
    renewal = Renewal(maker, lambda: 0.0)
    maker.go.set()
    maker.lacks = OSError(28, "No space left on device")
    for tried in (1, 2):
        renewal.look(Path("r.db"), Standing("", stamp="1"))
        renewal.wait()
        assert (renewal.newest, len(maker.asked)) == (None, tried)
        assert renewal.error == "no page could be made: No space left on device; it is tried again"
    maker.lacks = None
    renewal.look(Path("r.db"), Standing("", stamp="1"))
    renewal.wait()
    assert (renewal.newest.stamp, renewal.error) == ("1", "")


def test_a_child_makes_the_page_that_report_writes(tmp_path):
    results = fake.write(tmp_path / "r.db", fake.sweep(CASES, lambda _: 0.04))
    assert Child(None)(tmp_path / "r.db", "1") == render(results)
    with pytest.raises(UsageError, match=r"no\.db does not exist"):
        Child(None)(tmp_path / "no.db", "1")


def test_a_child_that_is_ended_is_no_page(tmp_path):
    fake.write(tmp_path / "r.db", fake.sweep(CASES, lambda _: 0.04))
    child = Child(None)
    child.end()
    with pytest.raises(UsageError, match="exit code -9"):
        child(tmp_path / "r.db", "1")


# Who is answered what


def live(path, make, **more):
    return Live(lambda: (path, None), Renewal(make, lambda: 0.0), **more)


def in_process(path, session):
    """Makes pages without a process; the store is read whole before it may grow again."""
    return render(load(path), session)


@pytest.fixture
def client(tmp_path, maker):
    path = planned(tmp_path / "r.db", [took(CASES[0], 1.0)])
    return reply(live(path, maker, clock=lambda: 0.0))


def get(client, path="/", method="GET", token="", **headers) -> Answer:
    """What is answered to a request with these headers, `_` for `-`; Host is 127.0.0.1:1234 unless it is given."""
    message = Message()
    for name, value in {"Host": "127.0.0.1:1234", **headers}.items():
        message[name.replace("_", "-")] = value
    return client(method, path, message)


def text_of(answer):
    return answer.body.decode()


def test_a_slow_page_keeps_nobody_waiting(client, maker):
    assert "Waiting for results" in text_of(get(client))
    said = json.loads(get(client, "/progress").body)
    assert (said["page"], said["done"], said["planned"], said["again_s"]) == ("", 1, 9, server.SOON_S)
    assert len(maker.asked) == 1


def test_the_page_is_marked_with_what_it_was_made_from(tmp_path, maker):
    serving = live(planned(tmp_path / "r.db", [took(CASES[0], 1.0)]), in_process)
    serving.page()
    serving.renewal.wait()
    page = text_of(get(reply(serving)))
    said = serving.progress()
    assert page.count(f'<meta name="parabench-live" content="{said["page"]}" data-launches="1">') == 1
    assert re.sub(r'<meta name="parabench-live"[^>]*>\n', "", page) == in_process(tmp_path / "r.db", None)
    assert said["again_s"] >= server.OFTEN_S


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "evil.example:1234",
        "",
        "localhost.",
        "localhost.evil.example",
        "[::1]",
        "[::1]:1234",
        "[::ffff:127.0.0.1]:1234",
        "[evil]",
        "127.0.0.1:",
        "127.0.0.1:x",
        "127.0.0.1:1234:1234",
        "127.0.0.1@evil.example",
        "evil.example@127.0.0.1",
        "127.0.0.1, evil.example",
        "127.0.0.1/evil",
        "127.1",
        "0x7f000001",
        "0.0.0.0",
        "\u0661.0.0.1",
    ],
)
def test_a_name_that_is_not_this_machines_is_refused(client, host):
    for path in ("/", "/progress"):
        answer = get(client, path, Host=host)
        assert answer.status == 403
        assert "evil" not in text_of(answer) + str(answer.headers)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:80", "localhost", "localhost:9000", "LOCALHOST:1"])
def test_this_machine_is_answered_through_tunnels_too(client, host):
    assert get(client, "/progress", Host=host).status == 200


@pytest.mark.parametrize("hosts", [(), ("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "evil.example")])
def test_a_request_names_one_host(client, hosts):
    message = Message()
    for host in hosts:
        message["Host"] = host
    assert client("GET", "/progress", message).status == 400


def from_a_page(site, mode, dest):
    return {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": mode, "Sec_Fetch_Dest": dest}


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/progress", {"Origin": "http://evil.example"}),
        ("/progress", {"Origin": "null"}),
        ("/progress", {"Origin": "http://127.0.0.1:1"}),
        ("/", {"Origin": "https://127.0.0.1:1234"}),
        ("/progress", from_a_page("cross-site", "no-cors", "script")),
        ("/progress", from_a_page("same-site", "cors", "empty")),
        ("/progress", from_a_page("cross-site", "navigate", "document")),
        ("/", from_a_page("cross-site", "navigate", "iframe")),
        ("/", from_a_page("cross-site", "no-cors", "image")),
        ("/", from_a_page("same-site", "navigate", "embed")),
        ("/", {"Sec_Fetch_Site": "what is this"}),
    ],
)
def test_pages_of_other_sites_are_not_answered_nor_is_a_page_made_for_them(client, maker, path, headers):
    answer = get(client, path, **headers)
    assert (answer.status, text_of(answer)) == (
        403,
        "Pages of other sites are not answered; open the address yourself.\n",
    )
    assert maker.asked == []


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", from_a_page("none", "navigate", "document")),
        ("/", from_a_page("cross-site", "navigate", "document")),  # a link that the reader follows
        ("/progress", from_a_page("same-origin", "cors", "empty")),
        ("/progress", {"Origin": "http://127.0.0.1:1234"}),
    ],
)
def test_its_own_page_and_its_reader_are(client, path, headers):
    assert get(client, path, **headers).status == 200


def test_with_a_token_only_the_address_that_has_it_is_answered(tmp_path, maker):
    serving = live(planned(tmp_path / "r.db", [took(CASES[0], 1.0)]), maker)
    token = "s3cret-Token"
    client = reply(serving, token)
    for path in (
        "/",
        "/progress",
        "/s3cret-token/",
        "/s3cret-Toke/progress",
        "//s3cret-Token/",
        "/?s3cret-Token",
        "/é/",
    ):
        answer = get(client, path)
        assert answer.status == 403
        assert token not in text_of(answer) + str(answer.headers)
    assert maker.asked == []
    for path in (f"/{token}/", f"/{token}/progress"):
        answer = get(client, path)
        assert answer.status == 200
        assert token not in text_of(answer) + str(answer.headers)
    for path in (f"/{token}", f"/{token}/{token}/", f"/{token}//progress"):
        assert get(client, path).status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/index.html",
        "/progress/",
        "/..",
        "/../../etc/passwd",
        "/%2e%2e/etc/passwd",
        "/%252e%252e/etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/..\\..\\etc\\passwd",
        "//etc/passwd",
        "/progress%00",
        "/%00",
        "/\0",
        "/%2fprogress",
        "/%70rogress",
        "file:///etc/passwd",
        "http://127.0.0.1:1234/",
        "*",
        "",
        "/<b>x</b>",
        "/page?<b>",
    ],
)
def test_there_is_nothing_else(client, path):
    answer = get(client, path)
    assert answer.status == 404
    assert text_of(answer) == "There is nothing here; the report is at /.\n"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get", "<b>"])
def test_nothing_can_be_sent(client, method):
    for path in ("/", "/progress"):
        answer = get(client, path, method)
        assert answer.status == 405
        assert answer.headers["Allow"] == "GET, HEAD"
        assert text_of(answer) == "Only GET and HEAD are answered.\n"


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/progress", 200), ("/no", 404)])
def test_every_answer_is_kept_from_caches_frames_and_other_pages(client, path, status):
    answer = get(client, path)
    assert answer.status == status
    for name, value in {
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
    }.items():
        assert answer.headers[name] == value
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert policy.endswith("frame-ancestors 'none'")
    assert "Access-Control-Allow-Origin" not in answer.headers
    if path == "/":
        assert "script-src 'sha256-" in policy
        assert "connect-src 'self'" in policy


def test_a_template_that_cannot_be_used_is_said_where_progress_is(tmp_path, maker):
    own = tmp_path / "own"
    own.mkdir()
    (own / "page.html").write_text("{{ what_is_this }}")
    maker.fails = "a template cannot be used"
    maker.go.set()
    serving = live(planned(tmp_path / "r.db", []), maker, template=own)
    client = reply(serving)
    assert "Waiting for results" in text_of(get(client))
    serving.renewal.wait()
    assert json.loads(get(client, "/progress").body)["error"] == "a template cannot be used"


def test_a_store_that_went_away_is_said(tmp_path, maker):
    maker.go.set()
    path = planned(tmp_path / "r.db", [took(CASES[0], 1.0)])
    serving = live(path, maker)
    serving.progress()
    serving.renewal.wait()
    path.write_text("something else" * 100)
    said = serving.progress()
    assert "is not a parabench store" in said["error"]
    assert said["page"] != ""
    path.unlink()
    assert "There is no store" in serving.progress()["said"]


def test_a_template_that_is_changed_is_looked_at_again(tmp_path, maker):
    maker.go.set()
    own = tmp_path / "own"
    own.mkdir()
    (own / "page.html").write_text("one")
    serving = live(planned(tmp_path / "r.db", []), maker, template=own)
    for age in (0, 0, 9):
        os.utime(own / "page.html", (age, age))
        serving.progress()
        serving.renewal.wait()
    assert len(maker.asked) == 2


def test_looking_costs_a_run_little(tmp_path, maker):
    ticks = iter([0.0, 0.4])
    serving = live(planned(tmp_path / "r.db", []), maker, clock=lambda: next(ticks))
    assert serving.progress()["again_s"] == pytest.approx(0.4 * server.LOOKING)


@contextlib.contextmanager
def serving_at(live, token=""):
    """The port of a server that answers."""
    one = listen(live, 0, token)
    thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield one.port
    finally:
        one.shutdown()
        thread.join()


def test_it_listens_on_loopback_and_tells_nothing_of_itself(tmp_path, maker, capfd):
    with serving_at(live(planned(tmp_path / "r.db", []), maker)) as port:
        listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        places = {fields[1] for fields in listening if fields[3] == "0A" and fields[1].endswith(f":{port:04X}")}
        assert places == {f"0100007F:{port:04X}"}
        with pytest.raises(UsageError, match=rf"port {port} cannot be listened on: .*; give another --port"):
            listen(live(tmp_path / "r.db", maker), port)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD_S)
        connection.request("GET", "/progress")
        answer = connection.getresponse()
        assert answer.headers["Server"] == "parabench"
        assert json.loads(answer.read())["planned"] == 9
        connection.close()
    assert capfd.readouterr() == ("", "")


# The command


def test_what_cannot_be_served_is_one_line(tmp_path):
    (tmp_path / "text.db").write_text("no database" * 100)
    for arguments, said in (
        ([tmp_path / "text.db"], "is not a parabench store"),
        ([tmp_path / "r.db", "--template", tmp_path / "no"], "is not a folder; give --template"),
        ([f"{tmp_path}/r.db@"], "names no session after the @"),
    ):
        result = CliRunner().invoke(main, ["serve", *map(str, arguments)])
        assert (result.exit_code, result.stderr.count("\n"), result.stdout) == (2, 1, "")
        assert said in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_ends_when_asked_to(tmp_path, number):
    command = [sys.executable, "-m", "parabench", "serve", "results", "--open"]
    environment = os.environ | {"BROWSER": "echo shown %s", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=signals_as_usual,  # a shell's background jobs ignore SIGINT, and so would it
    )
    try:
        line = process.stdout.readline()
        port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/ shows results; Ctrl-C ends it\n", line)[1])
        for told in ("There is no store results yet.", "0 of 9 launches."):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD_S)
            connection.request("GET", "/progress")
            assert told in json.loads(connection.getresponse().read())["said"]
            connection.close()
            (tmp_path / "results").mkdir(exist_ok=True)
            planned(tmp_path / "results" / "results.db", [])
        shown = process.stdout.readline()  # the browser's, which a loaded machine starts late
        process.send_signal(number)
        said, wrong = process.communicate(timeout=GUARD_S)
    finally:
        end(process)
    assert (process.returncode, wrong) == (0, "")
    assert (shown, said) == (f"shown http://127.0.0.1:{port}/\n", "stopped\n")


def test_with_a_token_its_address_is_random_and_no_other_user_sees_it(tmp_path):
    environment = os.environ | {"BROWSER": "echo shown %s", "PYTHONUNBUFFERED": "1"}
    tokens = set()
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-m", "parabench", "serve", "results", "--token", "--open"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=signals_as_usual,
        )
        try:
            lines = [process.stdout.readline(), process.stdout.readline()]  # the browser's may come first
            line, shown = sorted(lines)
            found = re.fullmatch(r"(http://127\.0\.0\.1:(\d+)/([\w-]{43})/) shows results; Ctrl-C ends it\n", line)
            tokens.add(found[3])
            # Everybody sees what a browser is started with: a file of ours, which leads there.
            file = Path(urlsplit(shown.removeprefix("shown ").strip()).path)
            assert found[3] not in shown
            assert f"url={found[1]}" in file.read_text()
            assert file.parent.stat().st_mode & 0o077 == 0
            for path, status in (
                (f"/{found[3]}/", 200),
                (f"/{found[3]}/progress", 200),
                ("/", 403),
                ("/progress", 403),
            ):
                connection = http.client.HTTPConnection("127.0.0.1", int(found[2]), timeout=GUARD_S)
                connection.request("GET", path)
                assert connection.getresponse().status == status
                connection.close()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=GUARD_S)
        finally:
            end(process)
        assert not file.exists()
    assert len(tokens) == 2


# In a browser


@pytest.fixture
def growing(tmp_path):
    """A session that goes on, and what gives it one more launch."""
    launches = iter([took(case, 1.0, block) for block in range(9) for case in CASES])
    path = planned(tmp_path / "r.db", itertools.islice(launches, 6), blocks=9)

    def launch():
        with Store.open_or_create(path) as store:
            store.append(1, next(launches))

    return path, launch


@contextlib.contextmanager
def reading(browser, serving, monkeypatch, address="", token=""):
    """A page that is followed, and who was asked for what; what it says on the console fails the test."""
    monkeypatch.setattr(server, "OFTEN_S", 0.05)
    monkeypatch.setattr(server, "LOOKING", 0)
    asked, said = [], []
    with serving_at(serving, token) as port:
        page = browser.new_page(viewport={"width": 1280, "height": 300})
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.goto(f"http://127.0.0.1:{port}/{address}")
        yield page, asked, f"http://127.0.0.1:{port}/"
        page.close()
    assert said == []


def shows(page, launches):
    page.wait_for_selector(f"meta[name=parabench-live][data-launches='{launches}']", state="attached")
    drawn(page)


class TestInABrowser:
    pytestmark = needs_chromium

    def test_it_waits_for_results_follows_them_and_asks_nobody_else(self, browser, tmp_path, monkeypatch):
        with reading(browser, live(tmp_path / "r.db", in_process), monkeypatch) as (page, asked, origin):
            page.wait_for_selector("aside.live >> text=There is no store")
            planned(tmp_path / "r.db", [took(CASES[0], 1.0)])
            shows(page, 1)
            page.wait_for_selector("aside.live >> text=1 of 9 launches, about 8 s left.")
            page.wait_for_selector(f"aside.live >> text=Last: {CASES[0].label}, block 1: ok after 1.0 s")
            with Store.open_or_create(tmp_path / "r.db") as store:
                store.append(1, took(CASES[1], 1.0))
            shows(page, 2)
            assert all(url.startswith(origin) or url.startswith("data:") for url in asked)
            assert {url.removeprefix(origin) for url in asked if url.startswith(origin)} == {"", "progress"}

    @pytest.mark.slow  # another server and browser
    def test_behind_a_token_it_is_followed_too(self, browser, growing, monkeypatch):
        path, launch = growing
        with reading(browser, live(path, in_process), monkeypatch, "s3cret/", "s3cret") as (page, asked, origin):
            shows(page, 6)
            launch()
            shows(page, 7)
            assert {url.removeprefix(origin) for url in asked if url.startswith(origin)} == {
                "s3cret/",
                "s3cret/progress",
            }

    def test_what_is_read_stays_until_the_reader_asks(self, browser, growing, monkeypatch):
        path, launch = growing
        with reading(browser, live(path, in_process), monkeypatch, "#tab=trust") as (page, _, _):
            shows(page, 6)
            page.evaluate("scrollTo(0, 150)")
            launch()
            page.click("aside.live >> text=1 new launch: show")
            shows(page, 7)
            assert page.evaluate("[location.hash, scrollY]") == ["#tab=trust", 150]
            assert page.locator("#tab-trust").is_visible()

    @pytest.mark.slow  # another server and browser
    def test_the_newer_page_has_open_what_was_open(self, browser, growing, monkeypatch):
        path, launch = growing
        with reading(browser, live(path, in_process), monkeypatch) as (page, _, _):
            shows(page, 6)
            page.locator("#tab-answer details summary").first.click()
            launch()
            page.click("aside.live >> text=1 new launch: show")
            shows(page, 7)
            assert page.evaluate("document.querySelector('#tab-answer details').open")
            page.locator("#tab-answer details summary").first.click()
            page.evaluate("scrollTo(0, 0)")
            page.mouse.move(0, 0)
            launch()
            shows(page, 8)  # nothing is open any more

    def test_a_server_that_has_ended_leaves_the_page(self, browser, growing, monkeypatch):
        path, _ = growing
        monkeypatch.setattr(server, "OFTEN_S", 0.05)
        page = browser.new_page()
        with serving_at(live(path, in_process)) as port:
            page.goto(f"http://127.0.0.1:{port}/")
            shows(page, 6)
        page.wait_for_selector("aside.live >> text=does not answer any more")
        assert page.locator("h1").inner_text() == "Which?"
        page.close()

    def test_a_page_from_disk_asks_nobody(self, browser, tmp_path):
        fake.write(tmp_path / "r.db", fake.sweep(CASES, lambda _: 0.04))
        text = server.marked(Page(in_process(tmp_path / "r.db", None), "stamp", 9))  # as one saves it
        (tmp_path / "saved.html").write_text(text, encoding="utf-8")
        page, asked = browser.new_page(), []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "saved.html").as_uri())
        drawn(page)
        assert page.locator("aside.live").count() == 0
        assert [url for url in asked if not url.startswith("data:")] == [(tmp_path / "saved.html").as_uri()]
        page.close()
