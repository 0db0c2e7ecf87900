"""History on disk, or in memory: SQLite, used by one thread.

statements  what is said to SQLite: the schema, and the query
codec       rows as SQLite's values, and back
store       one database: written to, asked, kept within its limits
place       the file: whose it is, and where it goes when it is damaged
pruning     keeping a store within its limits
answering   what is answered to a question, and what is not known of it
archive     the book of exporter.core kept in a store, through whatever happens to it
"""
