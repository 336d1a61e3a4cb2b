"""`parabench best`: the sweet spot."""

from __future__ import annotations

import click

from parabench.commands.options import chosen_in
from parabench.commands.output import json_text, say
from parabench.errors import UsageError


@click.command()
@click.argument("store")
@click.option("--session", help="Id or label; the newest when not given.")
@click.option(
    "--objective",
    type=click.Choice(["step_time_s", "tokens_per_s", "memory", "joules"]),
    default="step_time_s",
    show_default=True,
    help="What to rank by: step time, throughput, peak memory per rank, or energy per token.",
)
@click.option("--by", multiple=True, metavar="AXIS,...", help="Also the best for each value of these axes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/reference/best.schema.json).")
def best(store: str, session: str | None, objective: str, by: tuple[str, ...], as_json: bool) -> None:
    """Show the fastest configuration in STORE, or STORE@SESSION by id or label, and its uncertainty."""
    from parabench.analysis.session import SessionData, select_session
    from parabench.analysis.tables import LAUNCH_NUMBERS
    from parabench.store.results import load

    axes = _axes(by)
    path, session = chosen_in(store, session)
    results = load(path, LAUNCH_NUMBERS)
    chosen = select_session(results, session)
    if chosen.kind == "collectives":
        from parabench.analysis.collectives.crossover import bus_answers

        if axes or objective != "step_time_s":
            raise UsageError(
                f"{chosen.name} measured collectives, which have no --objective and no --by; "
                "give neither, or use --session to name one that trained"
            )
        from parabench.analysis.text import collectives as text

        answers = bus_answers(results, chosen.id)
        why = "succeeded" if len(results.launch[results.launch["session_id"] == chosen.id]) else "was recorded"
        nothing = f"No launch {why}, so there is no fastest algorithm."
        told = [text.to_dict(each) for each in answers]
        lines = [text.sentence(each) for each in answers] or [nothing]
    else:
        from parabench.analysis.ranking.objectives import OBJECTIVES
        from parabench.analysis.ranking.ranking import ranked
        from parabench.analysis.text import best as best_lines
        from parabench.analysis.text.ranking import to_dict

        seen = SessionData(results, chosen)
        spots = ranked(seen, OBJECTIVES[objective], axes)
        told, lines = [to_dict(each) for each in spots], best_lines.lines(seen, spots)
    if as_json:
        click.echo(json_text(told), nl=False)
    else:
        say(lines)


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
