"""The bronze table is the ledger: it says where its stream stands, and each commit moves that.

A commit carries its rows, the end offsets of its batch and the claim that nobody committed since
this writer looked, in one Iceberg snapshot. Iceberg refuses it when the claim does not hold.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headwater.errors import TableMovedError
from headwater.kafka import Offsets
from headwater.spark import quoted
from ingestion.origin import (
    behind_retired,
    gaps,
    retired_offsets,
    start_offsets,
    without_gaps,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import Column, DataFrame

OFFSETS = "headwater.offsets"
STAMP = "headwater.ingested-at"

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COORDINATES = ("_kafka_topic", "_kafka_partition", "_kafka_offset")


@dataclass(frozen=True)
class Position:
    """Where a stream stands: what to read next, and what its writer has seen of the table."""

    offsets: Offsets
    snapshot_id: int | None
    newest_stamp: datetime


def read_position(table: "Table") -> Position:
    """From the newest marked snapshot; where none is left, from the rows.

    Never before what retention has removed, though neither may know of it: a rollback may have
    brought back an older mark, and the rows are gone.
    """
    start, lost, retired = start_offsets(table), gaps(table), retired_offsets(table)
    current = table.current_snapshot()
    if current is None:
        return Position(without_gaps(start, lost), None, EPOCH)
    marked = newest_marked(table)
    if marked is not None and marked.summary is not None:
        return Position(
            without_gaps(
                behind_retired(json.loads(marked.summary[OFFSETS] or "{}"), retired), lost
            ),
            marked.snapshot_id,
            datetime.fromisoformat(marked.summary[STAMP] or ""),
        )
    offsets, newest = position_of_rows(table)
    for topic, partitions in start.items():
        offsets[topic] = partitions | offsets.get(topic, {})
    position = without_gaps(behind_retired(offsets, retired), lost)
    return Position(position, current.snapshot_id, newest)


def own_position(table: "Table", stamp: datetime, end: Offsets) -> Position:
    """Where this writer stands after its own commit of that stamp.

    Not where the table stands: if another writer has committed since, this one must not take up
    that position while it goes on reading from its own. Its next commit will be refused.
    """
    for snapshot in reversed(table.snapshots()):
        if snapshot.summary and snapshot.summary.get(STAMP) == stamp.isoformat():
            return Position(end, snapshot.snapshot_id, stamp)
    raise moved(".".join(table.name()[-2:]), "its last commit is gone from the table")


def newest_marked(table: "Table") -> "Snapshot | None":
    """The newest snapshot in the table's present history that carries offsets."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        if snapshot.summary is not None and snapshot.summary.get(OFFSETS):
            return snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    return None


def position_of_rows(table: "Table") -> tuple[Offsets, datetime]:
    """The next offset of each partition by the rows themselves, and their newest stamp.

    A file that holds one partition says both in its bounds. Only files that compaction has mixed
    are read.
    """
    offsets: Offsets = {}
    newest = EPOCH
    mixed: set[str] = set()

    def seen(topic: str, partition: int, offset: int) -> None:
        known = offsets.setdefault(topic, {})
        known[str(partition)] = max(known.get(str(partition), 0), offset + 1)

    for file in data_files(table):
        bounds = _bounds(table, file, (*COORDINATES, "_ingested_at"))
        newest = max(newest, EPOCH + timedelta(microseconds=bounds["_ingested_at"][1]))
        (topic, last_topic), (partition, last_partition), (_, offset) = (
            bounds[name] for name in COORDINATES
        )
        if topic == last_topic and partition == last_partition:
            seen(topic, partition, offset)
        else:
            mixed.add(file.file_path)
    if mixed:
        for row in _newest_rows(table, mixed):
            seen(*row)
    return offsets, newest


def data_files(table: "Table") -> list["DataFile"]:
    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    return [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    ]


def _bounds(table: "Table", file: "DataFile", names: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import PrimitiveType

    found = {}
    for name in names:
        field = table.schema().find_field(name)
        assert isinstance(field.field_type, PrimitiveType)  # noqa: S101
        found[name] = (
            from_bytes(field.field_type, file.lower_bounds[field.field_id]),
            from_bytes(field.field_type, file.upper_bounds[field.field_id]),
        )
    return found


def _newest_rows(table: "Table", paths: set[str]) -> list[tuple[str, int, int]]:
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    scan = table.scan(selected_fields=COORDINATES)
    tasks = [task for task in scan.plan_files() if task.file.file_path in paths]
    rows = ArrowScan(table.metadata, table.io, scan.projection(), AlwaysTrue()).to_table(tasks)
    newest = rows.group_by(list(COORDINATES[:2])).aggregate([(COORDINATES[2], "max")])
    return [
        (row[COORDINATES[0]], row[COORDINATES[1]], row[f"{COORDINATES[2]}_max"])
        for row in newest.to_pylist()
    ]


def next_stamp(newest: datetime) -> datetime:
    """Now, or a microsecond after the newest stamp: it grows whatever the clock does."""
    return max(datetime.now(UTC), newest + timedelta(microseconds=1))


def commit(rows: "DataFrame", table: str, seen: Position, end: Offsets) -> datetime:
    """Write one batch, or nothing at all. Returns the stamp of its rows, for `own_position`."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    stamp = next_stamp(seen.newest_stamp)
    writer = (
        rows.withColumn("_ingested_at", _constant(stamp))
        .writeTo(quoted(table))
        .option("isolation-level", "serializable")
        .option(f"snapshot-property.{OFFSETS}", json.dumps(end))
        .option(f"snapshot-property.{STAMP}", stamp.isoformat())
    )
    if seen.snapshot_id is not None:
        writer = writer.option("validate-from-snapshot-id", str(seen.snapshot_id))
    try:
        # Nothing is newer than the newest stamp, unless someone committed in between: then
        # Iceberg sees a conflict and refuses.
        writer.overwrite(F.col("_ingested_at") > F.lit(seen.newest_stamp))
    except (Py4JJavaError, PySparkException) as error:
        text = str(error)
        if "ValidationException" in text or "Cannot determine history" in text:
            reason = "its commit was refused and nothing of it was written"
            raise moved(table, reason) from error
        raise
    return stamp


def _constant(stamp: datetime) -> "Column":
    """The stamp, kept out of the code that Spark generates.

    As a plain literal it would stand in that code, which would so be other code for each batch: it
    would be compiled anew and begin cold. An array is handed to the code from outside.
    """
    from pyspark.sql import functions as F

    return F.get(F.array(F.lit(stamp)), F.col("_kafka_partition") % 1)


def moved(table: str, reason: str) -> TableMovedError:
    return TableMovedError(
        f"{table} was changed by someone else since this ingestion last looked; {reason}",
        "run one ingestion per stream, then start again: it goes on from the table",
    )
