"""Sessions inside a group of processes that somebody else started: torchrun, mpirun, srun, Ray. Rank 0 leads.

torch elastic leads only what it has started itself.
"""
