"""What ends a command early and is not a fault of parabench: input that can be mended, and a node that is gone."""


class NodeGone(Exception):
    """A node of the session is lost and did not come back in time: the session cannot go on."""


class UsageError(ValueError):
    """Input that parabench cannot work with. The command line prints its text as one line and exits with 2."""
