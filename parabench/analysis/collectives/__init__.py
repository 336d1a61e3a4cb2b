"""Collectives: bandwidth, cost models, and the fastest algorithm for each size."""
