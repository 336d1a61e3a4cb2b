"""The command `parabench`, and `python -m parabench`.

Ctrl-C during the imports ends the process without a word; what runs then has an answer of its own (`cli.Commands`).
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from parabench.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
