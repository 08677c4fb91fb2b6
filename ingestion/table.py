"""The bronze table of a stream: its columns, its properties, and how it is made and changed.

All of it goes through pyiceberg: no Spark is needed, and no name of a stream file reaches SQL.
"""

import json
import re
from typing import NamedTuple

from pyiceberg import types as I
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from pyiceberg.types import IcebergType, NestedField

from ingestion.catalog import ensure_namespaces, open_catalog
from ingestion.errors import ERASED, ERROR_TYPES, HeadwaterError, StreamFileError
from ingestion.history import HISTORY, History
from ingestion.ledger import needed_metrics
from ingestion.origin import origin
from ingestion.settings import Settings
from ingestion.stream import Stream


class ColumnSpec(NamedTuple):
    name: str
    type: str
    description: str


# The columns that every bronze table begins with.
SYSTEM_COLUMNS = (
    ColumnSpec("_kafka_topic", "string", "Topic that the record came from."),
    ColumnSpec("_kafka_partition", "int", "Partition of the topic that the record came from."),
    ColumnSpec("_kafka_offset", "bigint", "Offset of the record in its partition."),
    ColumnSpec("_kafka_timestamp", "timestamp", "Time that Kafka holds for the record, in UTC."),
    ColumnSpec("_kafka_key", "binary", "Key of the record, byte for byte."),
    ColumnSpec(
        "_kafka_value", "binary", "Value of the record, byte for byte; null for a tombstone."
    ),
    ColumnSpec(
        "_ingested_at",
        "timestamp",
        "Stamp of the commit that wrote the row: the one that landed the record, or the replay "
        "that decoded it again. One value a commit, and it grows with every commit.",
    ),
    ColumnSpec(
        "_error_type",
        "string",
        f"What was wrong with the record: {', '.join(ERROR_TYPES[:-1])} or {ERROR_TYPES[-1]}. "
        f"Null for a good record; {ERASED} where `headwater forget` emptied the row.",
    ),
    ColumnSpec("_error_message", "string", "What exactly was wrong, for a person to read."),
    ColumnSpec("_resolved_at", "timestamp", "When a replay decoded the failed record after all."),
)
HEADERS = ColumnSpec("_kafka_headers", "headers", "Headers of the record, in their order.")

# What `headwater maintain` reads from the table, since dbt does not see the stream files.
MAINTENANCE = "headwater.maintenance"
RETENTION = "headwater.retention"

FIXED_PROPERTIES = {
    "format-version": "2",
    **needed_metrics(),
    "write.metadata.metrics.column._error_type": "full",
    "write.metadata.metrics.column._resolved_at": "full",
    "write.metadata.metrics.column._kafka_value": "none",
    "write.metadata.metrics.column._kafka_key": "none",
    "write.metadata.metrics.column._error_message": "counts",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


def table_columns(stream: Stream) -> list[ColumnSpec]:
    return [
        *SYSTEM_COLUMNS,
        *([HEADERS] if stream.headers else []),
        *(
            ColumnSpec(name, column.type, column.description)
            for name, column in stream.columns.items()
        ),
    ]


def table_properties(stream: Stream) -> dict[str, str]:
    options = stream.table_options
    return FIXED_PROPERTIES | {
        "comment": stream.description,
        "write.target-file-size-bytes": str(options.target_file_mb * 2**20),
        "write.parquet.row-group-size-bytes": str(options.row_group_mb * 2**20),
        "write.parquet.page-size-bytes": str(options.page_mb * 2**20),
        "write.parquet.compression-codec": options.compression,
        "commit.retry.num-retries": str(options.commit_retries),
        "commit.retry.min-wait-ms": str(options.commit_retry_wait_ms),
        MAINTENANCE: json.dumps(stream.maintenance.model_dump(exclude_none=True)),
        HISTORY: _history(stream).to_json(),
        RETENTION: json.dumps(stream.retention.model_dump() if stream.retention else {}),
        **options.properties,
    }


def _history(stream: Stream) -> History:
    declared = {
        "every_commit_hours": stream.table_options.every_commit_hours,
        "time_travel_days": stream.maintenance.time_travel_days,
        "keep_snapshots": stream.maintenance.keep_snapshots,
    }
    return History(**{key: value for key, value in declared.items() if value is not None})


def ensure_table(settings: Settings, stream: Stream) -> Table:
    """Create the table before the first batch, or fit it to the stream file, or refuse."""
    catalog = open_catalog(settings)
    ensure_namespaces(settings)
    try:
        table = catalog.load_table(stream.table)
    except NoSuchTableError:
        schema = _schema(stream)
        properties = table_properties(stream) | origin(settings, stream)
        try:
            return catalog.create_table(
                stream.table,
                schema,
                partition_spec=_partitions(stream, schema),
                properties=properties,
            )
        except TableAlreadyExistsError:  # someone else was quicker
            table = catalog.load_table(stream.table)
    return _fit(table, stream)


def iceberg_type(kind: str, next_id: "NextId") -> IcebergType:
    """The Iceberg type of a type in a stream file."""
    simple: dict[str, IcebergType] = {
        "string": I.StringType(),
        "boolean": I.BooleanType(),
        "int": I.IntegerType(),
        "bigint": I.LongType(),
        "float": I.FloatType(),
        "double": I.DoubleType(),
        "date": I.DateType(),
        "timestamp": I.TimestamptzType(),
        "binary": I.BinaryType(),
    }
    if kind in simple:
        return simple[kind]
    if kind == HEADERS.type:
        key = I.NestedField(next_id(), "key", I.StringType(), required=False)
        value = I.NestedField(next_id(), "value", I.BinaryType(), required=False)
        return I.ListType(next_id(), I.StructType(key, value), element_required=False)
    if decimal := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind):
        return I.DecimalType(int(decimal[1]), int(decimal[2]))
    if kind.startswith("map<"):
        inner = iceberg_type(kind.removeprefix("map<string,")[:-1], next_id)
        return I.MapType(next_id(), I.StringType(), next_id(), inner, value_required=False)
    inner = iceberg_type(kind.removeprefix("array<")[:-1], next_id)
    return I.ListType(next_id(), inner, element_required=False)


class NextId:
    """Field ids, one after the other."""

    def __init__(self, first: int = 1) -> None:
        self._next = first - 1

    def __call__(self) -> int:
        self._next += 1
        return self._next


def _schema(stream: Stream) -> Schema:
    columns = table_columns(stream)
    inner = NextId(len(columns) + 1)
    return Schema(
        *(
            NestedField(
                number,
                column.name,
                iceberg_type(column.type, inner),
                required=False,
                doc=column.description,
            )
            for number, column in enumerate(columns, start=1)
        )
    )


TRANSFORMS = {"years": "year", "months": "month", "days": "day", "hours": "hour"}


def _partition_fields(stream: Stream) -> list[tuple[str, str]]:
    """(column, Iceberg's transform): the day of arrival first, so that old rows are skipped."""
    fields = [("_ingested_at", "day")]
    for text in stream.partition_by:
        function, *arguments = re.findall(r"\w+", text)
        if not arguments:
            fields.append((function, "identity"))
        elif len(arguments) == 1:
            fields.append((arguments[0], TRANSFORMS[function]))
        else:
            fields.append((arguments[1], f"{function}[{arguments[0]}]"))
    return fields


def _partitions(stream: Stream, schema: Schema) -> PartitionSpec:
    fields = []
    for number, (column, transform) in enumerate(_partition_fields(stream), start=1000):
        suffix = "" if transform == "identity" else "_" + transform.split("[")[0]
        source = schema.find_field(column).field_id
        fields.append(PartitionField(source, number, parse_transform(transform), column + suffix))
    return PartitionSpec(*fields)


# --- fitting a table that is there already ------------------------------------------------------

WIDENINGS = {("int", "bigint"), ("float", "double")}


def _fit(table: Table, stream: Stream) -> Table:
    """Add columns, widen types, renew comments and properties; refuse anything else."""
    _check_partitions(table, stream)
    there = {field.name: field for field in table.schema().fields}
    wanted = {column.name: column for column in table_columns(stream)}
    for name in there.keys() - wanted.keys():
        again = "say `headers: true`" if name == HEADERS.name else "declare it, as optional"
        raise StreamFileError(
            f"{stream.table} has the column {name}, but {stream.file} does not declare it",
            f"{again}; or drop it in SQL: alter table {stream.table} drop column `{name}`",
        )
    changes = []
    for name, column in wanted.items():
        if name not in there:
            changes.append(("add", column))
        elif (found := type_name(there[name].field_type)) != column.type:
            _check_widening(stream, name, found, column.type)
            changes.append(("widen", column))
        elif there[name].doc != column.description:
            changes.append(("describe", column))
    properties = {
        key: value
        for key, value in table_properties(stream).items()
        if table.properties.get(key) != value and key != "format-version"
    }
    if not changes and not properties:
        return table
    try:
        with table.transaction() as transaction:
            if properties:
                transaction.set_properties(properties)
            if changes:
                with transaction.update_schema() as update:
                    for action, column in changes:
                        kind = iceberg_type(column.type, NextId())
                        if action == "add":
                            update.add_column(column.name, kind, doc=column.description)
                        elif action == "widen":
                            update.update_column(column.name, kind, doc=column.description)
                        else:
                            update.update_column(column.name, doc=column.description)
    except CommitFailedException as error:
        raise HeadwaterError(
            f"{stream.table} changed while its columns were fitted to {stream.file}: {error}",
            "run the command again",
        ) from error
    return table.refresh()


def type_name(kind: IcebergType) -> str:
    """An Iceberg type in the words of a stream file."""
    text = str(kind).replace(" ", "").replace("list<", "array<")
    if text.startswith("array<struct<"):
        return HEADERS.type
    for ours, theirs in (("bigint", "long"), ("timestamp", "timestamptz")):
        text = re.sub(rf"\b{theirs}\b", ours, text)
    return text


def _check_widening(stream: Stream, name: str, found: str, wanted: str) -> None:
    decimals = [re.fullmatch(r"decimal\((\d+),(\d+)\)", kind) for kind in (found, wanted)]
    old, new = decimals
    if (found, wanted) in WIDENINGS or (
        old and new and old[2] == new[2] and int(new[1]) > int(old[1])
    ):
        return
    raise StreamFileError(
        f"{stream.file} declares {name} as {wanted}, but {stream.table} has it as {found}, and "
        f"{found} does not widen to {wanted}",
        f"declare {found} again; or add a column of another name with `from: value.{name}`; or "
        "give the stream another name, and so a new table",
    )


def _check_partitions(table: Table, stream: Stream) -> None:
    schema = table.schema()
    there = [
        (str(schema.find_column_name(field.source_id)), str(field.transform))
        for field in table.spec().fields
    ]
    wanted = _partition_fields(stream)
    if there != wanted:
        shown = [
            ", ".join(f"{how}({what})" for what, how in fields if what != "_ingested_at")
            or "nothing"
            for fields in (wanted, there)
        ]
        raise StreamFileError(
            f"{stream.file} says partition_by: {shown[0]}, but {stream.table} is partitioned by "
            f"{shown[1]} (besides the day of arrival)",
            "change partition_by back; or change the table in SQL (alter table ... add or drop "
            "partition field); or give the stream another name, and so a new table",
        )
