"""The bronze table of a stream: its columns, its properties, and how it is made."""

import json
from typing import TYPE_CHECKING

from headwater.errors import HeadwaterError, StreamFileError
from headwater.kafka import begin_offsets, end_offsets, topic_id
from headwater.settings import Settings
from headwater.spark import CATALOG
from ingestion.stream import STREAMS, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_OFFSETS = "headwater.start-offsets"
TOPIC_IDS = "headwater.topic-ids"

# name, type, description: the columns that every bronze table begins with.
SYSTEM_COLUMNS = (
    ("_kafka_topic", "string", "Topic that the record came from."),
    ("_kafka_partition", "int", "Partition of the topic that the record came from."),
    ("_kafka_offset", "bigint", "Offset of the record in its partition."),
    ("_kafka_timestamp", "timestamp", "Time that Kafka holds for the record, in UTC."),
    ("_kafka_key", "binary", "Key of the record, byte for byte."),
    ("_kafka_value", "binary", "Value of the record, byte for byte; null for a tombstone."),
    (
        "_ingested_at",
        "timestamp",
        "Stamp of the commit that landed the record. One value a commit, and it grows with every "
        "commit.",
    ),
    (
        "_error_type",
        "string",
        "What was wrong with the record: deserialization_error, schema_error or "
        "validation_error. Null for a good record.",
    ),
    ("_error_message", "string", "What exactly was wrong, for a person to read."),
    ("_resolved_at", "timestamp", "When a replay decoded the failed record after all."),
)

TABLE_PROPERTIES = {
    "format-version": "2",
    # One partition value a commit would send the whole batch to one writer.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    "write.parquet.compression-codec": "zstd",
    # The ledger reads its position from these bounds; string bounds are cut short by default.
    "write.metadata.metrics.column._kafka_topic": "full",
    "write.metadata.metrics.column._kafka_value": "none",
    "write.metadata.metrics.column._kafka_key": "none",
    "write.metadata.metrics.column._error_message": "counts",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


def ensure_table(spark: "SparkSession", settings: Settings, stream: Stream) -> None:
    """Create the table before the first batch; refuse one that does not fit the stream file."""
    name = f"{CATALOG}.{stream.table}"
    if spark.catalog.tableExists(name):
        _check_columns(spark, name, stream)
        return
    columns = [
        *SYSTEM_COLUMNS,
        *((column, spec.type, spec.description) for column, spec in stream.columns.items()),
    ]
    lines = ",\n  ".join(
        f"`{column}` {kind} COMMENT {_literal(text)}" for column, kind, text in columns
    )
    properties = TABLE_PROPERTIES | {
        START_OFFSETS: json.dumps({stream.topic: _start_offsets(settings, stream)}),
        TOPIC_IDS: json.dumps({stream.topic: topic_id(settings, stream.topic)}),
    }
    pairs = ", ".join(f"{_literal(key)} = {_literal(value)}" for key, value in properties.items())
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.bronze")
    spark.sql(
        f"CREATE TABLE {name} (\n  {lines}\n) USING iceberg "
        f"PARTITIONED BY (days(_ingested_at)) COMMENT {_literal(stream.description)} "
        f"TBLPROPERTIES ({pairs})"
    )


def _start_offsets(settings: Settings, stream: Stream) -> dict[str, int]:
    """`earliest` or `latest` as offsets, settled once: a restart must not settle it anew."""
    find = begin_offsets if stream.start == "earliest" else end_offsets
    return {str(partition): offset for partition, offset in find(settings, stream.topic).items()}


def _check_columns(spark: "SparkSession", name: str, stream: Stream) -> None:
    there = {field.name: field.dataType.simpleString() for field in spark.table(name).schema}
    for column, spec in stream.columns.items():
        wanted = spec.type.replace(" ", "")
        if there.get(column) != wanted:
            raise StreamFileError(
                f"{STREAMS / stream.name}.yml declares {column} as {wanted}, but {name} has "
                + (f"it as {there[column]}" if column in there else "no such column"),
                "declare the type that the table has, or give the stream another name",
            )


def check_rules(spark: "SparkSession", stream: Stream) -> None:
    """A rule that Spark cannot read is refused at start, by name."""
    from pyspark.errors import AnalysisException, ParseException

    schema = ", ".join(f"`{name}` {column.type}" for name, column in stream.columns.items())
    empty = spark.createDataFrame([], schema)
    for name, rule in stream.rules.items():
        try:
            kind = empty.selectExpr(f"({rule})").schema[0].dataType.simpleString()
        except (AnalysisException, ParseException) as error:
            reason = str(error).splitlines()[0]
            raise _bad_rule(stream, name, reason) from error
        if kind != "boolean":
            raise _bad_rule(stream, name, f"it gives {kind}, a rule gives true or false")


def _bad_rule(stream: Stream, name: str, reason: str) -> HeadwaterError:
    return StreamFileError(
        f"{STREAMS / stream.name}.yml: the rule {name} ({stream.rules[name]}) does not work: "
        + reason,
        f"a rule is a SQL condition on the columns {', '.join(stream.columns)}",
    )


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
