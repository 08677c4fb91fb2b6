"""Kafka to bronze, and only that.

`stream` reads the declared streams, `decode` turns Kafka records into bronze rows, `bronze` makes
the table, `ledger` knows where the table stands and commits to it, `ingest` runs the streams.
"""
