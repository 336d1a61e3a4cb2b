"""Collectives: bandwidth, cost models, and the sizes at which another algorithm becomes the fastest."""
