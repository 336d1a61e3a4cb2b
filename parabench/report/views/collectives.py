"""Make the page of a session of collectives, or of imported logs of nccl-tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from parabench import json_text
from parabench.analysis import format
from parabench.analysis.answer import Answer
from parabench.analysis.collectives.bus import bus_table, fitted, good_sizes, measured, one_form
from parabench.analysis.collectives.crossover import answer
from parabench.analysis.environment.facts import environment_rows
from parabench.analysis.links import check_links, link_table
from parabench.analysis.session import SessionData
from parabench.analysis.warnings import all_findings
from parabench.analysis.warnings.launches import check_collectives
from parabench.plan.case import UNKNOWN
from parabench.plan.collective_case import size_text
from parabench.plan.collective_protocol import in_words
from parabench.report.figures import Panel, algorithm_style, error_bars, marks, native_first, plain
from parabench.report.page import kicker, skipped_cases
from parabench.report.sections.calls import over_sizes
from parabench.report.sections.environment import links_section, machine_section
from parabench.report.spec import DASH, WORDED, Column, Section, Table, repetition_name, table_of
from parabench.report.views.answer import AnswerView
from parabench.store.record import Status
from parabench.store.results import records

# A figure or table is about one operation and number of ranks, and one value of each of these. Its title has those that
# differ in the session.
_APART = ["dtype", "redop", "device", "backend", "threads"]


def render(seen: SessionData) -> str:
    """Return the HTML of the page."""
    session, launches = seen.session, seen.numbers.drop_duplicates("launch_id")
    logs = [row | log for row in records(launches) if (log := json_text.parsed(row["facts"]).get("log"))]
    failed = table_of("Failed launches", _FAILED, launches[launches["status"] != Status.OK], closed=False)
    skipped = table_of("Skipped configurations", _SKIPPED, skipped_cases(session), closed=False)
    sections = [
        bus_section(seen),
        *([_compared_section(seen)] if logs else []),
        fit_section(seen),
        _sizes_section(seen),
        Section("failed", "Failed launches", tables=(failed,)),
        Section("skipped", "Skipped", tables=(skipped,)),
        links_section(seen),
    ]
    if logs:
        messages = "Network and connections are from NCCL's messages (NCCL_DEBUG=INFO) in the log."
        tests = table_of("Tests in the logs", _LOGS, logs, closed=False)
        sections.append(Section("logs", "How each log was made", messages, tables=(tests,)))
    else:
        environment = Section("environment", "Environment", pairs=tuple(environment_rows(session)))
        sections += [machine_section(session), environment]
    return AnswerView(
        session.question or "Which algorithm is fastest at which size?",
        session.label or session.suite,
        full_answer(seen),
        [section for section in sections if section],
        session.argv,
        kicker(session),
        trust=_trust(seen, launches, bool(logs)),
        labels=dict(zip(seen.numbers["case"], seen.numbers["label"], strict=True)),
    ).html()


def full_answer(seen: SessionData) -> Answer:
    """Return the answer of `parabench collectives` with the warnings of the whole session."""
    computed = [*check_collectives(seen), *check_links(link_table(seen.results, seen.session))]
    return answer(seen, all_findings(seen.results, seen.session, computed))


def _trust(seen: SessionData, launches: pd.DataFrame, logged: bool) -> list[str]:
    """Return sentences about the launches and the correctness of their results."""
    good, checked = int((launches["status"] == Status.OK).sum()), seen.once(_sizes)["n_wrong"]
    n_cases, repetitions = launches["case"].nunique(), launches["repetition"].nunique()
    counts = f"{format.count(n_cases, 'configuration')}, {format.count(repetitions, 'repetition')}"
    sentences = [
        f"parabench did not run {'these' if len(launches) > 1 else 'this'} {format.count(len(launches), 'test')}."
        if logged
        else f"{good} of {format.count(len(launches), 'launch')} succeeded ({counts})."
    ]
    if wrong := int(checked.sum()):
        sentences.append(f"{wrong} elements are wrong.")
    elif checked.notna().any():
        sentences.append("All checked elements are correct.")
    if unchecked := int(checked.isna().sum()):
        sentences.append(f"{format.count(unchecked, 'row')} in the tables below: not checked.")
    if seen.session.finished_utc is None:
        planned = seen.session.launches_planned
        sentences.append(f"The session is not finished: {len(launches)} of {planned} planned launches ran.")
    return sentences


# ---- sections


def _sizes(seen: SessionData) -> pd.DataFrame:
    """Return `bus_table` with `question`, such as 'all_reduce, 4 ranks'."""
    table = bus_table(measured(seen.numbers))
    question = table["op"] + ", " + table["world_size"].map(lambda n: format.count(n, "rank"))
    for name in _APART:
        if table.loc[table[name] != "none", name].nunique() > 1:
            question += f", {name}=" + table[name].astype(str)
    return table.assign(question=question)


def bus_section(seen: SessionData) -> Section:
    """Return the section of bus bandwidth against size."""
    table = seen.once(_sizes)
    good = one_form(table[table["good"] > 0])
    drawn = good[good["busbw"].notna()].groupby("question", sort=False)
    unknown = "Bus bandwidth is unknown because the logs do not name the operation."
    return Section(
        "bus",
        "Bus bandwidth against size",
        "Bus bandwidth as nccl-tests defines it; higher is better. Bars span the slowest to the fastest launch.",
        "No launch succeeded, so nothing is drawn." if good.empty else unknown,
        panels=[_bus_panel(str(title), rows) for title, rows in drawn],
        reading="Bus bandwidth compares with the hardware's bandwidth, for any number of ranks. Calls are out of place "
        f"if torch has both forms. Timed: {in_words(seen.session.timing)}.",
    )


def _bus_panel(title: str, sizes: pd.DataFrame) -> Panel:
    """Return the figure of one question, with a line for each algorithm."""
    traces = []
    for name, rows in sorted(sizes.groupby("algorithm"), key=lambda each: native_first(str(each[0]))):
        rows, style = rows.sort_values("bytes", kind="stable"), algorithm_style(str(name))
        low, high = (rows["busbw"] * rows["call_s"] / rows[end] for end in ("high_s", "low_s"))
        hovers = [
            f"<b>{plain(str(name))}</b>, {size_text(size)}<br>{format.digits(rate)} GB/s "
            f"({format.digits(least)} to {format.digits(most)})"
            for size, rate, least, most in zip(rows["bytes"], rows["busbw"], low, high, strict=True)
        ]
        marker = {"color": style.color, "size": 8, "symbol": style.symbol}
        more = {"mode": "lines+markers", "line": style.line, "error_y": error_bars(rows["busbw"], low, high)}
        traces.append(marks(rows["bytes"], rows["busbw"], plain(str(name)), hovers, marker, **more))
    return over_sizes(title, traces, 420)


def _interval(name: str, factor: float = 1.0) -> Column:
    """Return the column of the 95% interval of the quantity `name`."""

    def text(row: Any) -> str:
        low, high = row[f"{name}_low"] * factor, row[f"{name}_high"] * factor
        # An interval over many orders of magnitude says that the number is unknown.
        known = format.known(high) and (low <= 0 or high / low < 1e4)
        return f"{format.digits(low)} to {format.digits(high)}" if known else DASH

    return Column("95%", text, WORDED)


_FIT = (
    Column("Configuration", "label"),
    Column("Latency, µs", "latency_s", "us"),
    _interval("latency_s", 1e6),
    Column("Bus GB/s", "busbw", "digits"),
    _interval("busbw"),
    Column("Error", "error", "percent"),
)


def fit_section(seen: SessionData) -> Section:
    """Return the section of the fitted latency and bandwidth."""
    rows = fitted(good_sizes(measured(seen.numbers)))
    return Section(
        "fit",
        "Latency and bandwidth",
        "The time of S bytes is fitted as a + S b. Latency is a; the bus bandwidth of large buffers follows from b.",
        tables=(table_of("Latency and bandwidth", _FIT, rows, closed=False),),
        reading="Intervals are 95% confidence intervals over launches. Error is the typical distance of a time from "
        "the line. If it is large, the algorithm does not follow the line.",
    )


_SIZES = (
    Column("Configuration", "label"),
    Column("Size", lambda row: size_text(int(row["bytes"])), WORDED),
    Column("Form", lambda row: "in place" if row["in_place"] else "out of place", WORDED),
    Column("Time, µs", "call_s", "us"),
    Column("p50, µs", "p50_s", "us"),
    Column("p95, µs", "p95_s", "us"),
    Column("p99, µs", "p99_s", "us"),
    Column("Alg GB/s", "algbw", "digits"),
    Column("Bus GB/s", "busbw", "digits"),
    Column("Spread", "spread", "percent"),
    Column("Wrong", "n_wrong", "count"),
    Column("Launches ok", lambda row: f"{row['good']:,.0f} of {row['launches']:,.0f}", WORDED),
)


def _sizes_section(seen: SessionData) -> Section:
    """Return the section with a table of all sizes for each question."""
    table, timing = seen.once(_sizes), in_words(seen.session.timing)
    columns = [each for each in _SIZES if each.title[0] != "p" or table["p50_s"].notna().any()]
    statistics = " or ".join(sorted(set(table["statistic"])))
    return Section(
        "cases",
        "Every size",
        f"Timed: {timing}. Time is per call; spread is the slowest launch over the fastest.",
        "No size was measured.",
        tuple(table_of(str(title), columns, rows) for title, rows in table.groupby("question", sort=False)),
        reading=f"A launch gives one number: the {statistics} of its calls, each on its slowest rank. (Logs of "
        "nccl-tests have a mean over ranks, option -a.) Numbers are averaged over launches. Percentiles are over the "
        "calls or batches of a launch. Wrong elements are counted over all ranks and launches.",
    )


_FAILED = (
    Column("Configuration", "label"),
    Column("Repetition", lambda row: repetition_name(row["repetition"])),
    Column("Status", "status"),
    Column("Error", "error"),
)
_SKIPPED = (Column("Configurations", 0), Column("Reason", 1))


# ---- logs of nccl-tests

# More columns do not fit on a page.
_MOST_LOGS = 6
_LOGS = (
    Column("Test", "label"),
    Column("File", "file"),
    Column("Hosts", lambda row: format.listed(row["hosts"]) or UNKNOWN),
    Column("GPUs", lambda row: format.listed(row["gpus"]) or UNKNOWN),
    Column("NCCL", lambda row: row["version"] or UNKNOWN),
    Column("Network", lambda row: row["network"] or UNKNOWN),
    Column("Connections", lambda row: ", ".join(f"{n} {name}" for name, n in row["transports"].items()) or UNKNOWN),
)


def _compared_section(seen: SessionData) -> Section:
    sizes = seen.once(_sizes)
    return Section(
        "compared",
        "Logs next to each other",
        "Bus bandwidth in GB/s by size, for tests with the same operation and ranks. If the operation is unknown, it "
        "is the algorithm bandwidth.",
        "No two tests have the same operation, ranks, type and reduction.",
        tuple(_side_by_side(one_form(sizes[sizes["good"] > 0]))),
        reading="Out of place, if the logs have it. Ratio is the time of the second log over the first.",
    )


def _side_by_side(sizes: pd.DataFrame) -> Iterator[Table]:
    for title, rows in sizes.groupby("question", sort=False):
        names = list(rows["algorithm"].unique())
        if len(names) < 2:
            continue
        number = "algbw" if rows["op"].iloc[0] == UNKNOWN else "busbw"
        wide = rows.pivot_table([number, "call_s"], "bytes", "algorithm")
        cells = wide[number].assign(bytes=wide.index)
        columns = [
            Column("Size", lambda row: size_text(int(row["bytes"]))),
            *(Column(name, name, "digits") for name in names[:_MOST_LOGS]),
        ]
        if len(names) == 2:
            cells["ratio"] = wide["call_s"][names[1]] / wide["call_s"][names[0]]
            columns.append(Column("Ratio", "ratio", "ratio"))
        more = f" The first {_MOST_LOGS} of {len(names):,} logs are listed." * (len(names) > _MOST_LOGS)
        yield table_of(str(title), columns, cells, closed=False, note=f"{title}.{more}")
