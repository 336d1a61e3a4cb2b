"""How long a test waits for what a healthy program does in seconds.

It ends a test that would hang for ever and is no verdict on speed: a machine half as fast, whose cores are taken by
others, stays far below it.
"""

GUARD_S = 600.0
