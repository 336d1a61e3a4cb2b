"""The command `parabench`, and `python -m parabench`.

Ctrl-C during the imports ends the process without a word; what runs then has an answer of its own (`cli.Commands`).
When the command has ended it is ignored: what is left to do at exit takes a moment, and would tell it as a fault.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from parabench import cli


def main() -> None:
    """Run the command; ends the process with its exit code."""
    try:
        cli.main()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
