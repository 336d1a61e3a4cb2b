"""How right predictions of more GPUs are of what others have published.

    python -m benchmarks.foresight.published [--table FILE]

Each table of `benchmarks.foresight.published_tables` is predicted from one row, in two ways: from that row alone, with
GPUs that are all alike; and with the slowest of N, where how much GPUs differ comes from one more row. Against them
stand the same rate per GPU as in the first row, and a line of the rate in log2 of the GPUs through two rows. Prints
what each says of each row, and a summary; --table writes all of it, with the sources, as Markdown.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.foresight.published_forecasts import HEAD, forecasts, line, summary
from benchmarks.foresight.published_page import page
from benchmarks.foresight.published_tables import TABLES


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.foresight.published")
    parser.add_argument("--table", type=Path)
    asked = parser.parse_args()
    found = [forecasts(table) for table in TABLES]
    for each in found:
        print(each[0].table.name)
        for row in (HEAD, *map(line, each)):
            print("  " + "  ".join(f"{cell:>22}" for cell in row))
    for said in summary([one for each in found for one in each]):
        print(said)
    if asked.table:
        asked.table.write_text(page(found))


if __name__ == "__main__":
    main()
