"""Kafka to bronze, and only that. Read it in this order, and you know how a record becomes a row:

`stream` says what is declared, `supervise` keeps streams running, `run` is one run of one stream.
Spark asks `source` for batches, and its tasks do what `landing` says: `kafka` reads, `decode` makes
rows with the help of `formats` and `rules`, `files` writes them. `commit` moves the `ledger`.
"""
