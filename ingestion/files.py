"""Data files of an Iceberg table, written by any process that has the rows and no catalog.

A task gets `TableFiles`, which says how files of the table look, writes rows with a `FileWriter`,
and sends what it wrote, as bytes, to the process that commits it.
"""

import pickle
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import (
    PartitionField,
    PartitionFieldValue,
    PartitionKey,
    PartitionSpec,
    partition_record_value,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.transforms import TimeTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DateType

# Rows wait as Arrow until a row group is full. This bounds the memory of a task.
MOST_BUFFERED = 64 * 2**20
# Files that stay open while rows of other partitions are written.
MOST_OPEN = 64
# A dictionary pays where values repeat. These parts of the rows tell whether they do.
SAMPLE_PARTS, SAMPLE_ROWS = 16, 256

Values = tuple[Any, ...]  # of the partition fields, as Iceberg stores them


@dataclass(frozen=True)
class TableFiles:
    """What the files of a table look like and where they go. Picklable, and needs no catalog."""

    location: str
    schema: Schema
    spec: PartitionSpec
    properties: dict[str, str]
    io_properties: dict[str, str] = field(repr=False)  # may hold secrets

    @classmethod
    def of(cls, table: Table) -> "TableFiles":
        return cls(
            table.location(), table.schema(), table.spec(), table.properties, table.io.properties
        )

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns of a file, each with its field id."""
        return pa.schema([_small(column) for column in schema_to_pyarrow(self.schema)])

    def number(self, key: str, default: int) -> int:
        return int(self.properties.get(key, default))


def _small(column: pa.Field) -> pa.Field:
    """The field with 32-bit offsets at every depth, as the decoders make them; ids stay."""
    kind = column.type
    if pa.types.is_large_string(kind):
        kind = pa.string()
    elif pa.types.is_large_binary(kind):
        kind = pa.binary()
    elif pa.types.is_large_list(kind):
        kind = pa.list_(_small(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_small(kind.key_field), _small(kind.item_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_small(inner) for inner in kind])
    return column.with_type(kind)


class FileWriter:
    """Writes rows to new files of a table, at least one for each partition of the table.

    Rows are written in the order in which they come. Columns come in any order; those
    that are missing are null.
    """

    def __init__(self, files: TableFiles) -> None:
        self._files = files
        self._schema = files.arrow_schema
        self._splitter = _Splitter(files)
        self._output = _Output(files, self._schema)
        target = self._output.target_bytes
        size = files.number(
            TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES,
            TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES_DEFAULT,
        )
        self._most_bytes = min(size, target, MOST_BUFFERED)
        self._most_rows = files.number(
            TableProperties.PARQUET_ROW_GROUP_LIMIT, TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT
        )
        self._blocks: list[pa.Table] = []
        self._bytes = 0
        self._rows = 0

    def write(self, rows: pa.Table) -> None:
        """Take over some rows. They reach a file when a row group is full, or at the end."""
        if unknown := set(rows.column_names) - set(self._schema.names):
            raise ValueError(f"{self._files.location} has no column {', '.join(sorted(unknown))}")
        for piece in self._pieces(self._fitted(rows)):
            if (
                self._bytes + piece.nbytes > self._most_bytes
                or self._rows + piece.num_rows > self._most_rows
            ):
                self._write_row_groups()
            self._keep(piece)

    def close(self) -> list[DataFile]:
        """Finish the files, and describe them for a commit."""
        rows = self._take_blocks()
        for values, group in self._splitter.split(rows):
            self._output.write(values, group)
            self._output.finish(values)
        return self._output.close()

    def abort(self) -> None:
        """Delete all that was written."""
        self._take_blocks()
        self._output.abort()

    def _fitted(self, rows: pa.Table) -> pa.Table:
        """All columns of the table, in its types."""
        columns = []
        for target in self._schema:
            if target.name not in rows.column_names:
                columns.append(pa.nulls(rows.num_rows, target.type))
            elif (column := rows[target.name]).type == target.type:
                columns.append(column)
            else:
                columns.append(column.cast(target.type))
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _pieces(self, rows: pa.Table) -> Iterator[pa.Table]:
        """The rows in pieces that are no larger than a row group."""
        count = max(-(-rows.nbytes // self._most_bytes), -(-rows.num_rows // self._most_rows), 1)
        size = -(-rows.num_rows // count)
        for begin in range(0, rows.num_rows, max(size, 1)):
            yield rows.slice(begin, size)

    def _keep(self, rows: pa.Table) -> None:
        self._blocks.append(rows)
        self._bytes += rows.nbytes
        self._rows += rows.num_rows

    def _take_blocks(self) -> pa.Table:
        rows = pa.concat_tables(self._blocks) if self._blocks else self._schema.empty_table()
        self._blocks, self._bytes, self._rows = [], 0, 0
        return rows

    def _write_row_groups(self) -> None:
        """Write the largest partitions until half of the rows are gone; the others may grow."""
        if not self._rows:
            return
        rows = self._take_blocks()
        groups = self._splitter.groups(rows)
        groups.sort(key=lambda group: group.size, reverse=True)
        left = rows.num_rows
        while groups and left > rows.num_rows // 2:
            group = groups.pop(0)
            self._output.write(group.values, group.of(rows))
            left -= group.size
        if groups:
            self._keep(rows.take(pa.concat_arrays([group.places for group in groups])))


# --- partitions of the table ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Group:
    """The rows of one partition among others."""

    values: Values
    size: int
    places: pa.Array | None = None  # None: all rows

    def of(self, rows: pa.Table) -> pa.Table:
        return rows if self.places is None else rows.take(self.places)


class _Splitter:
    """Tells which rows belong to which partition of the table."""

    def __init__(self, files: TableFiles) -> None:
        self._schema = files.schema
        self._fields = files.spec.fields

    def split(self, rows: pa.Table) -> Iterator[tuple[Values, pa.Table]]:
        for group in self.groups(rows) if rows.num_rows else []:
            yield group.values, group.of(rows)

    def groups(self, rows: pa.Table) -> list[_Group]:
        values: list[Any] = []
        columns: list[pa.Array] = []  # of the fields that have more than one value
        varying: list[int] = []
        for number, part in enumerate(self._fields):
            is_single, value = self._single_value(part, rows)
            values.append(value)
            if not is_single:
                columns.append(self._transformed(part, rows))
                varying.append(number)
        if not varying:
            return [_Group(tuple(values), rows.num_rows)]
        found = []
        for places in _equal_rows(columns):
            for number, column in zip(varying, columns, strict=True):
                values[number] = self._stored(self._fields[number], column[places[0].as_py()])
            found.append(_Group(tuple(values), len(places), places))
        return found

    def _single_value(self, part: PartitionField, rows: pa.Table) -> tuple[bool, Any]:
        """The value that all rows share, if they do: the least and the greatest decide.

        Nearly always so for the day of the stamp: one stamp is in all rows of a batch.
        """
        column = rows[self._source(part)]
        if column.null_count == len(column):
            return True, None
        kind = self._schema.find_field(part.source_id).field_type
        if column.null_count or not isinstance(part.transform, TimeTransform):
            return False, None
        ends = pc.min_max(column.cast(pa.int32() if kind == DateType() else pa.int64()))
        transform = part.transform.transform(kind)
        least, most = (transform(ends[end].as_py()) for end in ("min", "max"))
        return least == most, least

    def _transformed(self, part: PartitionField, rows: pa.Table) -> pa.Array:
        kind = self._schema.find_field(part.source_id).field_type
        column = rows[self._source(part)].combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
        return part.transform.pyarrow_transform(kind)(column)

    def _stored(self, part: PartitionField, value: pa.Scalar) -> Any:
        return partition_record_value(part, value.as_py(), self._schema)

    def _source(self, part: PartitionField) -> str:
        name = self._schema.find_column_name(part.source_id)
        if name is None:
            raise ValueError(f"the partition field {part.name} belongs to no column")
        return name


def _equal_rows(columns: list[pa.Array]) -> Iterator[pa.Array]:
    """The places of the rows that agree in all columns, group by group, each in row order."""
    codes: Any = None
    for column in columns:
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        own = encoded.indices.cast(pa.int64())
        codes = own if codes is None else pc.add(pc.multiply(codes, len(encoded.dictionary)), own)
        codes = pc.dictionary_encode(codes).indices.cast(pa.int64())  # so that none grows too large
    places = pc.array_sort_indices(codes)  # a stable sort
    counts = pc.value_counts(codes)
    sizes = dict(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True))
    ends = [0]
    for code in sorted(sizes):
        ends.append(ends[-1] + sizes[code])
    for begin, end in pairwise(ends):
        yield places.slice(begin, end - begin)


class _Key(PartitionKey):
    """Of values that are as Iceberg stores them; two fields may have the same source."""

    @cached_property
    def partition(self) -> Record:
        return Record(*(value.value for value in self.field_values))


# --- files ----------------------------------------------------------------------------------------


class _Output:
    """The files of a writer: the open ones by partition, and those that are finished."""

    def __init__(self, files: TableFiles, schema: pa.Schema) -> None:
        self._files = files
        self._schema = schema
        self._io = load_file_io(files.io_properties, files.location)
        self._locations = load_location_provider(files.location, files.properties)
        self._layout = _Layout(files)
        self._name = uuid4().hex
        self._open: dict[Values, _OpenFile] = {}  # the one that was written last comes last
        self._done: list[DataFile] = []
        self._paths: list[str] = []
        self.target_bytes = files.number(
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
        )

    def write(self, values: Values, rows: pa.Table) -> None:
        """One row group."""
        file = self._open.pop(values, None) or self._opened(values, rows)
        self._open[values] = file
        file.writer.write_table(rows, row_group_size=rows.num_rows)
        if file.sink.tell() >= self.target_bytes:
            self.finish(values)

    def finish(self, values: Values) -> None:
        file = self._open.get(values)
        if file is not None:
            self._done.append(self._described(file))
            del self._open[values]

    def close(self) -> list[DataFile]:
        for values in list(self._open):
            self.finish(values)
        return self._done

    def abort(self) -> None:
        for file in self._open.values():
            with suppress(OSError, pa.ArrowException):
                file.writer.close()
            with suppress(OSError, pa.ArrowException):
                file.sink.close()
        for path in self._paths:
            with suppress(OSError):
                self._io.delete(path)
        self._open, self._done, self._paths = {}, [], []

    def _opened(self, values: Values, rows: pa.Table) -> "_OpenFile":
        if len(self._open) >= MOST_OPEN:
            self.finish(next(iter(self._open)))
        fields = self._files.spec.fields
        key = _Key(
            [PartitionFieldValue(part, value) for part, value in zip(fields, values, strict=True)],
            self._files.spec,
            self._files.schema,
        )
        name = f"{self._name}-{len(self._paths):05}.parquet"
        path = self._locations.new_data_location(name, key if fields else None)
        self._paths.append(path)
        sink: Any = self._io.new_output(path).create(overwrite=True)  # the name is new
        writer = pq.ParquetWriter(sink, self._schema, **self._layout.options(rows))
        return _OpenFile(path, key.partition, sink, writer)

    def _described(self, file: "_OpenFile") -> DataFile:
        file.writer.close()
        size = file.sink.tell()
        file.sink.close()
        described = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.path,
            file_format=FileFormat.PARQUET,
            partition=file.partition,
            file_size_in_bytes=size,
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            **self._layout.statistics(file.writer.writer.metadata),
        )
        described.spec_id = self._files.spec.spec_id
        return described


@dataclass(frozen=True)
class _OpenFile:
    path: str
    partition: Record
    sink: Any
    writer: pq.ParquetWriter


class _Layout:
    """How the Parquet files are encoded, and what is kept of their statistics."""

    def __init__(self, files: TableFiles) -> None:
        properties = files.properties
        self._plan = compute_statistics_plan(files.schema, properties)
        self._ids = parquet_path_to_id_mapping(files.schema)
        level = properties.get(TableProperties.PARQUET_COMPRESSION_LEVEL)
        codec = properties.get(
            TableProperties.PARQUET_COMPRESSION, TableProperties.PARQUET_COMPRESSION_DEFAULT
        )
        self._options = {
            "compression": "none" if codec == "uncompressed" else codec,
            "compression_level": None if level is None else int(level),
            "data_page_size": files.number(
                TableProperties.PARQUET_PAGE_SIZE_BYTES,
                TableProperties.PARQUET_PAGE_SIZE_BYTES_DEFAULT,
            ),
            "dictionary_pagesize_limit": files.number(
                TableProperties.PARQUET_DICT_SIZE_BYTES,
                TableProperties.PARQUET_DICT_SIZE_BYTES_DEFAULT,
            ),
            "store_decimal_as_integer": True,  # as Iceberg demands
            "store_schema": False,  # Arrow's own copy of the schema: readers go by field ids
            "write_statistics": [path for path in self._ids if self._is_counted(path)],
        }

    def _collector(self, path: str) -> StatisticsCollector:
        return self._plan[self._ids[path]]

    def _is_counted(self, path: str) -> bool:
        return self._collector(path).mode.type != MetricModeTypes.NONE

    def options(self, rows: pa.Table) -> dict[str, Any]:
        """For a file that begins with these rows."""
        return self._options | {"use_dictionary": _repeating(rows)}

    def statistics(self, metadata: pq.FileMetaData) -> dict[str, Any]:
        found = data_file_statistics_from_parquet_metadata(metadata, self._plan, self._ids)
        for path in self._without_bounds(metadata):
            found.column_aggregates.pop(self._ids[path], None)
        return found.to_serialized_dict()

    def _without_bounds(self, metadata: pq.FileMetaData) -> Iterator[str]:
        """Columns whose bounds would be too narrow.

        Parquet keeps no bounds of a row group in which one is very long (4 KiB), and pyiceberg
        goes by the other row groups alone: a reader would skip a file that has the row.
        """
        for position in range(metadata.num_columns):
            for number in range(metadata.num_row_groups):
                column = metadata.row_group(number).column(position)
                if column.physical_type not in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
                    break
                known = column.statistics
                if known and not known.has_min_max and known.null_count < column.num_values:
                    yield column.path_in_schema
                    break


def _repeating(rows: pa.Table) -> list[str]:
    """Columns whose values repeat so often that a dictionary makes them smaller.

    To encode a column that does not repeat costs CPU for a dictionary that is thrown away.
    """
    step = max(rows.num_rows // SAMPLE_PARTS, SAMPLE_ROWS)
    starts = range(0, rows.num_rows, step) or (0,)
    sample = pa.concat_tables([rows.slice(start, SAMPLE_ROWS) for start in starts])
    found = []
    for column in sample.schema:
        if not pa.types.is_nested(column.type):
            distinct = pc.count_distinct(sample[column.name], mode="all").as_py()
            if distinct <= sample.num_rows // 4 + 1:
                found.append(column.name)
    return found


# --- from one process to another ------------------------------------------------------------------


def to_bytes(file: DataFile) -> bytes:
    """A data file as a task sends it to the process that commits it."""
    known = {part.name: file[at] for at, part in enumerate(DATA_FILE_TYPE[2].fields)}
    known["partition"] = list(file.partition._data)
    return pickle.dumps((file.spec_id, known))


def from_bytes(data: bytes) -> DataFile:
    """What `to_bytes` made, in a process of the same program."""
    spec_id, known = pickle.loads(data)  # noqa: S301 - our own tasks wrote it
    known["partition"] = Record(*known["partition"])
    file = DataFile.from_args(**known)
    file.spec_id = spec_id
    return file
