"""A search through every file under a table, whether the table still refers to it or not.

No Spark and no metadata of the table is trusted for it: data files are read row by row, manifests
entry by entry. What the table refers to is only needed to say which of the finds are its own.
"""

import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, reduce
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.types import PrimitiveType

from headwater.rows.condition import Condition, fulfils, is_kept, judge
from ingestion.errors import HeadwaterError
from ingestion.ledger import COORDINATES

RAW = ("_kafka_key", "_kafka_value", "_kafka_headers", "_error_message")
# silver.dead_letters has the columns of bronze under the names that people know from elsewhere.
DEAD_LETTERS = {
    "raw_payload": "_kafka_value",
    "error_type": "_error_type",
    "error_message": "_error_message",
    **{name.removeprefix("_"): name for name in COORDINATES},
}
BOUND_CHARACTERS = 16  # Iceberg cuts the bounds of text
DELETED = 2  # status of a manifest entry
CUT_SHORT = "describes a data file by what may be a value cut short"
TORN = "cannot be read: left by a writer that died, or being written"

Report = Callable[[int, int], None]  # files done, files in all


@dataclass(frozen=True)
class File:
    path: str
    size: int
    modified: datetime


@dataclass(frozen=True)
class Hit:
    """A file with something of the condition in it."""

    file: File
    what: str
    is_live: bool  # the newest snapshot refers to it
    is_certain: bool = True  # not just a torn file, or a bound that is cut short


@dataclass
class Searched:
    """What was found in the files of one table."""

    table: str
    files: int = 0
    bytes: int = 0
    rows: int = 0  # in data files that the newest snapshot refers to
    live_rows: int = 0  # of these fulfil the condition
    undecided: int = 0  # of these failed records of which it cannot be told
    failed: list[tuple[str, int, int]] = field(default_factory=list)  # of these told by bytes
    hits: list[Hit] = field(default_factory=list)


class Files:
    """The files of one table as its store lists them, and those that the table refers to."""

    def __init__(self, table: Table) -> None:

        self.table = table
        self._io = PyArrowFileIO(table.io.properties)
        self.store: FileSystem = self._io.fs_by_scheme(*self._parsed(table.location())[:2])

    def _parsed(self, location: str) -> tuple[str, str, str]:
        return self._io.parse_location(location, self._io.properties)

    def path(self, location: str) -> str:
        """A location of the metadata as the store names it."""
        return self._parsed(location)[2]

    def list(self) -> dict[str, File]:

        keys = ("write.data.path", "write.metadata.path", "write.object-storage.path")
        places = {self.table.location(), *(self.table.properties.get(key, "") for key in keys)}
        found = {}
        for place in places - {""}:
            selector = FileSelector(self.path(place), recursive=True, allow_not_found=True)
            for info in self.store.get_file_info(selector):
                if info.is_file:
                    when = (info.mtime or datetime.now(UTC)).astimezone(UTC)
                    found[info.path] = File(info.path, info.size or 0, when)
        return found

    def referred(self, history: bool = False) -> dict[str, bool]:
        """Path -> whether it is a data file, for the newest snapshot or for all of them."""
        metadata = self.table.metadata
        current = self.table.current_snapshot()
        snapshots = metadata.snapshots if history else [current] if current else []
        found = dict.fromkeys(
            map(
                self.path,
                (
                    self.table.metadata_location,
                    *(one.metadata_file for one in metadata.metadata_log),
                    *(one.statistics_path for one in metadata.statistics),
                    *(one.statistics_path for one in metadata.partition_statistics),
                ),
            ),
            False,
        )
        for snapshot in snapshots:
            found[self.path(snapshot.manifest_list)] = False
            for manifest in snapshot.manifests(self.table.io):
                path = self.path(manifest.manifest_path)
                if path in found:
                    continue
                found[path] = False
                for entry in manifest.fetch_manifest_entry(self.table.io, not history):
                    found[self.path(entry.data_file.file_path)] = True
        return found

    def remove(self, paths: set[str]) -> int:
        """Delete files, with the checksums beside them and the folders that become empty."""

        for path in paths:
            folder, _, name = path.rpartition("/")
            for one in (path, f"{folder}/.{name}.crc"):
                if one == path or isinstance(self.store, LocalFileSystem):
                    self._delete(one)
        if isinstance(self.store, LocalFileSystem):  # elsewhere there are no folders
            self._remove_empty({path.rpartition("/")[0] for path in paths})
        return len(paths)

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):  # a run before this one did it
            self.store.delete_file(path)

    def _remove_empty(self, folders: set[str]) -> None:
        """The name of a folder may hold a value: a table partitioned by it has one for each."""

        top = Path(self.path(self.table.location()))
        for folder in folders:
            at = Path(folder)
            while at.is_relative_to(top) and at.parent != top and not any(at.iterdir()):
                at.rmdir()
                at = at.parent


def search(table: Table, condition: Condition, by_text: bool, report: Report) -> Searched:
    """Look for what fulfils the condition in all files under the table.

    `by_text` says that records are text, in which a number can be looked for.
    """
    files = Files(table)
    live = files.referred()
    found = Searched(".".join(table.name()[-2:]))
    listed = files.list()
    looker = _Looker(table, condition, by_text, files.store)
    for done, file in enumerate(listed.values()):
        report(done, len(listed))
        found.files += 1
        found.bytes += file.size
        try:
            looker.look(found, file, live.get(file.path))
        except FileNotFoundError:
            if live.get(file.path):
                raise HeadwaterError(
                    f"{found.table} changed while it was searched: {file.path} is gone",
                    "run it again",
                ) from None
    report(len(listed), len(listed))
    return found


class _Looker:
    """Looks into one file after the other. `is_data` is None for what the table does not know."""

    def __init__(
        self, table: Table, condition: Condition, by_text: bool, store: FileSystem
    ) -> None:
        self._schema = table.schema()
        names = {one.name for one in self._schema.fields}
        known = DEAD_LETTERS if names >= DEAD_LETTERS.keys() else {}
        self._own_names = {known.get(name, name): name for name in names}  # by bronze's names
        self._bound = condition.bind(self._schema)
        self._condition = condition
        self._by_text = by_text
        self._store = store

    def look(self, found: Searched, file: File, is_data: bool | None) -> None:
        is_live = is_data is not None
        try:
            if what := self._inside(found, file, is_data):
                found.hits.append(Hit(file, what, is_live, what != CUT_SHORT))
        except FileNotFoundError:
            raise
        except Exception as error:  # torn files fail in many ways, each in its own library
            if is_live:
                raise HeadwaterError(
                    f"{found.table} refers to {file.path}, which cannot be read "
                    f"({type(error).__name__})",
                    "repair the table first: that file cannot be searched",
                ) from error
            found.hits.append(Hit(file, TORN, is_live, is_certain=False))

    def _inside(self, found: Searched, file: File, is_data: bool | None) -> str:
        name, is_live = file.path.rpartition("/")[2], is_data is not None
        if name.endswith(".parquet"):
            rows = self._data_file(found, file, bool(is_data))
            return f"{rows:,} rows" if rows else ""
        if name.endswith(".avro"):
            return self._manifest(file.path, is_live)
        if name.endswith(".metadata.json"):
            return self._metadata(file.path)
        is_foreign = not is_live and not name.endswith(".crc")
        if is_foreign and self._mentions(self._read(file.path)):
            return "its bytes hold a value"
        return self._in_path(file.path)

    # Rows

    def _data_file(self, found: Searched, file: File, is_live: bool) -> int:

        total = 0
        with self._store.open_input_file(file.path) as opened, pq.ParquetFile(opened) as parquet:
            in_file = _by_field_id(parquet.schema_arrow, self._schema)
            columns = {
                name: in_file[own] for name, own in self._own_names.items() if own in in_file
            }
            for number in range(parquet.num_row_groups):
                size = parquet.metadata.row_group(number).num_rows
                names = {one: columns[one] for one in self._needed if one in columns}
                group = parquet.read_row_group(number, columns=list(set(names.values())))
                rows = self._typed(group, names, size)
                fulfil = self._fulfil(rows)
                failed, undecided = self._failed(rows, fulfil, parquet, number, columns)
                count = pc.sum(fulfil).as_py() + len(failed)
                total += count
                if is_live:
                    found.rows += size
                    found.live_rows += count
                    found.undecided += undecided
                    found.failed += failed
        return total

    @cached_property
    def _needed(self) -> list[str]:
        wanted = [*self._condition.columns, *COORDINATES, "_error_type"]
        return [name for name in wanted if name in self._own_names]

    def _typed(self, group: pa.Table, names: dict[str, str], size: int) -> pa.Table:
        """The columns under the names and types that the table has today; null where missing."""

        found = {}
        for name in self._needed:
            kind = schema_to_pyarrow(self._schema.find_field(self._own_names[name]).field_type)
            found[name] = group[names[name]].cast(kind) if name in names else pa.nulls(size, kind)
        return pa.table(found) if found else pa.table({"_": pa.nulls(size)})

    def _fulfil(self, rows: pa.Table) -> Any:
        """Which rows fulfil the condition; rows that were emptied fulfil none."""
        return pc.and_(fulfils(rows, self._bound), is_kept(rows))

    def _failed(
        self, rows: pa.Table, fulfil: Any, parquet: Any, group: int, columns: dict[str, str]
    ) -> tuple[list[tuple[str, int, int]], int]:
        """Failed records and tombstones that lack a column of the condition, by their bytes."""

        if "_kafka_value" not in columns or not set(COORDINATES) <= set(rows.column_names):
            return [], 0
        asked = pc.and_(pc.invert(fulfil), is_kept(rows))
        if self._bound is not None:
            nulls = [rows[name].is_null() for name in self._condition.columns]
            asked = pc.and_(asked, reduce(pc.or_, nulls))
        if not pc.any(asked).as_py():
            return [], 0
        names = [columns[name] for name in RAW if name in columns]
        raw = parquet.read_row_group(group, columns=names)
        if "_error_type" in rows.column_names:  # what was decoded has its null by right
            is_failed = rows["_error_type"].is_valid()
            asked = pc.and_(asked, pc.or_(is_failed, raw[columns["_kafka_value"]].is_null()))
        failed, undecided = [], 0
        for row, parts in zip(
            rows.filter(asked).to_pylist(), raw.filter(asked).to_pylist(), strict=True
        ):
            everything = b"\n".join(_bytes(value) for value in parts.values())
            known = {name: row.get(name) for name in self._condition.columns}
            verdict = judge(self._own, known, everything, self._by_text)
            if verdict:
                failed.append(tuple(row[name] for name in COORDINATES))
            elif verdict is None and parts[columns["_kafka_value"]] is not None:
                undecided += 1
        return failed, undecided

    @cached_property
    def _own(self) -> Any:
        """The condition on the table's columns, or on those of bronze where it lacks them."""
        return self._bound or self._condition.bind(self._condition.bronze)

    # Metadata

    def _manifest(self, path: str, is_live: bool) -> str:
        exactly, loosely = self._bounds
        less_certain = ""
        texts = {value for values in exactly.values() for value in values}
        with self._store.open_input_stream(path) as stream:
            entries: Any = fastavro.reader(stream)
            for entry in entries:
                file = entry.get("data_file")
                if file is None:  # a list of manifests, with the partitions of each
                    ends = ("lower_bound", "upper_bound")
                    found = {one[end] for one in entry.get("partitions") or () for end in ends}
                    if not is_live and found & texts:
                        return "describes a partition by a value"
                    continue
                bounds = [
                    (pair["key"], pair["value"])
                    for side in ("lower_bounds", "upper_bounds")
                    for pair in file.get(side) or ()
                ]
                if any(value in exactly.get(number, ()) for number, value in bounds):
                    return "describes a data file by a value"
                for name, value in (file.get("partition") or {}).items():
                    if value in self._condition.values.get(name, ()):
                        return "describes a partition by a value"
                is_gone = not is_live or entry.get("status") == DELETED
                if is_gone and any(value in loosely.get(number, ()) for number, value in bounds):
                    less_certain = CUT_SHORT
        return less_certain

    @cached_property
    def _bounds(self) -> tuple[dict[int, set[bytes]], dict[int, set[bytes]]]:
        """Field id -> bounds that tell a value: exactly, and with those that are cut short.

        Another value may be cut to the same text, so that counts only for files that are gone.
        """
        exactly: dict[int, set[bytes]] = {}
        loosely: dict[int, set[bytes]] = {}
        for name, values in self._condition.values.items():
            if self._bound is None:
                continue
            known = self._schema.find_field(name)
            number, kind = known.field_id, known.field_type
            assert isinstance(kind, PrimitiveType)  # noqa: S101 - as conditions are checked
            texts = {one for one in values if isinstance(one, str)}
            cut = {one[:BOUND_CHARACTERS] for one in texts}
            cut |= {one[:-1] + chr(ord(one[-1]) + 1) for one in cut if len(one) == BOUND_CHARACTERS}
            plain = (values - texts) | {one for one in texts if len(one) != BOUND_CHARACTERS}
            exactly[number] = {to_bytes(kind, one) for one in plain}
            loosely[number] = {to_bytes(kind, one) for one in {*values, *cut}}
        return exactly, loosely

    def _metadata(self, path: str) -> str:
        """A summary may name the partitions that it touched. Comments and counts are no matter."""
        raw = self._read(path)
        if raw[:2] == b"\x1f\x8b":
            raw = zlib.decompress(raw, wbits=31)
        summaries = [one.get("summary") or {} for one in json.loads(raw).get("snapshots", ())]
        named = [key for one in summaries for key in one if key.startswith("partitions.")]
        said = json.dumps(named, ensure_ascii=False).encode()
        return "the summary of a snapshot holds a value" if self._mentions(said) else ""

    def _in_path(self, path: str) -> str:
        for name, values in self._condition.values.items():
            if any(f"/{name}={quote_plus(str(value))}/" in path for value in values):
                return "its folder is named by a value"
        return ""

    def _mentions(self, raw: bytes) -> bool:
        return any(word.search(raw) for word in self._condition.words)

    def _read(self, path: str) -> bytes:
        with self._store.open_input_stream(path) as stream:
            return bytes(stream.read())


def _by_field_id(found: pa.Schema, schema: Any) -> dict[str, str]:
    """Name of the column in the table -> its name in the file, which may be older."""
    names = {one.field_id: one.name for one in schema.fields}
    result = {}
    for one in found:
        number = (one.metadata or {}).get(b"PARQUET:field_id")
        result[names.get(int(number), one.name) if number else one.name] = one.name
    return result


def _bytes(value: Any) -> bytes:
    match value:
        case None:
            return b""
        case bytes():
            return value
        case str():
            return value.encode()
        case dict():
            return b"\n".join(_bytes(one) for one in value.values())
        case list() | tuple():
            return b"\n".join(_bytes(one) for one in value)
    return str(value).encode()
