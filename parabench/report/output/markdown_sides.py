"""What every Markdown of two sides tells besides their numbers."""

from __future__ import annotations

from parabench.analysis.environment.diff import Difference
from parabench.analysis.session import Origin
from parabench.analysis.text import format
from parabench.report.output.markdown import Rows, text
from parabench.store.record import Finding

# Longer sentences than this are labels of a hostile length.
SENTENCE = 2000


def differing(title: str, differences: tuple[Difference, ...]) -> Rows:
    """What is not the same on both sides, as a table to unfold."""
    return Rows(
        ("", "base", "candidate"),
        [(text(each.name), text(each.base), text(each.candidate)) for each in differences],
        "differences are",
        f"{title} ({len(differences)})",
        (1, 2),
    )


def findings(doubts: tuple[Finding, ...]) -> list[str]:
    """Doubts, one a line."""
    said = [f"- {text(f'{each.message} {each.advice}', SENTENCE)}\n" for each in doubts]
    return ["**Doubts**\n\n", *said, "\n"] if said else []


def sides(origins: tuple[Origin, Origin]) -> list[str]:
    """Where the numbers of both sides are from."""
    return [
        *(
            f"- {role}: {text(each.session)}, {each.good} of {format.count(each.launches, 'launch')} ended well: "
            f"{text(each.command)}\n"
            for role, each in zip(("base", "candidate"), origins, strict=True)
        ),
        "\n",
    ]
