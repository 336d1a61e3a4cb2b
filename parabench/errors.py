"""The one exception that means "you can mend this": it names the value and the remedy."""


class UsageError(ValueError):
    """Input that parabench cannot work with. The command line prints its text as one line and exits with 2."""
