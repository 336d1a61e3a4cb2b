"""Faults injected into whole sessions: each family tries one kind of fault many times, at places and moments by lot."""
