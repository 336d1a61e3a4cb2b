"""The command `parabench`, and `python -m parabench`.

Ctrl-C during the imports ends the process without a word; what runs then has an answer of its own (`cli.Commands`).
When the command has ended it is ignored: what is left to do at exit takes a moment, and would tell it as a fault.
"""

import os
import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from parabench.errors import PACKAGES, needs_package, print_error


def main() -> None:
    """Run the command and exit with its code; a checkout that is not installed may lack a package."""
    try:
        from parabench import cli

        cli.main()
    except SystemExit as ended:
        if sys.argv[1:2] and sys.argv[1] in cli.ANSWERING:
            _leave(ended.code)
        raise
    except ModuleNotFoundError as error:
        if error.name is None or error.name not in PACKAGES:
            raise
        print_error(f"parabench: this command {needs_package(error.name)}")
        sys.exit(2)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave(code: object) -> None:
    """End the process at once, if its output is written: freeing all tables would take a tenth of an answer's time."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return
    os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
