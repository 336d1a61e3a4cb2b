"""What lies between the ranks of a session, measured before its first launch: latency and bandwidth of each link."""
