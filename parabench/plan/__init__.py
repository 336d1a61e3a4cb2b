"""What will be measured, before anything starts. Free of torch."""
