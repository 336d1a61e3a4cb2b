"""The store: what is recorded, as tables of SQLite, and how it is read."""
