"""What a step would take that nobody has measured: from the parts of steps that were."""
