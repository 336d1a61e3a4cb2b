"""Whole pages, one module each: a session, collectives, a gate, a comparison, history."""
