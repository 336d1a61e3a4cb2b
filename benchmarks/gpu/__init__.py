"""Conformance checks of the GPU path on a machine with an NVIDIA GPU.

    make gpu
    python -m benchmarks.gpu [--budget SECONDS] [--only NAME,...] [--json FILE] [--list] [--rehearse]

Checks run in child processes, so that a crash or a hang fails one check only. The Python that runs them needs torch and
what measuring needs, not plotly. The exit code is 0 if every check that ran passed, 1 if one failed, and 2 with the
reason if there is no GPU.

`--rehearse` runs on the CPU every check whose arithmetic can run there. It finds mistakes in the checks without a GPU.
"""
