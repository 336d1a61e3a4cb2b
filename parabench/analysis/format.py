"""How numbers are said: sensible digits, one unit per quantity. None and NaN are "unknown", never 0."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from parabench.errors import runs as runs
from parabench.store.record import MIB, Finding

UNKNOWN = "unknown"
# Longer lines are hard to read in a terminal.
COLUMNS = 120
# What an error may take: it names all sessions of a store, but not all of a text of a megabyte.
LONGEST_LINE = 1500
# Fractions below this are rounding: what was measured agrees exactly.
EXACT = 1e-8
# What may move a terminal's cursor, colour it, ring it or turn what follows around (controls, and Unicode's marks of
# direction), and halves of characters, which no terminal can be sent.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAKS = re.compile(r"[^\S ]+")


def printable(line: str) -> str:
    """A line as a terminal may be sent it, whoever wrote what it holds: still one line, and in control of nothing.

    Spaces stay, for columns are made of them.
    """
    return _CONTROLS.sub("\ufffd", _BREAKS.sub(" ", line))


def one_line(text: object) -> str:
    """The same of a text without columns: whitespace becomes single spaces, so that none of it can look like a line of
    its own where a terminal wraps."""
    return printable(" ".join(str(text).split()))


def error_line(error: object) -> str:
    """What is wrong, in one line that a terminal can show, however long a value it names."""
    line = one_line(error)
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 3 :]}"


def in_lines(sentences: Sequence[str]) -> list[str]:
    """The sentences in one line where it has no more than COLUMNS, else one a line."""
    whole = " ".join(sentences)
    return [whole] if len(whole) <= COLUMNS else list(sentences)


def warnings(findings: Iterable[Finding]) -> list[str]:
    """Findings as lines of text, each with its advice."""
    return [line for each in findings for line in (f"warning: {each.message}", f"advice: {each.advice}")]


def known(value: float | None) -> TypeGuard[float]:
    """Whether there is a number at all."""
    return value is not None and math.isfinite(value)


def number_or_none(value: float | None) -> float | None:
    """`value` as JSON can hold it: NaN and infinity become None."""
    return float(value) if known(value) else None


def times(ratio: float) -> str:
    """A ratio: '0.41', '12.3'."""
    return f"{ratio:.2f}" if 0.1 <= ratio < 10 else digits(ratio)


def times_between(low: float, high: float) -> str:
    """Return the ends of a ratio's interval: '0.40 to 0.42', with more digits if both would read the same."""
    ends = [(times(low), times(high)), *((digits(low, n), digits(high, n)) for n in (3, 4))]
    return " to ".join(next((each for each in ends if each[0] != each[1]), ends[0]))


def digits(value: float, significant: int = 3) -> str:
    """`value` with that many significant digits, whole above that: 0.0123, 41.2, 1,234."""
    return f"{value:,.{_decimals(value, significant)}f}"


def _decimals(value: float, significant: int = 3) -> int:
    exponent = int(f"{value:.{significant - 1}e}".partition("e")[2])  # of the rounded value: 9.999 is 10.0
    return max(0, significant - 1 - exponent) if value else 0


def milliseconds(seconds: float | None) -> str:
    """A step time: '41.2 ms'."""
    return f"{digits(seconds * 1e3)} ms" if known(seconds) else UNKNOWN


def milliseconds_between(low_s: float, high_s: float) -> str:
    """The ends of an interval: '19.8 to 22.9'."""
    return f"{digits(low_s * 1e3)} to {digits(high_s * 1e3)}"


def duration(seconds: float, significant: int = 2) -> str:
    """A time as one waits for it: '0.8 s', '40 s', '12 min', '3.5 h'."""
    if seconds < 99.5:
        return f"{digits(seconds, significant)} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{digits(seconds / 3600, 2)} h"


def margin(margin_s: float, of_s: float) -> str:
    """The ± of a step time: '0.4 ms'. As many decimals as the step time has, or one digit where that shows 0;
    '<0.001 ms' where that would take more than two decimals more."""
    return f"{margin_ms(margin_s, of_s)} ms"


def margin_ms(margin_s: float, of_s: float) -> str:
    """The same without its unit."""
    return _beside(margin_s * 1e3, of_s * 1e3)


def plus_minus(margin: str) -> str:
    """A half-width that is said already, with its sign: '±0.4 ms', 'less than ±0.001 ms', 'more than ±1,000%'."""
    of = {"<": "less than ", ">": "more than "}.get(margin[:1], "")
    return f"{of}±{margin[1:] if of else margin}"


def margin_mib(margin_bytes: float, of_bytes: float) -> str:
    """The ± of memory: '3.1 MiB'."""
    return f"{_beside(margin_bytes / MIB, of_bytes / MIB)} MiB"


def margin_rate(margin: float, of: float) -> str:
    """The ± of a throughput, without its unit: '120'."""
    return rate(margin) if margin >= 100 else _beside(margin, of)


def _beside(margin: float, of: float) -> str:
    most = _decimals(of) + 2
    if not margin or _decimals(margin, 1) > most:
        return f"<{10.0**-most:.{most}f}"
    return f"{margin:,.{max(_decimals(of), _decimals(margin, 1))}f}"


def percent(fraction: float | None) -> str:
    """A share or a difference: '9%', '0.4%'; '>1,000%', '<−1,000%' and, either way, '<0.01%' where no figure says
    more."""
    return _percent(fraction, "") if known(fraction) else UNKNOWN


def _percent(fraction: float, plus: str) -> str:
    size, sign = abs(fraction) * 100, "−" if fraction < 0 else plus
    if 0 < size < 0.01:
        return "<0.01%"
    if size > 1000:
        return f"{'<' if fraction < 0 else '>'}{sign}1,000%"
    if 0 < size < 0.05:
        return f"{sign}{digits(size, 1)}%"
    return f"{sign}{size:,.0f}%" if size >= 9.95 else f"{sign}{size:.1f}%"


def within(half_width: float) -> str:
    """A half-width: '±1.3%'; bytes may agree in every launch."""
    return plus_minus(percent(half_width)) if half_width > EXACT else "no spread"


def signed(fraction: float) -> str:
    """A change, with its sign: '+9.2%', '−0.4%', '>+1,000%'; '<0.01%' is either way."""
    return _percent(fraction, "+")


def mebibytes(count: float | None) -> str:
    """Memory: '1,024 MiB'."""
    return f"{digits(count / MIB)} MiB" if known(count) else UNKNOWN


def joules(value: float | None) -> str:
    """An energy: '7.1 mJ'."""
    if not known(value):
        return UNKNOWN
    factor, prefix = next(((f, p) for f, p in ((1.0, ""), (1e-3, "m")) if abs(value) >= f), (1e-6, "µ"))
    return f"{digits(value / factor)} {prefix}J"


def scaled(largest: float) -> tuple[float, str]:
    """(factor, prefix) of the SI unit in which `largest` has one to three digits before the point: (1e9, 'G')."""
    power = min(5, max(0, math.floor(math.log10(largest) / 3))) if known(largest) and largest > 0 else 0
    return 10.0 ** (3 * power), ("", "k", "M", "G", "T", "P")[power]


def flop_rate(per_s: float) -> str:
    """Return operations per second as text: '2.50 TFLOP/s'."""
    factor, prefix = scaled(per_s)
    return f"{digits(per_s / factor)} {prefix}FLOP/s"


def gibibytes(count: float | None) -> str:
    """A machine's memory: '16 GiB'."""
    return f"{count / 1024 / MIB:,.0f} GiB" if known(count) else UNKNOWN


def unit_of(seq_len: int) -> str:
    """What throughput counts: models without sequences have a seq_len of 1, and no tokens."""
    return "tokens" if seq_len > 1 else "samples"


def rate(per_s: float | None) -> str:
    """A throughput without its unit, rounded to three digits: '12,400', '0.0512'."""
    if not known(per_s) or per_s <= 0:
        return UNKNOWN
    return digits(float(f"{per_s:.2e}"))


def throughput(per_s: float | None, unit: str = "tokens") -> str:
    """'12,400 tokens/s', or of another `unit`."""
    said = rate(per_s)
    return said if said == UNKNOWN else f"{said} {unit}/s"


def staleness(mean: float, most: float) -> str:
    """How many updates of others a gradient missed: '1.5 updates on average, 4 at most'."""
    return f"{digits(mean, 2)} updates on average, {most:.0f} at most"


def count(n: int, thing: str) -> str:
    """'1 launch', '3 launches'."""
    plural = thing + ("es" if thing.endswith(("ch", "sh", "s", "x")) else "s")
    return f"{n:,} {thing if n == 1 else plural}"


def joined(items: Iterable[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    *before, last = items
    return f"{', '.join(before)} and {last}" if before else last


def aligned(rows: Sequence[Sequence[str]], texts: int = 1) -> list[str]:
    """A table's lines, the head first: columns as wide as need be, all but the first `texts` to the right."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(n) if i < texts else cell.rjust(n) for i, (cell, n) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def kinds(names: Iterable[str], times: str = "x") -> list[str]:
    """How many there are of each: ['2 x NVIDIA H200', '1 x NVIDIA A100'], in the order in which they first appear."""
    return [f"{n} {times} {name}" for name, n in Counter(names).items()]


def or_unknown(value: object) -> str:
    """A value as text; of None that it is unknown."""
    return UNKNOWN if value is None else str(value)


def listed(items: Iterable[str], most: int = 6) -> str:
    """'a; b; c', and how many more there are beyond `most`. Semicolons, because labels hold commas."""
    items = list(items)
    shown = "; ".join(items[:most])
    return shown if len(items) <= most else f"{shown}; and {len(items) - most} more"


def when(utc: str) -> str:
    """'2026-01-31 14:05 UTC' from ISO 8601."""
    return f"{utc[:10]} {utc[11:16]} UTC" if len(utc) > 16 and utc[10] == "T" else utc


# The formats of `filled` for numbers with their units.
WITH_UNITS: dict[str, Callable[[float], str]] = {"percent": percent, "ms": milliseconds, "mib": mebibytes}


class _Template(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("#"):
            return count(int(value), format_spec[1:])
        if format_spec in WITH_UNITS:
            return WITH_UNITS[format_spec](value)
        return str(super().format_field(value, format_spec))


def filled(template: str, values: Mapping[Any, Any]) -> str:
    """Return a template such as '{label}: {n:#launch} took {mean_s:ms}' with its values.

    `#thing` counts things (`count`); the other formats are those of WITH_UNITS and of Python.
    """
    return _Template().vformat(template, (), values)
