"""Format numbers, quantities and lists as text. None and NaN are "unknown", never 0."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from parabench.errors import runs as runs
from parabench.store.record import MIB, Finding

UNKNOWN = "unknown"
# Longer lines are hard to read in a terminal.
COLUMNS = 120
# The longest error: it names all sessions of a store, but not a whole text of a megabyte.
LONGEST_LINE = 1500
# Fractions below this are rounding: the measurements agree exactly.
EXACT = 1e-8
# Characters that control a terminal (cursor, color, bell, direction of text), and halves of characters, which no
# terminal can receive.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAKS = re.compile(r"[^\S ]+")


# ---- lines


def printable(line: str) -> str:
    """Return a line without characters that control a terminal. Spaces stay, because columns are made of them."""
    return _CONTROLS.sub("\ufffd", _BREAKS.sub(" ", line))


def one_line(text: object) -> str:
    """Return a text without line breaks and control characters, and with single spaces."""
    return printable(" ".join(str(text).split()))


def error_line(error: object) -> str:
    """Return an error as one printable line; a long value is cut in the middle."""
    line = one_line(error)
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 3 :]}"


def in_lines(sentences: Sequence[str]) -> list[str]:
    """Return the sentences in one line if it has at most COLUMNS characters, otherwise one per line."""
    whole = " ".join(sentences)
    return [whole] if len(whole) <= COLUMNS else list(sentences)


def warnings(findings: Iterable[Finding]) -> list[str]:
    """Return two lines for each warning: its message and its advice."""
    return [line for each in findings for line in (f"warning: {each.message}", f"advice: {each.advice}")]


def aligned(rows: Sequence[Sequence[str]], texts: int = 1) -> list[str]:
    """Return a table's lines, the head first. All columns but the first `texts` are aligned to the right."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (
        [cell.ljust(n) if i < texts else cell.rjust(n) for i, (cell, n) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    )
    return ["  ".join(row).rstrip() for row in padded]


# ---- numbers


def known(value: float | None) -> TypeGuard[float]:
    """Return whether there is a finite number."""
    return value is not None and math.isfinite(value)


def number_or_none(value: float | None) -> float | None:
    """Return `value` as JSON can hold it: NaN and infinity become None."""
    return float(value) if known(value) else None


def cell(value: Any) -> Any:
    """Return a value as JSON can hold it: NaN and infinity become None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def digits(value: float, significant: int = 3) -> str:
    """Return `value` with this many significant digits, but at least all digits of an integer: 0.0123, 41.2, 1,234."""
    return f"{value:,.{_decimals(value, significant)}f}"


def _decimals(value: float, significant: int = 3) -> int:
    """Return the number of decimals that shows this many significant digits."""
    exponent = int(f"{value:.{significant - 1}e}".partition("e")[2])  # after rounding: 9.999 is 10.0
    return max(0, significant - 1 - exponent) if value else 0


def times(ratio: float) -> str:
    """Return a ratio: '0.41', '12.3'."""
    return f"{ratio:.2f}" if 0.1 <= ratio < 10 else digits(ratio)


def times_between(low: float, high: float) -> str:
    """Return the ends of a ratio's interval: '0.40 to 0.42', with more digits if both would read the same."""
    ends = [(times(low), times(high)), *((digits(low, n), digits(high, n)) for n in (3, 4))]
    return " to ".join(next((each for each in ends if each[0] != each[1]), ends[0]))


def percent(fraction: float | None, plus: str = "") -> str:
    """Return a share or a difference: '9%', '0.4%'; '>1,000%', '<−1,000%', and '<0.01%' for both signs."""
    if not known(fraction):
        return UNKNOWN
    size, sign = abs(fraction) * 100, "−" if fraction < 0 else plus
    if 0 < size < 0.01:
        return "<0.01%"
    if size > 1000:
        return f"{'<' if fraction < 0 else '>'}{sign}1,000%"
    if 0 < size < 0.05:
        return f"{sign}{digits(size, 1)}%"
    return f"{sign}{size:,.0f}%" if size >= 9.95 else f"{sign}{size:.1f}%"


def signed(fraction: float) -> str:
    """Return a change with its sign: '+9.2%', '−0.4%', '>+1,000%'."""
    return percent(fraction, "+")


def count(n: int, thing: str) -> str:
    """Return '1 launch', '3 launches'."""
    plural = thing + ("es" if thing.endswith(("ch", "sh", "s", "x")) else "s")
    return f"{n:,} {thing if n == 1 else plural}"


# ---- quantities


def milliseconds(seconds: float | None) -> str:
    """Return a step time: '41.2 ms'."""
    return f"{digits(seconds * 1e3)} ms" if known(seconds) else UNKNOWN


def milliseconds_between(low_s: float, high_s: float) -> str:
    """Return the ends of an interval: '19.8 to 22.9'."""
    return f"{digits(low_s * 1e3)} to {digits(high_s * 1e3)}"


def duration(seconds: float, significant: int = 2) -> str:
    """Return a duration in seconds, minutes or hours: '0.8 s', '40 s', '12 min', '3.5 h'."""
    if seconds < 99.5:
        return f"{digits(seconds, significant)} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{digits(seconds / 3600, 2)} h"


def mebibytes(count: float | None) -> str:
    """Return memory: '1,024 MiB'."""
    return f"{digits(count / MIB)} MiB" if known(count) else UNKNOWN


def gibibytes(count: float | None) -> str:
    """Return a machine's memory: '16 GiB'."""
    return f"{count / 1024 / MIB:,.0f} GiB" if known(count) else UNKNOWN


def joules(value: float | None) -> str:
    """Return an energy: '7.1 mJ'."""
    if not known(value):
        return UNKNOWN
    factor, prefix = next(((f, p) for f, p in ((1.0, ""), (1e-3, "m")) if abs(value) >= f), (1e-6, "µ"))
    return f"{digits(value / factor)} {prefix}J"


def scaled(largest: float) -> tuple[float, str]:
    """Return (factor, prefix) of the SI unit with one to three digits of `largest` before the point: (1e9, 'G')."""
    power = min(5, max(0, math.floor(math.log10(largest) / 3))) if known(largest) and largest > 0 else 0
    return 10.0 ** (3 * power), ("", "k", "M", "G", "T", "P")[power]


def flop_rate(per_s: float) -> str:
    """Return operations per second: '2.50 TFLOP/s'."""
    factor, prefix = scaled(per_s)
    return f"{digits(per_s / factor)} {prefix}FLOP/s"


def unit_of(seq_len: int) -> str:
    """Return the unit that throughput counts: models without sequences have a seq_len of 1, and no tokens."""
    return "tokens" if seq_len > 1 else "samples"


def rate(per_s: float | None) -> str:
    """Return a throughput without its unit, rounded to three digits: '12,400', '0.0512'."""
    return digits(float(f"{per_s:.2e}")) if known(per_s) and per_s > 0 else UNKNOWN


def throughput(per_s: float | None, unit: str = "tokens") -> str:
    """Return '12,400 tokens/s', or of another `unit`."""
    text = rate(per_s)
    return text if text == UNKNOWN else f"{text} {unit}/s"


def staleness(mean: float, most: float) -> str:
    """Return how many updates of others a gradient missed: '1.5 updates on average, 4 at most'."""
    return f"{digits(mean, 2)} updates on average, {most:.0f} at most"


# ---- half-widths of intervals


def _margin(margin: float, of: float) -> str:
    """Return the half-width of a value `of` as text, with the decimals of the value.

    If that shows 0, it has one significant digit. If that needs more than two additional decimals, it is '<0.001'.
    """
    most = _decimals(of) + 2
    if not margin or _decimals(margin, 1) > most:
        return f"<{10.0**-most:.{most}f}"
    return f"{margin:,.{max(_decimals(of), _decimals(margin, 1))}f}"


def margin_ms(margin_s: float, of_s: float) -> str:
    """Return the ± of a step time in ms, without the unit: '0.4'."""
    return _margin(margin_s * 1e3, of_s * 1e3)


def margin(margin_s: float, of_s: float) -> str:
    """Return the ± of a step time: '0.4 ms'."""
    return f"{margin_ms(margin_s, of_s)} ms"


def margin_mib(margin_bytes: float, of_bytes: float) -> str:
    """Return the ± of memory: '3.1 MiB'."""
    return f"{_margin(margin_bytes / MIB, of_bytes / MIB)} MiB"


def margin_rate(margin: float, of: float) -> str:
    """Return the ± of a throughput, without its unit: '120'."""
    return rate(margin) if margin >= 100 else _margin(margin, of)


def plus_minus(margin: str) -> str:
    """Return the text of a half-width with its sign: '±0.4 ms', 'less than ±0.001 ms', 'more than ±1,000%'."""
    of = {"<": "less than ", ">": "more than "}.get(margin[:1], "")
    return f"{of}±{margin[1:] if of else margin}"


def within(half_width: float) -> str:
    """Return a half-width: '±1.3%', or 'no spread', as bytes may agree in every launch."""
    return plus_minus(percent(half_width)) if half_width > EXACT else "no spread"


# ---- lists, and texts of values


def joined(items: Iterable[str]) -> str:
    """Return 'a', 'a and b', 'a, b and c'."""
    *before, last = items
    return f"{', '.join(before)} and {last}" if before else last


def listed(items: Iterable[str], most: int = 6) -> str:
    """Return 'a; b; c', and the number of items beyond `most`. Semicolons, because labels contain commas."""
    items = list(items)
    shown = "; ".join(items[:most])
    return shown if len(items) <= most else f"{shown}; and {len(items) - most} more"


def kinds(names: Iterable[str], times: str = "x") -> list[str]:
    """Return the number of each name: ['2 x NVIDIA H200', '1 x NVIDIA A100'], in the order of first appearance."""
    return [f"{n} {times} {name}" for name, n in Counter(names).items()]


def or_unknown(value: object) -> str:
    """Return a value as text; "unknown" for None."""
    return UNKNOWN if value is None else str(value)


def when(utc: str) -> str:
    """Return '2026-01-31 14:05 UTC' from ISO 8601."""
    return f"{utc[:10]} {utc[11:16]} UTC" if len(utc) > 16 and utc[10] == "T" else utc


class _Template(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("#"):
            return count(int(value), format_spec[1:])
        if format_spec in ("percent", "ms"):
            return percent(value) if format_spec == "percent" else milliseconds(value)
        return str(super().format_field(value, format_spec))


def filled(template: str, values: Mapping[Any, Any]) -> str:
    """Return a template such as '{label}: {n:#launch} took {mean_s:ms}' with its values.

    `#thing` counts things (`count`), and `percent` and `ms` add their units.
    """
    return _Template().vformat(template, (), values)
