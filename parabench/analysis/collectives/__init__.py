"""Single operations: bandwidth, cost models, which algorithm from where on."""
