"""Run one launch: start a process for each rank, collect the results, and find the first cause of a failure."""
