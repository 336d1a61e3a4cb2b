"""`parabench report`: the page of a session, or of several beside each other."""

from __future__ import annotations

from pathlib import Path

import click

from parabench.commands import completion
from parabench.commands.options import DEFAULT_OUT
from parabench.commands.output import show
from parabench.errors import UsageError

# What `report` and `serve` have in common.
template_option = click.option(
    "--template",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder of templates, styles and scripts that stand for parabench's own (docs/how-to/report.md).",
)


@click.command()
@click.argument("stores", nargs=-1, metavar="[STORE]...", shell_complete=completion.stores)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True)
@template_option
@click.option("--open", "opened", is_flag=True, help="Open it in the browser.")
@click.option(
    "--copy-templates",
    "copies",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write parabench's own templates there, to change them; no report.",
)
def report(
    stores: tuple[str, ...],
    output: Path,
    template: Path | None,
    opened: bool,
    copies: Path | None,
) -> None:
    """Write the HTML report of STORE, or STORE@SESSION by id or label; of two or more, one page that compares them.

    STORE is parabench-results when not given.
    """
    if copies is not None:
        _copy(copies, stores)
        return
    if output.is_dir():
        raise UsageError(
            f"{output} cannot be written: it is a folder; give -o a file, such as {output / 'report.html'}"
        )
    from parabench.report.assets import check_folder
    from parabench.store.store import split

    chosen = [split(store) for store in stores or (str(DEFAULT_OUT),)]
    if template is not None:
        check_folder(template)
    if len(chosen) > 1:
        from parabench.report.views.comparison import write_comparison

        click.echo(write_comparison(chosen, output, template))
    else:
        from parabench.report.build import write_report
        from parabench.store.results import load

        ((path, which),) = chosen
        click.echo(write_report(load(path), output, which, template))
    if opened:
        show(output.resolve().as_uri(), str(output))


def _copy(folder: Path, stores: tuple[str, ...]) -> None:
    if stores:
        raise UsageError(f"--copy-templates writes no report; give it without {stores[0]}")
    from parabench.report.assets import copy_to

    copy_to(folder)
    click.echo(folder)
