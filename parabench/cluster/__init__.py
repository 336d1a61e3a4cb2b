"""Run a session on several nodes: node 0 sends launches to the other nodes, over one connection each."""
