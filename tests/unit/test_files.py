"""Data files: what a writer makes is what Iceberg and others read, in bounded memory."""

import pickle
import resource
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import from_bytes as from_bound
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, IsNull
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestamptzType,
)

from ingestion import files as files_module
from ingestion.files import FileWriter, TableFiles, from_bytes, to_bytes

STAMP = datetime(2026, 1, 5, 14, 30, tzinfo=UTC)
UTC_TIME = pa.timestamp("us", "UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = Schema(
    NestedField(1, "_kafka_topic", StringType(), required=False, doc="Topic."),
    NestedField(2, "_kafka_partition", IntegerType(), required=False),
    NestedField(3, "_kafka_offset", LongType(), required=False),
    NestedField(4, "_kafka_value", BinaryType(), required=False),
    NestedField(5, "_ingested_at", TimestamptzType(), required=False),
    NestedField(6, "_error_message", StringType(), required=False),
    NestedField(7, "name", StringType(), required=False),
    NestedField(8, "price", DecimalType(18, 6), required=False),
    NestedField(9, "day", DateType(), required=False),
    NestedField(10, "at", TimestamptzType(), required=False),
    NestedField(11, "value", DoubleType(), required=False),
    NestedField(
        12, "notes", MapType(14, StringType(), 15, StringType(), value_required=False),
        required=False,
    ),
    NestedField(
        13, "headers",
        ListType(
            16,
            StructType(
                NestedField(17, "key", StringType(), required=False),
                NestedField(18, "value", BinaryType(), required=False),
            ),
            element_required=False,
        ),
        required=False,
    ),
)  # fmt: skip
PROPERTIES = {
    "format-version": "2",
    "write.metadata.metrics.column._kafka_topic": "full",
    "write.metadata.metrics.column._kafka_value": "none",
    "write.metadata.metrics.column._error_message": "counts",
}
DAY = ("_ingested_at", "day")
TOPIC = "a topic whose name is longer than sixteen characters"


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    warehouse = tmp_path / "a warehouse"
    made = load_catalog(
        "lake", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{warehouse}"
    )
    made.create_namespace("bronze")
    yield made
    made.close()


def new_table(
    catalog: Catalog, *partitions: tuple[str, str], properties: dict[str, str] | None = None
) -> Table:
    spec = PartitionSpec(
        *(
            PartitionField(
                SCHEMA.find_field(column).field_id, number, parse_transform(how), f"{column}_{how}"
            )
            for number, (column, how) in enumerate(partitions, start=1000)
        )
    )
    return catalog.create_table(
        "bronze.test", SCHEMA, partition_spec=spec, properties=PROPERTIES | (properties or {})
    )


def rows(count: int, begin: int = 0, **columns: Any) -> pa.Table:
    """Rows as a task makes them: not all columns, and not in the table's order."""
    made: dict[str, Any] = {
        "_kafka_offset": pa.array(range(begin, begin + count), pa.int64()),
        "_kafka_topic": pa.repeat(pa.scalar(TOPIC), count),
        "_kafka_partition": pa.repeat(pa.scalar(3, pa.int32()), count),
        "_kafka_value": pa.array([b"payload %d" % n for n in range(count)], pa.binary()),
        "_ingested_at": pa.repeat(pa.scalar(STAMP, UTC_TIME), count),
    }
    return pa.table(made | columns)


def write(table: Table, *blocks: pa.Table) -> list[DataFile]:
    """In the way of a task: the table's files travel there, and data files back, as bytes."""
    writer = FileWriter(pickle.loads(pickle.dumps(TableFiles.of(table))))  # noqa: S301
    for block in blocks:
        writer.write(block)
    return [from_bytes(to_bytes(file)) for file in writer.close()]


def commit(table: Table, files: list[DataFile]) -> None:
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in files:
            append.append_data_file(file)


def land(table: Table, *blocks: pa.Table) -> list[DataFile]:
    files = write(table, *blocks)
    commit(table, files)
    return files


def path(file: DataFile) -> str:
    return file.file_path.removeprefix("file://")


def bounds(file: DataFile, name: str) -> tuple[Any, Any] | None:
    column = SCHEMA.find_field(name)
    assert isinstance(column.field_type, PrimitiveType)
    if column.field_id not in file.lower_bounds:
        return None
    return (
        from_bound(column.field_type, file.lower_bounds[column.field_id]),
        from_bound(column.field_type, file.upper_bounds[column.field_id]),
    )


def micros(when: datetime) -> int:
    return int((when - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))


# --- one file ------------------------------------------------------------------------------------


def full_rows() -> pa.Table:
    return rows(
        3,
        _error_message=pa.array(["bad", None, None]),
        name=pa.array(["AAPL", None, "a name of more than sixteen characters"]),
        price=pa.array([Decimal("1.5"), Decimal("-2"), None], pa.decimal128(18, 6)),
        day=pa.array([date(2026, 1, 5), None, date(1960, 1, 1)]),
        at=pa.array([STAMP, None, STAMP], pa.timestamp("ms", "UTC")),
        value=pa.array([1.0, float("nan"), -3.0]),
        notes=pa.array([[("a", "b")], None, [("c", None)]], pa.map_(pa.string(), pa.string())),
        headers=pa.array([[{"key": "k", "value": b"v"}], [], None], HEADERS),
    )


def test_a_file_is_read_as_it_was_written(catalog: Catalog) -> None:
    table = new_table(catalog, DAY)
    (file,) = land(table, full_rows())
    names = [one.name for one in SCHEMA.fields]
    wanted = [_plain(row) for row in full_rows().select(names).to_pylist()]
    with duckdb.connect() as connection:
        by_duckdb = connection.read_parquet(path(file)).arrow().read_all()
    assert [_plain(row) for row in by_duckdb.to_pylist()] == wanted
    wanted[2]["headers"] = []  # pyiceberg reads a list of structs that is null as an empty one
    assert [_plain(row) for row in table.scan().to_arrow().to_pylist()] == wanted


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """The row in words that all readers share."""
    times = {name: row[name] and row[name].astimezone(UTC) for name in ("at", "_ingested_at")}
    notes = None if row["notes"] is None else dict(row["notes"])
    return row | times | {"notes": notes, "value": repr(row["value"])}  # nan is not nan


def test_the_data_file_describes_its_file(catalog: Catalog) -> None:
    table = new_table(catalog, DAY)
    (file,) = write(table, full_rows())
    parquet = pq.ParquetFile(path(file))
    assert file.record_count == 3
    assert file.file_size_in_bytes == Path(path(file)).stat().st_size
    assert file.split_offsets == [4]
    assert (file.spec_id, file.sort_order_id) == (table.spec().spec_id, None)
    assert list(file.partition._data) == [micros(STAMP) // 86_400_000_000]
    assert "/data/_ingested_at_day=2026-01-05/" in file.file_path

    assert bounds(file, "_kafka_topic") == (TOPIC, TOPIC)
    assert bounds(file, "_kafka_partition") == (3, 3)
    assert bounds(file, "_kafka_offset") == (0, 2)
    assert bounds(file, "_ingested_at") == (micros(STAMP), micros(STAMP))
    assert bounds(file, "price") == (Decimal("-2.000000"), Decimal("1.500000"))
    assert bounds(file, "name") == ("AAPL", "a name of more u")
    assert bounds(file, "value") == (-3.0, 1.0)
    assert bounds(file, "_kafka_value") is bounds(file, "_error_message") is None
    assert (file.null_value_counts[6], file.null_value_counts[1]) == (2, 0)
    assert 4 not in file.null_value_counts

    def ids(field: pa.Field) -> Iterator[str]:
        yield field.metadata[b"PARQUET:field_id"].decode()
        if pa.types.is_map(field.type):
            inner = [field.type.key_field, field.type.item_field]
        elif pa.types.is_list(field.type):
            inner = [field.type.value_field]
        else:
            inner = list(field.type) if pa.types.is_struct(field.type) else []
        for one in inner:
            yield from ids(one)

    found = [number for field in parquet.schema_arrow for number in ids(field)]
    assert found == [*map(str, range(1, 13)), "14", "15", "13", "16", "17", "18"]
    physical = {parquet.schema.column(n).name: parquet.schema.column(n) for n in range(8)}
    assert physical["price"].physical_type == "INT64"  # as Iceberg demands


def test_every_property_of_a_data_file_arrives(catalog: Catalog) -> None:
    table = new_table(
        catalog, DAY, ("price", "identity"), ("day", "identity"), ("name", "bucket[4]")
    )
    writer = FileWriter(TableFiles.of(table))
    writer.write(full_rows())
    for file in writer.close():
        again = from_bytes(to_bytes(file))
        assert again._data == file._data
        assert again.spec_id == file.spec_id
        assert len(to_bytes(file)) < 3000


def test_bounds_and_partitions_prune(catalog: Catalog) -> None:
    table = new_table(catalog, DAY)
    tomorrow = pa.repeat(pa.scalar(STAMP + timedelta(days=1), UTC_TIME), 10)
    land(table, rows(10))
    land(table, rows(10, begin=10))
    land(table, rows(10, begin=20, _ingested_at=tomorrow))
    for condition, files, count in (
        (GreaterThanOrEqual("_kafka_offset", 15), 2, 15),
        (And(EqualTo("_kafka_topic", TOPIC), EqualTo("_kafka_offset", 3)), 1, 1),
        (EqualTo("_kafka_topic", TOPIC + "s"), 0, 0),
        (GreaterThanOrEqual("_ingested_at", "2026-01-06T00:00:00+00:00"), 1, 10),
        (IsNull("name"), 3, 30),
    ):
        scan = table.scan(condition)
        assert len(list(scan.plan_files())) == files, condition
        assert scan.to_arrow().num_rows == count, condition


def test_a_long_text_leaves_no_bounds_that_are_too_narrow(catalog: Catalog) -> None:
    """Parquet has no statistics of a row group with a very long text; pyiceberg overlooks that."""
    table = new_table(catalog, properties={"write.parquet.row-group-limit": "2"})
    names = pa.array(["b", "c", "a", "d" * 5000, "b", "b"])
    (file,) = land(table, rows(6, name=names))
    assert pq.ParquetFile(path(file)).num_row_groups == 3
    assert bounds(file, "name") is None
    assert table.scan(GreaterThanOrEqual("name", "d")).to_arrow().num_rows == 1


def test_what_does_not_fit_the_table_is_refused(catalog: Catalog) -> None:
    writer = FileWriter(TableFiles.of(new_table(catalog)))
    with pytest.raises(ValueError, match="no column surprise"):
        writer.write(rows(1, surprise=pa.array([1])))
    with pytest.raises(pa.ArrowInvalid):
        writer.write(rows(1, _kafka_partition=pa.array(["three"])))
    assert writer.close() == []


# --- several files and row groups ----------------------------------------------------------------


def test_row_groups_collect_blocks(catalog: Catalog) -> None:
    table = new_table(catalog, DAY, properties={"write.parquet.row-group-limit": "100"})
    (file,) = land(table, *(rows(30, begin=30 * n) for n in range(10)))
    parquet = pq.ParquetFile(path(file))
    sizes = [parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups)]
    assert sizes == [90, 90, 90, 30]
    assert file.split_offsets is not None
    assert len(file.split_offsets) == 4
    offsets = table.scan().to_arrow()["_kafka_offset"].to_pylist()
    assert offsets == list(range(300))


def test_a_block_larger_than_a_row_group_is_cut(catalog: Catalog) -> None:
    table = new_table(catalog, properties={"write.parquet.row-group-size-bytes": "100000"})
    (file,) = land(table, rows(10_000))
    parquet = pq.ParquetFile(path(file))
    assert parquet.num_row_groups > 5
    for number in range(parquet.num_row_groups):
        assert parquet.read_row_group(number).nbytes <= 100_000


def test_a_full_file_is_followed_by_another(catalog: Catalog) -> None:
    table = new_table(
        catalog, DAY,
        properties={
            "write.target-file-size-bytes": "20000", "write.parquet.compression-codec": "snappy",
        },
    )  # fmt: skip
    files = land(table, *(rows(500, begin=500 * n) for n in range(20)))
    assert len(files) > 3
    assert len({file.file_path for file in files}) == len(files)
    assert all(20_000 <= file.file_size_in_bytes < 60_000 for file in files[:-1])
    assert table.scan().to_arrow()["_kafka_offset"].to_pylist() == list(range(10_000))
    compression = pq.ParquetFile(path(files[0])).metadata.row_group(0).column(0).compression
    assert compression == "SNAPPY"


def test_two_tasks_share_no_file(catalog: Catalog) -> None:
    table = new_table(catalog)
    first, second = land(table, rows(5)) + land(table, rows(5, begin=5))
    assert first.file_path != second.file_path
    assert table.scan().to_arrow().num_rows == 10


def test_an_aborted_writer_leaves_nothing(catalog: Catalog, tmp_path: Path) -> None:
    properties = {
        "write.target-file-size-bytes": "20000",
        "write.parquet.row-group-limit": "1000",
    }
    table = new_table(catalog, ("_kafka_offset", "truncate[5000]"), properties=properties)
    writer = FileWriter(TableFiles.of(table))
    for number in range(20):
        writer.write(rows(1000, begin=1000 * number))
    assert list(tmp_path.rglob("*.parquet"))
    writer.abort()
    assert list(tmp_path.rglob("*.parquet")) == []


def test_values_that_repeat_get_a_dictionary(catalog: Catalog) -> None:
    table = new_table(catalog)
    names = pa.array([("AAPL", "MSFT")[n % 2] for n in range(5000)])
    (file,) = write(table, rows(5000, name=names))
    group = pq.ParquetFile(path(file)).metadata.row_group(0)
    has = {}
    for number in range(group.num_columns):
        column = group.column(number)
        has[column.path_in_schema] = column.has_dictionary_page
    assert has["_kafka_topic"] and has["name"] and has["_ingested_at"]
    assert not has["_kafka_offset"]
    assert not has["_kafka_value"]


# --- partitions of the table ---------------------------------------------------------------------

VALUES: dict[str, Any] = {
    "name": pa.array(["a", "longer than that", None, "ä", "a", ""]),
    "price": pa.array([Decimal("1.5"), Decimal("-7.25"), None, Decimal(0), Decimal("1.5"), 99],
                      pa.decimal128(18, 6)),
    "day": pa.array([date(2026, 1, 5), date(1969, 12, 31), None, date(2026, 2, 1),
                     date(2026, 1, 5), date(2100, 6, 1)]),
    "at": pa.array([STAMP, datetime(1969, 12, 31, 23, 59, tzinfo=UTC), None,
                    STAMP + timedelta(hours=1), STAMP, STAMP + timedelta(days=40)], UTC_TIME),
    "_kafka_offset": pa.array([0, 1, 2, 30, 4, -5], pa.int64()),
    "_kafka_value": pa.array([b"a", b"bcd", None, b"\xff\xff", b"a", b""]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("column", "how"),
    [
        *((column, "identity") for column in VALUES),
        *((column, how) for column in ("day", "at") for how in ("year", "month", "day")),
        ("at", "hour"),
        *((column, "bucket[5]") for column in VALUES),
        *((column, "truncate[3]") for column in VALUES if column not in ("day", "at")),
    ],
)
def test_rows_go_to_their_partitions(catalog: Catalog, column: str, how: str) -> None:
    table = new_table(catalog, DAY, (column, how))
    blocks = [rows(6, **VALUES), rows(6, **VALUES).slice(0, 1)]
    files = land(table, *blocks)
    kind = SCHEMA.find_field(column).field_type
    transform = parse_transform(how).transform(kind)
    wanted = {_stored(transform(value)) for value in VALUES[column].to_pylist()}
    assert {_stored(file.partition[1]) for file in files} == wanted
    assert len(files) == len(wanted)
    assert sum(file.record_count for file in files) == 7
    for file in files:  # each row is where the transform puts it
        for value in pq.ParquetFile(path(file)).read(columns=[column])[column].to_pylist():
            assert _stored(transform(value)) == _stored(file.partition[1])
    for value in set(VALUES[column].to_pylist()):
        condition = IsNull(column) if value is None else EqualTo(column, _literal(value))
        scan = table.scan(condition)
        count = sum(one == value for block in blocks for one in block[column].to_pylist())
        assert scan.to_arrow().num_rows == count
        assert len(list(scan.plan_files())) == 1


def _stored(value: Any) -> Any:
    """Dates and times as the numbers that Iceberg keeps."""
    if isinstance(value, datetime):
        return micros(value)
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


def _literal(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


def test_two_fields_of_one_column_are_told_apart(catalog: Catalog) -> None:
    table = new_table(catalog, ("at", "day"), ("at", "hour"))
    files = write(table, rows(6, **VALUES))
    wanted = {
        tuple(parse_transform(how).transform(TimestamptzType())(value) for how in ("day", "hour"))
        for value in VALUES["at"].to_pylist()
    }
    assert {tuple(file.partition._data) for file in files} == wanted


def test_a_table_of_many_partitions_stays_within_its_memory(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "MOST_BUFFERED", 200_000)
    monkeypatch.setattr(files_module, "MOST_OPEN", 5)
    table = new_table(catalog, DAY, ("name", "identity"))
    writer = FileWriter(TableFiles.of(table))
    for begin in range(0, 20_000, 1000):
        # Every second row belongs to one name, the others to 50.
        names = [f"n{n % 50}" if n % 2 else "many" for n in range(begin, begin + 1000)]
        writer.write(rows(1000, begin=begin, name=pa.array(names)))
        assert writer._bytes <= 300_000  # half a limit may be left over, and a block comes
        assert len(writer._output._open) <= 5
    files = writer.close()
    commit(table, files)
    found = table.scan().to_arrow()
    assert sorted(found["_kafka_offset"].to_pylist()) == list(range(20_000))
    for file in files:
        stored = pq.ParquetFile(path(file)).read(columns=["name", "_kafka_offset"])
        assert stored["name"].unique().to_pylist() == [file.partition[1]]
        offsets = stored["_kafka_offset"].to_pylist()
        assert offsets == sorted(offsets)
    assert len(files) < 150  # small partitions wait until it pays to write them


def test_memory_is_flat(catalog: Catalog) -> None:
    """A file of many row groups takes no more memory than one of a few."""
    table = new_table(catalog, DAY, properties={"write.parquet.row-group-size-bytes": "4000000"})
    writer = FileWriter(TableFiles.of(table))
    block = rows(20_000)
    for _ in range(30):
        writer.write(block)
    before = pa.total_allocated_bytes()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        writer.write(block)
        assert pa.total_allocated_bytes() < before + 10_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < peak + 30_000  # KiB
    writer.abort()
