"""The kinds of measurement: training, single collectives, links. What a rank does, and the rows that it hands over."""
