"""Who held what, and when: SQLite on disk or in memory, used by one thread."""
