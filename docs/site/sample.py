"""Run parabench for the site, which shows the output and the report: `python -m docs.site.sample`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from docs.site.repository import ROOT

# This compares three strategies within seconds.
COMMAND = (
    "parabench run quick --set strategy=ddp,fsdp,tp --set algorithm=native --set bucket_mib=default --set world_size=2 "
    "--rounds 12 --budget 0.5"
)
FOLDER = ROOT / "parabench-results" / "site"
OUTPUT = FOLDER / "output.txt"
REPORT = FOLDER / "report.html"
URI = "sample/report.html"


def measure() -> None:
    """Run the command, and keep its output. If a launch fails, exit with the exit code of the command."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    command = [str(Path(sys.executable).parent / "parabench"), *COMMAND.split()[1:], "--out", str(FOLDER)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(ended.stdout)
    if ended.returncode:
        sys.exit(ended.returncode)
    # The page does not show the folders of this machine.
    OUTPUT.write_text(ended.stdout.replace(str(FOLDER), "parabench-results"))


def run() -> str:
    """Return Markdown with the output and a link to the report, for a page one folder below the root of the site."""
    return f"""## A run of this version

These pages were built after this run, on the same machine:

```console
$ {COMMAND}
{OUTPUT.read_text()}```

[Open its report](../{URI}).
"""


if __name__ == "__main__":
    measure()
