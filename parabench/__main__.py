"""Start the command line, for the command `parabench` and for `python -m parabench`.

Ctrl-C during the imports ends the process without a message. Later, `cli.Commands` handles it. After the command it is
ignored, because it would interrupt Python's cleanup.
"""

import os
import signal
import sys
from contextlib import suppress

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from parabench.errors import PACKAGES, needs_package, print_error


def main() -> None:
    """Run the command and exit with its code. If a required package is missing, print its name and exit with 2."""
    try:
        from parabench import cli

        cli.main()
    except ModuleNotFoundError as error:
        if error.name is None or error.name not in PACKAGES:
            raise
        print_error(f"parabench: this command {needs_package(error.name)}")
        sys.exit(2)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def program() -> None:
    """Run the command, and end the process quickly after it.

    Commands that print answers exit without freeing their tables, which takes a tenth of their run time, unless writing
    the output fails.
    """
    try:
        main()
    except SystemExit as ended:
        cli = sys.modules.get("parabench.cli")  # None if a package is missing
        if cli is not None and sys.argv[1:2] and sys.argv[1] in cli.ANSWERING:
            with suppress(OSError):
                for stream in filter(None, (sys.stdout, sys.stderr)):  # None if it was closed (`>&-`)
                    stream.flush()
                os._exit(ended.code if isinstance(ended.code, int) else 0)
        raise


if __name__ == "__main__":
    program()
