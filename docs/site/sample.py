"""A run of the version that the site is of: `python -m docs.site.sample` makes it, and the site has its report."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from docs.site.repository import ROOT

# Three ways to train one model, in seconds.
COMMAND = (
    "parabench run quick --set strategy=ddp,fsdp,tp --set algorithm=native --set bucket_mib=default --set world_size=2 "
    "--rounds 12 --budget 0.5"
)
FOLDER = ROOT / "parabench-results" / "site"
SAID = FOLDER / "said.txt"
REPORT = FOLDER / "report.html"
URI = "sample/report.html"


def measure() -> None:
    """Run the command and keep what it says. A launch that does not succeed ends this with its exit code."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    command = [str(Path(sys.executable).parent / "parabench"), *COMMAND.split()[1:], "--out", str(FOLDER)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(ended.stdout)
    if ended.returncode:
        sys.exit(ended.returncode)
    # Where this machine keeps it is nobody's business.
    SAID.write_text(ended.stdout.replace(str(FOLDER), "parabench-results"))


def run() -> str:
    """What the run said, and where its report is, as a part of a page one folder below the root of the site."""
    return f"""## A run of this version

These pages were built after this run, on the same machine:

```console
$ {COMMAND}
{SAID.read_text()}```

[Open its report](../{URI}).
"""


if __name__ == "__main__":
    measure()
