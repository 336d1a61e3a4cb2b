"""Which side is fastest, as a person would say it."""

from __future__ import annotations

from collections.abc import Iterable

from parabench.analysis import words
from parabench.analysis.gate import across_words
from parabench.analysis.gate.geometric import Mean
from parabench.analysis.side_by_side.overall import Overall
from parabench.analysis.side_by_side.several import Change


def sentences(of: Overall) -> list[str]:
    """Who is fastest over all cases; how many cases are faster, slower, and not told apart; and who is not in it."""
    first = of.names[0]
    if of.best is None:
        return [_nothing(of)]
    said = [_two(of) if len(of.compared) == 2 else _many(of), _cases(of)]
    missing = [of.names[at] for at in range(1, len(of.names)) if at not in of.compared]
    if missing:
        verb = "has" if len(missing) == 1 else "have"
        said.append(f"{words.joined(missing)} {verb} no case that ended well there and on {first}.")
    return said


def _ends(mean: Mean) -> str:
    return f"95 %: {across_words.interval(mean)}"


def _nothing(of: Overall) -> str:
    first, others = of.names[0], of.names[1:]
    if any(of.changes):
        return f"No case ended well both on {first} and on {_or(others)}, so nothing can be compared."
    return f"No case of {first} is the same work as one of {_or(others)}, so there is no ratio to give."


def _or(names: Iterable[str]) -> str:
    *before, last = names
    return f"{', '.join(before)} or {last}" if before else last


def _two(of: Overall) -> str:
    """The first and one other."""
    at = of.others[0]
    first, other, mean = of.names[0], of.names[at], of.together[at - 1]
    takes = f"a step takes {across_words.times(mean.ratio or 1)} times as long as on {first} ({_over(of, mean)})"
    if mean.low is None:
        return f"On {other} {takes}; with one launch a case nobody can say whether that is chance."
    if of.equals:
        return f"{first} and {other} cannot be told apart overall: on {other} {takes}."
    faster = of.names[of.best or 0]
    return f"{faster} is faster overall: {'' if of.best == at else f'on {other} '}{takes}."


def _over(of: Overall, mean: Mean) -> str:
    cases = f"geometric mean of {words.count(of.shared, 'case')}" if of.shared > 1 else "in 1 case"
    return f"{cases}; {_ends(mean)}" if mean.low is not None else cases


def _many(of: Overall) -> str:
    """The first and several others, over the cases that all of them have."""
    assert of.best is not None
    ratios = {at: of.together[at - 1] for at in of.others}
    over = f"geometric means of the {words.count(of.shared, 'case')} that they share" if of.shared > 1 else "in 1 case"
    group = [of.names[at] for at in sorted((of.best, *of.equals))]
    if len(group) == len(of.compared):
        head = f"{words.joined(group)} cannot be told apart overall"
    elif of.equals:
        head = f"{words.joined(group)} are fastest overall and cannot be told apart"
    else:
        head = f"{group[0]} is fastest overall"
    fastest, *others = sorted(ratios.items(), key=lambda one: one[1].ratio or 1)
    told = [f"{_times(fastest[1])} as long on {of.names[fastest[0]]} as on {of.names[0]}"]
    told += [f"{_times(mean)} on {of.names[at]}" for at, mean in others]
    return f"{head}: a step takes {words.joined(told)}; {over}."


def _times(mean: Mean) -> str:
    return f"{across_words.times(mean.ratio or 1)} times"


def _cases(of: Overall) -> str:
    told = [f"{of.names[at]} is {_counts(of.changes[at - 1])}" for at in of.others]
    return f"Case by case against {of.names[0]}, {'; '.join(told)}."


def _counts(changes: dict[Change, int]) -> str:
    """'faster in 20, slower in 1, not told apart in 3'."""
    said = [f"{change} in {changes[change]:,}" for change in Change if changes.get(change)]
    return ", ".join(said)


def said(mean: Mean) -> tuple[str, str, str]:
    """A mean as a number with its unit and its interval: ('0.83', 'times', '95 %: 0.82 to 0.84')."""
    if mean.ratio is None:
        return "unknown", "", mean.reason
    return (
        across_words.times(mean.ratio),
        "times",
        _ends(mean) if mean.low is not None else f"no interval: {mean.reason}",
    )
