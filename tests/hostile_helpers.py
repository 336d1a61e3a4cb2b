"""Stores whose every text is hostile: what an attacker, or an unlucky name, could put into any field.

`poison` finds the columns of text in the schema and the texts within JSON by itself, so that a new column is covered
without a word here. A text keeps what it said in front, equal ones stay equal, and so what belongs together still does.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_collectives
import fake_nodes
import fake_results as fake
from fake_results import step

from parabench.errors import UsageError
from parabench.plan.case import Case
from parabench.plan.collective_case import CollectiveCase
from parabench.store.record import (
    MIB,
    DeviceSample,
    Failure,
    Finding,
    HostSample,
    LinkMessage,
    LinkSample,
    Phase,
    Sample,
    Status,
)
from parabench.store.store import Store

# Everything that runs calls this.
CALL = "hacked()"
CORPUS = (
    f"<script>{CALL}</script>",
    f"</script><script>{CALL}</script>",
    f"<img src=x onerror={CALL}>",
    f"<svg/onload={CALL}>",
    f"\"' onmouseover={CALL} onfocus={CALL} autofocus tabindex=1 x=\"'",
    f"`${{{CALL}}}`",
    f"'); {CALL}; ('",
    f"<a href='javascript:{CALL}'>a link</a>",
    f"javascript:{CALL}",
    f"data:text/html,<script>{CALL}</script>",
    "<!--",
    "-->",
    "]]>",
    "<![CDATA[",
    "</title></style></textarea></noscript></template>",
    f"<iframe srcdoc='<script>parent.{CALL}</script>'></iframe>",
    "<base href='https://example.invalid/'>",
    "<link rel=stylesheet href='https://example.invalid/x.css'>",
    "<meta http-equiv=refresh content='0;url=https://example.invalid/'>",
    "<form action='https://example.invalid/'><input name=q></form>",
    "*{display:none!important} </style><style>*{display:none!important}",
    "url(https://example.invalid/x.png); } body { display: none",
    "a\u2028b\u2029c",
    "\u202egnitirw desrever\u202c",
    "\u200b\ufeff\u2066\u0301",
    "\x1b[31mred\x1b[0m\x1b]8;;https://example.invalid\x07link\x1b]8;;\x07",
    "a\x00b\x08c",
    "line\r\nline\rline\tend",
    '=HYPERLINK("https://example.invalid","x")',
    "+1+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(1)",
    "{{ 7 * 7 }} {% raw %} {# x #} ${7*7} <%= 7 %>",
    "<b><a href='https://example.invalid/'>bold</a></b><br><sub>low</sub>",
    "%{x} %{fullData.name} %{customdata} <extra></extra>",
    '", "x": [1], "',
    '\\u003cscript\\u003e \\" \\',
    "&lt;script&gt; &amp;amp; &#60;",
    "__proto__ constructor toString",
    "W" * 300,
    "ж" * 200 + "\U0001f525" * 50,
)
EVERYTHING = " ".join(CORPUS)

# Columns whose words the program acts on: there only some rows are poisoned, or nothing would be left to show.
ACTED_ON = {
    "launch.status", "sample.phase", "sample.metric", "collective.phase", "collective.op", "collective.ranks",
    "span.name", "device_sample.metric", "host_sample.metric", "digest.kind", "digest.phase", "digest.metric",
}  # fmt: skip
# Texts within JSON that the program acts on, by their name; poisoned, a session would be of no kind that there is.
NAMES_ACTED_ON = {"kind", "side"}
EVERY = 7


class Poison:
    """Gives each text a hostile form, always the same one, in turns from the corpus."""

    def __init__(self) -> None:
        self._made: dict[str, str] = {}
        self._turns = itertools.cycle(CORPUS)

    def __call__(self, text: str, *, alone: bool = False) -> str:
        """`alone`: with the whole corpus, for what has a single place."""
        if text not in self._made:
            self._made[text] = f"{text} {EVERYTHING if alone else next(self._turns)}"
        return self._made[text]

    def within(self, value: Any, name: str = "") -> Any:
        """The same of every text in JSON, and one more entry, hostile by name and value, in every object."""
        if isinstance(value, str):
            return value if name in NAMES_ACTED_ON else self(value, alone=True)
        if isinstance(value, list):
            return [self.within(each) for each in value]
        if isinstance(value, dict):
            kind = CollectiveCase if "op" in value else Case if "strategy" in value else None
            if kind is not None:
                return self.case(kind, value)
            return {key: self.within(each, key) for key, each in value.items()} | {self("key"): self("value")}
        return value

    def case(self, kind: type[Case | CollectiveCase], values: dict[str, Any]) -> dict[str, Any]:
        """A case with every text hostile that a case may have."""
        for name, value in values.items():
            if isinstance(value, str):
                with contextlib.suppress(UsageError):
                    values = kind.from_dict(values | {name: self(value, alone=True)}).to_dict()
        return values


def text_columns(db: sqlite3.Connection) -> list[tuple[str, str]]:
    """(table, column) of every text of the schema."""
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    return [
        (table, column)
        for table in tables
        for _, column, kind, *_ in db.execute(f"PRAGMA table_info({table})")
        if kind == "TEXT"
    ]


def poison(path: Path) -> None:
    """Makes every text of the store hostile. A column of text without any text is an error: it would not be tested."""
    made = Poison()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for table, column in text_columns(db):
            rows = db.execute(f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL").fetchall()
            assert rows, f"{table}.{column} has no text in this store; give it one, so that it is tested"
            few = len({text for _, text in rows}) < len(CORPUS)
            changed = [
                (hostile(made, text, few), row)
                for at, (row, text) in enumerate(rows)
                if f"{table}.{column}" not in ACTED_ON or at % EVERY == EVERY - 1
            ]
            db.executemany(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", changed)


def hostile(made: Poison, text: str, few: bool) -> str:
    """A text of a store, hostile; JSON stays JSON."""
    with contextlib.suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, (dict, list)):
            return json.dumps(made.within(value))
    return made(text, alone=few)


def trainings(path: Path, label: str = "one") -> Path:
    """A store of trainings with something in every text column, of which `poison` can make a hostile one."""
    cases = [fake.case(strategy="single", world_size=1)]
    cases += [
        fake.case(strategy=strategy, algorithm=algorithm, bucket_mib=bucket, world_size=size)
        for strategy in ("ddp", "fsdp")
        for algorithm in ("native", "ring")
        for bucket in ((1.0, 25.0) if strategy == "ddp" else (None,))
        for size in (2, 4)
    ]
    cases.append(fake.case(strategy="pp", schedule="gpipe", microbatches=4, world_size=2))
    launches = [fake.launch(cases[0], 8.0, block=-1), *fake.sweep(cases, lambda c: 8.0 / c.world_size, noise=0.02)]
    for at, one in enumerate(launches):
        one.facts |= {"bucket_bytes": [MIB], "hook": "a hook", "collectives": {"all_reduce": "Ring"}}
        if one.case.world_size > 1:
            step(one, late=0.1, ranks=f"0-{one.case.world_size - 1}", dtype="float32")
            fake_nodes.spread(one)
        one.samples.append(Sample(0, 25, "instrument", "forward_rss_bytes", 1e9))
        one.device_samples += [DeviceSample(0, 0.1 * i, "used_bytes", 1e9, None, None) for i in range(3)]
        one.device_samples += [DeviceSample(0, 0.4, "power_w", None, None, "no permission")]
        one.host_samples += [HostSample(None, 0.1 * i, "other_cpu_share", 0.1) for i in range(3)]
        one.host_samples += [HostSample(0, 0.4, "rss_bytes", None, "gone")]
        one.host_samples += [HostSample(None, 0.1, "other_cpu_share", 0.5, node=1)]
        if at % 9 == 8:
            one.status, one.samples, one.spans, one.collectives = Status.CRASHED, [], [], []
            one.failure = Failure(f"killed {at}", 0, "SIGKILL", f"Traceback {at}\n  File x")
    fake.write(
        path,
        launches,
        label=label,
        question="Why?\n\nAnd how?",
        skipped=[(cases[1], "too few cores"), (cases[2], "no such device")],
        findings=[Finding("power", "The governor is powersave.", "Change it.", cases[1].id), Finding("a", "b", "c")],
        environment=fake_nodes.environment(
            gpus=[{"name": "H200", "memory_bytes": 10**11}],
            git={"commit": "abc", "dirty": True},
            unknown_versions={"nccl": "no such library"},
            changed={1: {"cores": 4}},
        ),
        interleaved={"run": "a run", "side": "a"},
    )
    with Store.open_or_create(path) as store:
        session = store.last_session()
        assert session is not None
        link = LinkSample(0, 1, 0, 1, "cuda:0", "cuda:0", 1e-5, None, "rank 1 ended")
        store.add_links(session.id, [link], [LinkMessage(0, 1, 8, Phase.MEASURE, 2e-5)])
    return path


def collectives(path: Path) -> Path:
    """The same with a session of collectives after it, which is the one that is read."""
    trainings(path)
    cases = [
        fake_collectives.case(op, name, world_size=size)
        for op in ("all_reduce", "all_gather")
        for name in ("native", "ring", "package.module:MINE")
        for size in (2, 4)
    ]
    launches = fake_collectives.sweep(cases, lambda c, s: 1e-4 + s * 1e-9, noise=0.02)
    crash = Failure("killed", 0, "SIGKILL", "Traceback\n  File x")
    launches.append(fake_collectives.launch(cases[0], float, status=Status.CRASHED, failure=crash, block=3))
    fake_collectives.write(
        path, launches, skipped=[(cases[0], "no such thing")], findings=[Finding("a", "b", "c"), Finding("d", "e", "f")]
    )
    return path


# What no text may become: elements of the page, or links that lead out of it.
GROWN = """() => [
  ...["main img, iframe, object, embed, base, main meta, main link, main style, main form, main script, svg a",
    "[onerror], [onload], [onmouseover], [onfocus], [autofocus]"]
    .flatMap((which) => [...document.querySelectorAll(which)]).map((grown) => grown.outerHTML.slice(0, 200)),
  ...[...document.querySelectorAll("a[href]")].map((a) => a.getAttribute("href"))
    .filter((href) => !href.startsWith("#") && !href.startsWith("blob:")),
]"""
# Hovering over the first point of every trace of the figures that are seen, which makes Plotly show their texts.
HOVER = """() => {
  for (const plot of document.querySelectorAll(".js-plotly-plot")) {
    if (!plot.checkVisibility()) continue;
    plot.data.forEach((_, curveNumber) => {
      try { Plotly.Fx.hover(plot, [{ curveNumber, pointNumber: 0 }]); } catch { /* it has no such point */ }
    });
  }
}"""
TEXT = """() => {
  const all = document.body.cloneNode(true);
  all.querySelectorAll("script").forEach((script) => script.remove());
  return all.textContent;
}"""


def as_shown(text: str) -> str:
    """A text as a page's source holds it, where NUL is nothing and every line ends alike."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")


def missing(text: str) -> Iterator[str]:
    """What of the corpus the page's text does not show as it is."""
    shown = as_shown(text)
    return (each for each in CORPUS if as_shown(each) not in shown)
