"""`serve`: the progress of a run, when pages are made, and which requests are answered."""

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
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

import fake_results as fake
from browser_helpers import drawn, needs_chromium
from guard import GUARD_S
from parabench import serve as server
from parabench.cli import main
from parabench.errors import UsageError
from parabench.report.build import render
from parabench.serve import Live, Server, make_page, read_progress
from parabench.store.record import EXPLAIN_REPETITION, REFERENCE_REPETITION, Failure, Status
from parabench.store.results import load
from parabench.store.store import Store
from process_helpers import end, signals_as_usual

CASES = [fake.case(bucket_mib=b) for b in (1.0, 4.0, 25.0)]


def planned(path, launches, repetitions=3, cases=CASES, **more):
    """Write a database whose session plans `repetitions` repetitions and has these launches. Return its path."""
    with Store.open_or_create(path) as store:
        plan = {
            "cases": [case.to_dict() for case in cases],
            "skipped": [],
            "protocol": {"launches": repetitions},
            "seed": 0,
        }
        told = {"label": None, "suite": "quick", "argv": ["parabench"], "seed": 0, "environment": fake.ENVIRONMENT}
        session = store.begin_session(question="Which?", plan=plan | more.pop("plan", {}), **told | more)
        for launch in launches:
            store.append(session, launch)
    return path


def took(of, wall_s, repetition=0, **more):
    launch = fake.launch(of, repetition=repetition, **more)
    launch.wall_s = wall_s
    return launch


def now_after(seconds):
    return datetime.now(UTC) + timedelta(seconds=seconds)


# Progress


def test_progress_counts_and_estimates_launches(tmp_path):
    bad = took(CASES[1], 4.0, status=Status.OOM, failure=Failure("out of\nmemory", rank=1))
    launches = [took(CASES[0], 7.0, repetition) for repetition in (REFERENCE_REPETITION, EXPLAIN_REPETITION)]
    launches += [took(CASES[0], 2.0), bad, took(CASES[0], 1.0, 1, status=Status.INTERRUPTED)]
    seen = read_progress(planned(tmp_path / "r.db", launches))
    assert (seen["done"], seen["planned"], seen["going"]) == (2, 9, True)
    assert seen["text"] == "2 of 9 launches, about 21 s left. 1 launch failed."  # 7 launches of 3 s on average


def test_added_repetitions_and_both_variants_of_an_ab_count(tmp_path):
    plan = {"extra": [[CASES[0].id, CASES[1].id], [CASES[0].id]]}
    launches = [took(case, 1.0, repetition) for repetition in range(3) for case in CASES]
    seen = read_progress(planned(tmp_path / "r.db", launches, plan=plan))
    assert (seen["done"], seen["planned"]) == (9, 12)
    for side in ("a", "b"):
        planned(tmp_path / "ab.db", [took(CASES[0], 1.0)], label=side, interleaved={"run": "x", "side": side})
    seen = read_progress(tmp_path / "ab.db", "a")
    assert (seen["done"], seen["planned"], seen["session"]) == (2, 18, "1")


def test_finished_and_stopped_sessions_are_distinguished(tmp_path):
    path = planned(tmp_path / "r.db", [took(CASES[0], 20.0)])
    assert read_progress(path, None, now_after(20 + 199))["going"]
    stopped = read_progress(path, None, now_after(20 + 900))
    assert not stopped["going"]
    assert stopped["text"] == "1 of 9 launches; no launch has ended for 15 min, so the run seems to have stopped."
    finished = read_progress(fake.rich(tmp_path / "f.db").path)
    assert (finished["going"], finished["text"]) == (False, "Finished: 84 of 84 launches. 3 launches failed.")
    path = planned(tmp_path / "d.db", [took(CASES[0], 1.0)], plan={"protocol": {"launches": 3, "deadline_s": 5000.0}})
    assert [read_progress(path, None, now_after(after))["going"] for after in (4990, 5010)] == [True, False]


# When a page is made


class Maker:
    """Makes numbered pages, or raises `error`."""

    def __init__(self):
        self.calls, self.error = [], None

    def __call__(self, path, session):
        self.calls.append((path, session))
        if self.error:
            raise self.error
        return f"<head>page {len(self.calls)}"


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def growing(tmp_path):
    """Return a session that is not finished, and a function that adds a launch to it."""
    launches = iter([took(case, 1.0, repetition) for repetition in range(9) for case in CASES])
    path = planned(tmp_path / "r.db", itertools.islice(launches, 6), repetitions=9)

    def launch():
        with Store.open_or_create(path) as store:
            store.append(1, next(launches))

    return path, launch


def live(path, make):
    return Live(str(path), make, clock=lambda: 0.0)


def wait(serving):
    """Wait for the page that is being made."""
    if serving._making.is_alive():
        serving._making.join()


def test_page_is_made_after_launches_and_kept_on_errors(growing, maker):
    path, launch = growing
    serving = live(path, maker)
    for _ in range(3):
        serving.progress()
        wait(serving)
    assert maker.calls == [(path, "1")]
    assert serving.page() == '<head>\n<meta name="parabench-live" content="1-6-27-0">page 1'
    launch()
    serving.page()
    wait(serving)
    assert "page 2" in serving.page()

    launch()
    maker.error = UsageError("page.html, line 3")
    serving.progress()
    wait(serving)
    text = serving.progress()
    assert (text["page"], text["error"], len(maker.calls)) == ("1-7-27-0", "page.html, line 3", 3)


def test_child_process_makes_the_page_that_report_writes(tmp_path):
    results = fake.write(tmp_path / "r.db", fake.sweep(CASES, lambda _: 0.04))
    assert make_page(tmp_path / "r.db", "1") == render(results)
    with pytest.raises(UsageError, match=r"no\.db does not exist"):
        make_page(tmp_path / "no.db", "1")


# Which requests are answered


@contextlib.contextmanager
def serving_at(live):
    """Yield the port of a running server."""
    one = Server(live, 0, "")
    thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield one.server_port
    finally:
        one.shutdown()
        one.server_close()
        thread.join()


def get(port, path="/", hosts=("127.0.0.1",), method="GET"):
    """Return the status, the headers and the text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD_S)
    connection.putrequest(method, path, skip_host=True)
    for host in hosts:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


@pytest.fixture
def port(growing, maker) -> Iterator[int]:
    with serving_at(live(growing[0], maker)) as port:
        yield port


def test_only_names_of_this_machine_are_answered(port):
    for host in ("127.0.0.1", "127.0.0.1:80", "localhost", "LOCALHOST:9000"):
        assert get(port, "/progress", [host])[0] == 200
    for hosts in (["evil.example"], ["127.0.0.1.evil.example"], ["0.0.0.0"], [], ["127.0.0.1", "evil.example"]):
        for path in ("/", "/progress"):
            status, _, text = get(port, path, hosts)
            assert (status, text) == (403, "This server answers to 127.0.0.1 and localhost only.\n")


def test_answers_have_a_status_and_are_kept_from_caches_frames_and_sites(port):
    refused = ("/index.html", "/progress/", "/../../etc/passwd", "/%2e%2e/etc/passwd", "/%00", "/page?<b>")
    for path in ("/", "/progress", *refused):
        status, headers, _ = get(port, path)
        assert status == (404 if path in refused else 200)
        assert {name: headers[name] for name in server.HEADERS} == server.HEADERS
        assert "Access-Control-Allow-Origin" not in headers
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert get(port, "/", method=method)[0] == 501


def test_server_listens_on_loopback_and_prints_nothing(growing, maker, capfd):
    with serving_at(live(growing[0], maker)) as port:
        listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        places = {fields[1] for fields in listening if fields[3] == "0A" and fields[1].endswith(f":{port:04X}")}
        assert places == {f"0100007F:{port:04X}"}
        with pytest.raises(UsageError, match=rf"port {port} cannot be used: .*; give another --port"):
            Server(live(growing[0], maker), port)
        assert json.loads(get(port, "/progress")[2])["planned"] == 27
    assert capfd.readouterr() == ("", "")


# The command


def test_serve_refuses_in_one_line(tmp_path):
    (tmp_path / "text.db").write_text("no database" * 100)
    for arguments, text in (
        ([tmp_path / "text.db"], "not a results database"),
        ([f"{tmp_path}/r.db@"], "names no session after the @"),
        ([f"{planned(tmp_path / 'a.db', [])}@nope"], "session 'nope' is not in"),
        (["--open", "--token"], "--open would show the token to other users"),
    ):
        result = CliRunner().invoke(main, ["serve", *map(str, arguments)])
        assert (result.exit_code, result.stderr.count("\n"), result.stdout) == (2, 1, "")
        assert text in result.stderr


@contextlib.contextmanager
def served(folder, *options):
    """Start `parabench serve results`, with a browser that prints the address that it opens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "parabench", "serve", "results", *options],
        cwd=folder,
        env=os.environ | {"BROWSER": "echo shown %s", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=signals_as_usual,  # a shell's background jobs ignore SIGINT, and so would it
    )
    try:
        yield process
    finally:
        end(process)


def test_it_says_where_it_is_and_ends_when_asked_to(tmp_path):
    with served(tmp_path, "--open") as process:
        line = process.stdout.readline()
        port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/ shows results; Ctrl-C ends it\n", line)[1])
        for told in ("The results database results does not exist yet.", "0 of 9 launches."):
            assert told in json.loads(get(port, "/progress")[2])["text"]
            (tmp_path / "results").mkdir(exist_ok=True)
            planned(tmp_path / "results" / "results.db", [])
        shown = process.stdout.readline()  # the browser's, which a loaded machine starts late
        process.send_signal(signal.SIGINT)
        text, wrong = process.communicate(timeout=GUARD_S)
    assert (process.returncode, wrong) == (0, "")
    assert (shown, text) == (f"shown http://127.0.0.1:{port}/\n", "stopped\n")


def test_serve_with_a_token_answers_only_its_address(tmp_path):
    with served(tmp_path, "--token") as process:
        pattern = r"http://127\.0\.0\.1:(\d+)(/[\w-]{43}/) shows results; Ctrl-C ends it\n"
        port, address = re.fullmatch(pattern, process.stdout.readline()).groups()
        for path in ("/", "/progress", address[:-2] + "/progress", f"/?{address[1:-1]}"):
            status, headers, text = get(int(port), path)
            assert status == 403
            assert address not in text + str(headers)
        for path, status in ((address, 200), (f"{address}progress", 200), (f"{address}other", 404)):
            assert get(int(port), path)[0] == status
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=GUARD_S)


# In a browser


def in_process(path, session):
    """Make the page without a child process."""
    return render(load(path), session)


@contextlib.contextmanager
def reading(browser, serving, monkeypatch, address=""):
    """Yield a page that follows a run, its requests, and its origin. Console messages fail the test."""
    monkeypatch.setattr(server, "OFTEN_S", 0.05)
    asked, text = [], []
    with serving_at(serving) as port:
        page = browser.new_page(viewport={"width": 1280, "height": 300})
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: text.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: text.append(f"error: {error}"))
        page.goto(f"http://127.0.0.1:{port}/{address}")
        yield page, asked, f"http://127.0.0.1:{port}/"
        page.close()
    assert text == []


def shows(page, launches):
    page.wait_for_selector(f"meta[name=parabench-live][content^='1-{launches}-']", state="attached")
    drawn(page)


class TestInABrowser:
    pytestmark = needs_chromium

    def test_page_waits_for_results_and_follows_them(self, browser, tmp_path, monkeypatch):
        with reading(browser, live(tmp_path / "r.db", in_process), monkeypatch) as (page, asked, origin):
            page.wait_for_selector("aside.live >> text=does not exist yet")
            planned(tmp_path / "r.db", [took(CASES[0], 1.0)])
            shows(page, 1)
            page.wait_for_selector("aside.live >> text=1 of 9 launches, about 8 s left.")
            with Store.open_or_create(tmp_path / "r.db") as store:
                store.append(1, took(CASES[1], 1.0))
            shows(page, 2)
            assert all(url.startswith(origin) or url.startswith("data:") for url in asked)
            assert {url.removeprefix(origin) for url in asked if url.startswith(origin)} == {"", "progress"}

    def test_page_is_replaced_only_on_request(self, browser, growing, monkeypatch):
        path, launch = growing
        with reading(browser, live(path, in_process), monkeypatch, "#tab=trust") as (page, _, _):
            shows(page, 6)
            page.evaluate("scrollTo(0, 150)")
            launch()
            page.click("aside.live >> text=Show the newer page")
            shows(page, 7)
            assert page.evaluate("[location.hash, scrollY]") == ["#tab=trust", 150]
            assert page.locator("#tab-trust").is_visible()
