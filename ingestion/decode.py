"""Kafka records in, bronze rows out: pure functions on DataFrames.

Every record becomes one row. What cannot be decoded or breaks a rule is a row too, with its raw
bytes, an error type and a message. A null value is a tombstone, not an error.
"""

from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ingestion.stream import Stream

DESERIALIZATION = "deserialization_error"
SCHEMA = "schema_error"
VALIDATION = "validation_error"
ERROR_TYPES = (DESERIALIZATION, SCHEMA, VALIDATION)

JSON_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "corrupt",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}


def decode(records: DataFrame, stream: Stream) -> DataFrame:
    """Rows of the bronze table, without `_ingested_at`, which the commit stamps.

    Working columns begin with an underscore; a declared column cannot, so they never clash.
    """
    rows = records.select(
        F.col("topic").alias("_kafka_topic"),
        F.col("partition").alias("_kafka_partition"),
        F.col("offset").alias("_kafka_offset"),
        F.col("timestamp").alias("_kafka_timestamp"),
        F.col("key").alias("_kafka_key"),
        F.col("value").alias("_kafka_value"),
    )
    kafka_columns = rows.columns
    return _apply_rules(_decode_json(rows, stream), stream).select(
        *kafka_columns,
        F.col("_error.type").alias("_error_type"),
        F.col("_error.message").alias("_error_message"),
        F.lit(None).cast("timestamp").alias("_resolved_at"),
        *stream.columns,
    )


def _decode_json(rows: DataFrame, stream: Stream) -> DataFrame:
    """Adds the declared columns, and `_error`, null where all of them were found."""
    text = F.col("_kafka_value").cast("string")
    declared = ", ".join(f"`{name}`: {column.type}" for name, column in stream.columns.items())
    # Spark ignores text behind the end of a record. In this wrapper it makes the JSON invalid, or
    # closes the wrapper early, so that the field behind the record is not seen.
    wrapped = F.concat(F.lit('{"record":'), text, F.lit(',"end":0}'))
    parsed = F.from_json(
        wrapped, f"struct<record: struct<{declared}>, end: int, corrupt: string>", JSON_OPTIONS
    )
    decoded = rows.withColumn("_parsed", parsed).select("*", "_parsed.record.*")
    corrupt = F.col("_parsed.corrupt").isNotNull()
    # Spark calls a record corrupt too when a field is of another type.
    is_json = F.when(corrupt, F.try_parse_json(wrapped).isNotNull()).otherwise(
        F.col("_parsed.end").isNotNull()
    )
    required = [name for name, column in stream.columns.items() if not column.optional]
    incomplete = reduce(or_, (F.col(name).isNull() for name in required), F.lit(False))
    error = (
        F.when(F.col("_kafka_value").isNull(), None)
        .when(~F.is_valid_utf8(text), _error(DESERIALIZATION, F.lit("not valid UTF-8")))
        .when(~is_json, _error(DESERIALIZATION, F.lit("not valid JSON")))
        .when(corrupt | incomplete, _error(SCHEMA, _schema_message(stream)))
    )
    return decoded.withColumn("_error", error)


def _schema_message(stream: Stream) -> Column:
    """Names the declared fields that the record does not have in their type."""
    lacking = [
        F.when(F.col(name).isNull(), F.lit(f"{name} ({column.type})"))
        for name, column in stream.columns.items()
    ]
    return F.concat(F.lit("missing or of another type: "), F.concat_ws(", ", *lacking))


def _apply_rules(decoded: DataFrame, stream: Stream) -> DataFrame:
    """A rule holds only when it is true: false and null both fail. All that failed are named."""
    holds = {name: F.coalesce(F.expr(rule), F.lit(False)) for name, rule in stream.rules.items()}
    failed = [
        F.when(~held, F.lit(f"{name} ({stream.rules[name]})")) for name, held in holds.items()
    ]
    message = F.concat(
        F.lit("broken: "),
        F.concat_ws(", ", *failed),
        F.lit("; found "),
        F.to_json(F.struct(*stream.columns)),
    )
    all_hold = reduce(and_, holds.values(), F.lit(True))
    error = F.when(F.col("_error").isNotNull(), F.col("_error")).when(
        F.col("_kafka_value").isNotNull() & ~all_hold, _error(VALIDATION, message)
    )
    return decoded.withColumn("_error", error)


def _error(kind: str, message: Column) -> Column:
    return F.struct(F.lit(kind).alias("type"), message.alias("message"))
