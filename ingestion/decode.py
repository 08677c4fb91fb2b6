"""Kafka records in, bronze rows out: pure functions on DataFrames.

Every record becomes one row. What cannot be decoded or breaks a rule is a row too, with its raw
bytes, an error type and a message. A null value is a tombstone, not an error.
"""

from collections.abc import Iterable
from functools import reduce
from operator import and_, or_
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headwater.errors import StreamFileError
from ingestion.bronze import DESERIALIZATION, SCHEMA, TRANSFORMATION, VALIDATION
from ingestion.formats import (
    Schemas,
    Wanted,
    avro_problem,
    misshapen,
    names,
    nothing,
    take_apart,
    unreadable,
)
from ingestion.stream import Stream

KAFKA_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")
HEADERS_TYPE = "array<struct<key: string, value: binary>>"
KAFKA_SCHEMA = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, "
    f"headers {HEADERS_TYPE}"
)
UNDECLARED = "_undeclared"


def decode(records: DataFrame, stream: Stream, schemas: Schemas | None = None) -> DataFrame:
    """Rows of the bronze table, without `_ingested_at`, which the commit stamps.

    One working column is left for counting: `_undeclared`, the fields that no column takes.
    """
    rows = _find_columns(_kafka_rows(records, stream), stream, schemas or {})
    rows = _derive_columns(rows, stream)
    rows = _apply_rules(rows, stream)
    return rows.select(
        *(f"_kafka_{name}" for name in KAFKA_COLUMNS),
        F.col("_error.type").alias("_error_type"),
        F.col("_error.message").alias("_error_message"),
        F.lit(None).cast("timestamp").alias("_resolved_at"),
        *(["_kafka_headers"] if stream.headers else []),
        *stream.columns,
        UNDECLARED,
    )


def _kafka_rows(records: DataFrame, stream: Stream) -> DataFrame:
    names = (*KAFKA_COLUMNS, *(["headers"] if stream.headers else []))
    return records.select(*(F.col(name).alias(f"_kafka_{name}") for name in names))


def _find_columns(rows: DataFrame, stream: Stream, schemas: Schemas) -> DataFrame:
    """Adds the columns that are found in the record, and `_error`, null where all were."""
    wanted: dict[str, list[Wanted]] = {"key": [], "value": []}
    found: dict[str, list[Wanted]] = {}
    for name, column in stream.decoded.items():
        places = [source.split(".") for source in stream.sources(name)]
        found[name] = [Wanted(f"_{part}_{name}", path, column.type) for part, *path in places]
        for (part, *_), one in zip(places, found[name], strict=True):
            wanted[part].append(one)
    parts = {"key": stream.key, "value": stream.value}
    for part, format_ in parts.items():
        if format_ is not None:
            rows = take_apart(rows, part, format_, wanted[part], schemas)
    rows = rows.select(
        "*",
        *(F.coalesce(*(one.name for one in ones)).alias(name) for name, ones in found.items()),
        *(F.coalesce(*(one.misfit for one in ones)).alias(_misfit(n)) for n, ones in found.items()),
        _undeclared(stream).alias(UNDECLARED),
    )
    return rows.withColumn("_error", _record_error(stream))


def _misfit(name: str) -> str:
    return f"_misfit_{name}"


def _record_error(stream: Stream) -> Column:
    """Bytes that do not parse, fields that are missing or of another type."""
    misfits = {name: F.col(_misfit(name)).isNotNull() for name in stream.decoded}
    missing = {
        name: F.col(name).isNull() & ~misfits[name]
        for name, column in stream.decoded.items()
        if not column.optional
    }
    incomplete = F.col("_kafka_value").isNotNull() & _any(missing.values())
    wrong = [
        F.concat(F.lit(f"{name} ("), F.col(_misfit(name)), F.lit(f", not {column.type})"))
        for name, column in stream.decoded.items()
    ]
    message = F.concat_ws("; ", _listed("missing", missing), _joined("of another type", wrong))
    parts = ["key", "value"] if stream.key else ["value"]
    broken, shapeless = (
        F.coalesce(*(F.concat(F.lit(f"{part}: "), working(part)) for part in parts))
        for working in (unreadable, misshapen)
    )
    return (
        F.when(broken.isNotNull(), _error(DESERIALIZATION, broken))
        .when(shapeless.isNotNull(), _error(SCHEMA, shapeless))
        .when(_any(misfits.values()) | incomplete, _error(SCHEMA, message))
    )


def _undeclared(stream: Stream) -> Column:
    paths = [source.split(".") for name in stream.decoded for source in stream.sources(name)]
    declared = sorted({path[1] for path in paths if path[0] == "value" and len(path) > 1})
    return F.array_except(names("value"), F.array(*map(F.lit, declared)).cast("array<string>"))


def _derive_columns(rows: DataFrame, stream: Stream) -> DataFrame:
    """Adds the derived columns; null though its inputs are not is an error."""
    failed: dict[str, Column] = {}
    for name, column in stream.derived.items():
        value = _tried(rows, f"cast(({column.expression}) as {column.type})")
        inputs = [F.col(source).isNotNull() for source in references(rows, column.expression or "")]
        rows = rows.withColumn(name, F.when(F.col("_error").isNull(), value))
        if not column.optional:
            failed[name] = reduce(and_, inputs, F.col(name).isNull())
    return _add_error(rows, failed, TRANSFORMATION, "not computed", stream)


def _apply_rules(rows: DataFrame, stream: Stream) -> DataFrame:
    """A rule holds only when it is true: false and null both fail. All that failed are named."""
    is_judged = F.col("_error").isNull() & F.col("_kafka_value").isNotNull()
    verdicts = {
        name: F.when(is_judged, F.coalesce(_tried(rows, rule), F.lit(False))).otherwise(True)
        for name, rule in stream.rules.items()
    }
    rows = rows.withColumns({f"_rule_{name}": held for name, held in verdicts.items()})
    failed = {name: ~F.col(f"_rule_{name}") for name in verdicts}
    return _add_error(rows, failed, VALIDATION, "rules not met", stream)


def _add_error(
    rows: DataFrame, failed: dict[str, Column], kind: str, words: str, stream: Stream
) -> DataFrame:
    """`_error` of rows that had none and failed now, with the values that made them fail."""
    if not failed:
        return rows
    values = F.to_json(F.struct(*(name for name in stream.columns if name in rows.columns)))
    message = F.concat(_listed(words, failed), F.lit("; values: "), values)
    kept = F.when(F.col("_error").isNotNull(), F.col("_error"))
    return rows.withColumn("_error", kept.when(_any(failed.values()), _error(kind, message)))


def check_stream(spark: SparkSession, stream: Stream) -> None:
    """Refuse, by name and before the first record, what Spark or an Avro schema cannot do."""
    rows = _kafka_rows(spark.createDataFrame([], KAFKA_SCHEMA), stream)
    for name, column in stream.decoded.items():
        for part, *path in (source.split(".") for source in stream.sources(name)):
            format_ = stream.key if part == "key" else stream.value
            if problem := avro_problem(rows, format_, path, column.type):
                raise _refused(stream, f"the column {name}", problem, "correct one of the two")
    declared = {name: nothing(column.type) for name, column in stream.decoded.items()}
    rows = rows.withColumns(declared)
    for name, column in stream.derived.items():
        _check_expression(rows, stream, f"the column {name}", column.expression or "", column.type)
        rows = rows.withColumn(name, nothing(column.type))
    for name, rule in stream.rules.items():
        _check_expression(rows, stream, f"the rule {name}", rule, "boolean")


def _check_expression(rows: DataFrame, stream: Stream, what: str, text: str, kind: str) -> None:
    hint = f"it is a SQL expression on the columns {', '.join(stream.columns)}"
    try:
        found = rows.selectExpr(f"({text})").schema[0].dataType.simpleString()
        rows.selectExpr(f"cast(({text}) as {kind})")
    except PySparkException as error:
        reason = str(error).splitlines()[0]
        raise _refused(stream, what, f"{text}: {reason}", hint) from error
    if kind == "boolean" and found != kind:
        raise _refused(stream, what, f"{text}: it gives {found}, not true or false", hint)


def _refused(stream: Stream, what: str, problem: str, hint: str) -> StreamFileError:
    return StreamFileError(f"{stream.file}: {what} does not work: {problem}", hint)


def references(rows: DataFrame, expression: str) -> list[str]:
    """The columns that a SQL expression reads."""
    plan = rows.selectExpr(expression)._jdf.queryExecution().analyzed()
    found = plan.references().toSeq()
    return sorted({found.apply(index).name() for index in range(found.size())})


def _tried(rows: DataFrame, expression: str) -> Column:
    """A SQL expression that gives null where it would fail.

    In ANSI mode a bad cast or an overflow throws, and so do functions such as `xpath`: one record
    would end the batch. Spark uses this wrapper for its own `try_` functions. It must stand in a
    branch of a `when`: elsewhere Spark may take a part that two expressions share out of it.
    """
    from pyspark.sql.classic.column import Column as ClassicColumn

    jvm: Any = rows.sparkSession._jvm
    utils = jvm.org.apache.spark.sql.classic.ExpressionUtils
    parsed = utils.expression(F.expr(expression)._jc)
    return ClassicColumn(
        utils.column(jvm.org.apache.spark.sql.catalyst.expressions.TryEval(parsed))
    )


def _error(kind: str, message: Column) -> Column:
    return F.struct(F.lit(kind).alias("type"), message.alias("message"))


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(or_, conditions, F.lit(False))


def _listed(words: str, chosen: dict[str, Column]) -> Column:
    """`words: a, b` for the names whose condition is true, or null."""
    return _joined(words, [F.when(condition, F.lit(name)) for name, condition in chosen.items()])


def _joined(words: str, parts: list[Column]) -> Column:
    joined = F.concat_ws(", ", *parts)
    return F.when(joined != "", F.concat(F.lit(f"{words}: "), joined))
