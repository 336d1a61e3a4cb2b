"""Whole pages that are no session's: of collectives, of a gate, of a comparison. A session's is `report/build.py`."""
