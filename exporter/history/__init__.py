"""History on disk, or in memory: SQLite, used by one thread.

statements  what is said to SQLite: the schema, and the query
store       one database: written to, asked, kept within its limits
place       the file: whose it is, and where it goes when it is damaged
archive     the book of exporter.core kept in a store, through whatever happens to it
"""
