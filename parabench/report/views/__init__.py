"""Pages of collectives, gates, comparisons and imported traces. `report.build` makes the report of a training run."""
