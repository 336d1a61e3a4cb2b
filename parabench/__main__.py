"""`python -m parabench` is the same as the command `parabench`."""

from parabench.cli import main

if __name__ == "__main__":
    main()
