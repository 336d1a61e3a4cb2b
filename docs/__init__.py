"""The pages about parabench; what draws their pictures is in `drawing`."""
