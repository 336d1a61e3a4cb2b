"""Measure two variants side by side: their launches are interleaved."""
