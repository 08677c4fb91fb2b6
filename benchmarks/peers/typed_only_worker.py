"""Python workers of Spark that write typed columns only, as the peers do: no bytes of records.

Headwater has no setting for that. Its dead letters, replays and verifier need the bytes.
"""

import pyarrow as pa

from ingestion import worker
from ingestion.files import FileWriter

write = FileWriter.write


def write_typed_columns(writer: FileWriter, rows: pa.Table) -> None:
    write(writer, rows.drop_columns(["_kafka_key", "_kafka_value"]))


FileWriter.write = write_typed_columns  # type: ignore[method-assign]

if __name__ == "__main__":
    worker.main()
