"""The questions: each file declares the cases that answer one."""
