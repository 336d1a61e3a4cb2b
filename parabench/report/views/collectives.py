"""The page of a session of collectives: the fastest algorithm by size, bus bandwidths and fitted latencies."""

from __future__ import annotations

import shlex
from typing import Any

import pandas as pd

from parabench.analysis import format
from parabench.analysis.answer import Answer
from parabench.analysis.collectives.bus import bus_table, good_sizes, measured, one_form
from parabench.analysis.collectives.crossover import answer
from parabench.analysis.collectives.latency import fitted
from parabench.analysis.environment.facts import environment_rows
from parabench.analysis.links import check_links, link_table
from parabench.analysis.session import SessionData
from parabench.analysis.warnings.codes import all_findings
from parabench.analysis.warnings.launches import check_collectives
from parabench.plan.collective_case import size_text
from parabench.plan.collective_protocol import in_words
from parabench.report.figures.collectives import bus
from parabench.report.page import answer_page, skipped_cases
from parabench.report.sections.environment import links_section, machine_section
from parabench.report.sections.logs import logs_sections
from parabench.report.spec import DASH, WORDED, Column, Section, out_of, repetition_name, table_of
from parabench.store.record import Status

# A figure or table is about one operation and number of ranks, and one value of each of the others. Its title has those
# that differ in the session.
_QUESTION, _APART = ["op", "world_size"], ["dtype", "redop", "device", "backend", "threads"]


def render(seen: SessionData) -> str:
    """Return the page as text."""
    session, launches = seen.session, seen.numbers.drop_duplicates("launch_id")
    logs = logs_sections(launches, seen.once(_sizes))
    machine = [machine_section(session), Section("environment", "Environment", pairs=_pairs(seen))]
    sections = [
        bus_section(seen),
        *logs[:1],
        fit_section(seen),
        _sizes_section(seen),
        _failed(launches),
        _skipped(seen),
    ]
    return answer_page(
        full_answer(seen),
        [*sections, _failed(launches), _skipped(seen), *_links(seen), *(logs[1:] or machine)],
        title=session.label or session.suite,
        kicker=" · ".join(filter(None, ("parabench", session.suite, session.label, format.when(session.started_utc)))),
        question=session.question or "Which algorithm is fastest at which size?",
        trust=_trust(seen, launches, bool(logs)),
        labels=dict(zip(seen.numbers["case"], seen.numbers["label"], strict=True)),
        command=shlex.join(session.argv),
    )


def full_answer(seen: SessionData) -> Answer:
    """Return the answer with all warnings."""
    computed = [*check_collectives(seen), *check_links(link_table(seen.results, seen.session))]
    return answer(seen, all_findings(seen.results, seen.session, computed))


def conclusions(seen: SessionData) -> list[str]:
    """Return the answers and the stored warnings as lines for the terminal."""
    return [*answer(seen).sentences, *(f"warning: {message}" for message in seen.results.finding["message"])]


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
    apart = [name for name in _APART if table.loc[table[name] != "none", name].nunique() > 1]
    titles = [f"{op}, {format.count(ranks, 'rank')}" for op, ranks in table[_QUESTION].itertuples(index=False)]
    for name in apart:
        titles = [f"{title}, {name}={value}" for title, value in zip(titles, table[name], strict=True)]
    return table.assign(question=titles)


def bus_section(seen: SessionData) -> Section:
    """Return the section of bus bandwidth against size."""
    table = seen.once(_sizes)
    good = one_form(table[table["good"] > 0])
    unknown = "Bus bandwidth is unknown because the logs do not name the operation."
    return Section(
        "bus",
        "Bus bandwidth against size",
        "Bus bandwidth as nccl-tests defines it; higher is better. Bars span the slowest to the fastest launch.",
        "No launch succeeded, so nothing is drawn." if good.empty else unknown,
        panels=bus(good[good["busbw"].notna()]),
        reading="Bus bandwidth compares with the hardware's bandwidth, for any number of ranks. Calls are out of place "
        f"if torch has both forms. Timed: {in_words(seen.session.timing)}.",
    )


def _interval(name: str, factor: float = 1.0) -> Column:
    """Return the column of the ends of a 95% interval."""

    def text(row: Any) -> str:
        low, high = row[f"{name}_low"] * factor, row[f"{name}_high"] * factor
        # An interval over many orders of magnitude says that the number is unknown.
        known = format.known(high) and (low <= 0 or high / low < 1e4)
        return f"{format.digits(low)} to {format.digits(high)}" if known else DASH

    return Column("95%", name, WORDED, show=text)


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
    Column("Size", "bytes", WORDED, show=lambda row: size_text(int(row["bytes"]))),
    Column("Form", "in_place", WORDED, show=lambda row: "in place" if row["in_place"] else "out of place"),
    Column("Time, µs", "call_s", "us"),
    Column("p50, µs", "p50_s", "us"),
    Column("p95, µs", "p95_s", "us"),
    Column("p99, µs", "p99_s", "us"),
    Column("Alg GB/s", "algbw", "digits"),
    Column("Bus GB/s", "busbw", "digits"),
    Column("Spread", "spread", "percent"),
    Column("Wrong", "n_wrong", "count"),
    Column("Launches ok", "good", WORDED, show=out_of("good", "launches")),
)


def _sizes_section(seen: SessionData) -> Section:
    """Return the section with a table for each question."""
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


def _failed(launches: pd.DataFrame) -> Section:
    rows = launches[launches["status"] != Status.OK]
    return Section("failed", "Failed launches", tables=(table_of("Failed launches", _FAILED, rows, closed=False),))


def _skipped(seen: SessionData) -> Section:
    columns = (Column("Configurations", "0"), Column("Reason", "1"))
    table = table_of("Skipped configurations", columns, skipped_cases(seen.session), closed=False)
    return Section("skipped", "Skipped", tables=(table,))


def _links(seen: SessionData) -> tuple[Section, ...]:
    section = links_section(link_table(seen.results, seen.session))
    return () if section is None else (section,)


def _pairs(seen: SessionData) -> tuple[tuple[str, str], ...]:
    return tuple(environment_rows(seen.session))
