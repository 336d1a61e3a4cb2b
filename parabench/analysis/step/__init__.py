"""Analyze instrumented steps: communication, stragglers, device time, timelines."""
