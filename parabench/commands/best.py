"""`parabench best`: the sweet spot."""

from __future__ import annotations

from typing import Any

import click

from parabench.commands.options import chosen_in
from parabench.commands.output import json_text, say
from parabench.errors import UsageError


@click.command()
@click.argument("store")
@click.option("--session", help="Id or label; the newest when not given.")
@click.option(
    "--objective",
    type=click.Choice(["step_s", "tokens_per_s", "memory", "joules"]),
    default="step_s",
    show_default=True,
    help="What to be best at: time of a step, throughput, peak memory of a rank, energy of a token.",
)
@click.option("--by", multiple=True, metavar="AXIS,...", help="Also the best for each value of these axes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/best.schema.json).")
def best(store: str, session: str | None, objective: str, by: tuple[str, ...], as_json: bool) -> None:
    """Say what was fastest in STORE, or STORE@SESSION by id or label, and how sure that is."""
    from parabench.analysis.collectives.crossover import bus_answers
    from parabench.analysis.session import SessionData, select_session
    from parabench.analysis.tables import LAUNCH_NUMBERS
    from parabench.store.results import load

    axes = _axes(by)
    path, session = chosen_in(store, session)
    results = load(path, LAUNCH_NUMBERS)
    chosen = select_session(results, session)
    if chosen.kind == "collectives":
        if axes or objective != "step_s":
            raise UsageError(
                f"{chosen.name} measured collectives, which have no --objective and no --by; "
                "give neither, or use --session to name one that trained"
            )
        spots = bus_answers(results, chosen.id)
        why = "ended well" if len(results.launch[results.launch["session_id"] == chosen.id]) else "was recorded"
        lines = [each.sentence() for each in spots] or [
            f"No launch {why}, so nothing can be said about what is fastest."
        ]
        _print([each.to_dict() for each in spots] if as_json else lines)
        return

    from parabench.analysis.ranking.objectives import OBJECTIVES
    from parabench.analysis.ranking.ranking import ranked
    from parabench.analysis.text import best as best_lines

    seen = SessionData(results, chosen)
    answers = ranked(seen, OBJECTIVES[objective], axes)
    _print([each.to_dict() for each in answers] if as_json else best_lines.lines(seen, answers))


def _axes(by: tuple[str, ...]) -> tuple[str, ...]:
    """The names in --by. Raises UsageError for one that is empty."""
    found: list[str] = []
    for text in by:
        names = [name.strip() for name in text.split(",")]
        if "" in names:
            place = names.index("") + 1
            raise UsageError(
                f"--by {text!r}: name {place} of {len(names)} is empty; write axes as in strategy,world_size"
            )
        found += names
    return tuple(found)


def _print(said: list[str] | list[dict[str, Any]]) -> None:
    """Lines, and dictionaries as JSON."""
    if said and isinstance(said[0], str):
        say(line for line in said if isinstance(line, str))
    else:
        click.echo(json_text(said), nl=False)
