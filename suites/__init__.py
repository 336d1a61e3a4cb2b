"""The built-in suites. Each file asks a question, and declares the configurations that answer it."""
