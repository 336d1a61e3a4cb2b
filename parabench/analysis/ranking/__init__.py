"""What is fastest here, and how sure that is."""
