"""Sessions on several nodes: one driver a node, which agree through the rendezvous store of node 0."""
