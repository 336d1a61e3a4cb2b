"""Sessions inside a group of processes that somebody else started: torchrun, mpirun, srun, Ray. Rank 0 leads."""
