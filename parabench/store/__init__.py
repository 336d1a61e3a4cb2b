"""The results database: records, their SQLite tables, writing (`store`) and reading (`results`)."""
