"""The bronze table is the ledger: it holds the position of its stream, and each commit moves it.

A commit carries its data files, the end offsets of its batch and the claim that the newest marked
snapshot is still the one that this writer saw, in one Iceberg snapshot, or nothing at all.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.types import PrimitiveType
from pyiceberg.utils.properties import property_as_int

from ingestion.errors import HeadwaterError, TableMovedError
from ingestion.history import History, files_of, outdated
from ingestion.manifests import FilesGoneError, Staged, discard, stage
from ingestion.offsets import Offsets
from ingestion.origin import gaps, retired_offsets, start_offsets, without_gaps

OFFSETS = "headwater.offsets"
STAMP = "headwater.ingested-at"
COMMIT_ID = "headwater.commit-id"

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COORDINATES = ("_kafka_topic", "_kafka_partition", "_kafka_offset")
BOUNDED = (*COORDINATES, "_ingested_at")  # their bounds in each file give the position

LONGEST_PAUSE = 60.0  # seconds
THINNED_EVERY = timedelta(minutes=1)
# How long to keep the files of a removed snapshot: maintenance or a search may be reading them.
LEFT_FOR = timedelta(minutes=10)


def needed_metrics() -> dict[str, str]:
    """The table properties that keep those bounds, whatever the table's defaults are."""
    return {f"write.metadata.metrics.column.{name}": "full" for name in BOUNDED}


@dataclass(frozen=True)
class Position:
    """The position of a stream: what to read next, and what its writer has seen of the table."""

    offsets: Offsets
    snapshot_id: int | None
    newest_stamp: datetime


class Ledger:
    """One writer's view of a bronze table. Only `refresh` accepts what another writer committed."""

    def __init__(self, catalog: Catalog, identifier: str) -> None:
        self.catalog = catalog
        self.identifier = identifier
        self._thinned_at = EPOCH
        self._leftovers: list[tuple[datetime, list[str]]] = []
        self.refresh()

    def refresh(self) -> None:
        self.table = self.catalog.load_table(self.identifier)
        self.position = read_position(self.table)

    def next_stamp(self) -> datetime:
        return next_stamp(self.position.newest_stamp)

    def commit(
        self,
        end: Offsets,
        stamp: datetime,
        added: Sequence[DataFile],
        removed: Sequence[DataFile] = (),
        without_trace: bool = False,
    ) -> Snapshot:
        """Commit these files in one snapshot that moves the stream to `end`, or raise an error.

        If only maintenance has changed the table since, the snapshot is built again on top of
        that. Data files of a failed commit are left for orphan removal.
        """
        if stamp <= self.position.newest_stamp:
            raise ValueError(f"{stamp} is not after {self.position.newest_stamp}")
        commit_id = uuid4().hex
        mark = {OFFSETS: end.to_text(), STAMP: stamp.isoformat(), COMMIT_ID: commit_id}
        pauses, refused = _pauses(self.table), list[Staged]()
        table = self.table
        try:
            while True:
                attempt = None
                try:
                    table, old = self._thinned(table, stamp)
                    attempt = stage(table, added, removed, mark, without_trace)
                    landed: Snapshot | None = attempt.snapshot
                    updates = _next(table, attempt.snapshot, old)
                    before, table = table, send(self.catalog, table, updates)
                    self._forget(before, old, stamp)
                except FilesGoneError as error:
                    raise moved(self.identifier, "rows to replace are gone") from error
                except Exception as error:  # a lost answer can look like anything
                    before, table = table, self._loaded_after(error)
                    landed = _with_commit_id(table, commit_id)
                    if landed is None:
                        if attempt and isinstance(error, CommitFailedException):
                            refused.append(attempt)
                        self._check_still_mine(table, error)
                        is_newer = table.metadata_location != before.metadata_location
                        self._pause_or_raise(pauses, error, is_newer)
                if landed is not None:
                    if (
                        newest_marked(table) == landed
                    ):  # else keep the old view, so that the next commit is refused
                        self.table = table
                    self.position = Position(end, landed.snapshot_id, stamp)
                    return landed
        finally:
            discard(self.table.io, [path for staged in refused for path in staged.written])

    def _thinned(self, table: Table, stamp: datetime) -> tuple[Table, list[Snapshot]]:
        """The snapshots that the next commit removes, by the newest tags and branches."""
        if stamp < self._thinned_at + THINNED_EVERY:
            return table, []
        newest = self.catalog.load_table(self.identifier)
        if _claim(newest) != _claim(table):
            return table, []
        self._thinned_at = stamp
        return newest, outdated(newest.metadata, History.of(newest), int(stamp.timestamp() * 1000))

    def _forget(self, table: Table, removed: Sequence[Snapshot], stamp: datetime) -> None:
        """Delete the files of removed snapshots after a while; orphan removal finds the rest."""
        with suppress(Exception):
            if removed:
                self._leftovers.append((stamp, files_of(table, removed)))
        while self._leftovers and self._leftovers[0][0] + LEFT_FOR < stamp:
            discard(table.io, self._leftovers.pop(0)[1])

    def _loaded_after(self, error: Exception) -> Table:
        """The table as it is now. If it cannot be read, the outcome is unknown: raise the error."""
        try:
            table = self.catalog.load_table(self.identifier)
        except NoSuchTableError:
            raise moved(self.identifier, "it was dropped") from error
        except Exception:
            raise error from None
        if table.metadata.table_uuid != self.table.metadata.table_uuid:
            raise moved(self.identifier, "it was dropped and made again") from error
        return table

    def _check_still_mine(self, table: Table, error: Exception) -> None:
        marked = newest_marked(table)
        if marked is not None:
            is_mine = marked.snapshot_id == self.position.snapshot_id
        else:  # the marks were expired, or there never were any: the rows decide
            is_mine = position_of_rows(table)[1] == self.position.newest_stamp
        if not is_mine:
            reason = "its commit was refused and nothing of it was written"
            raise moved(self.identifier, reason) from error

    def _pause_or_raise(self, pauses: Iterator[float], error: Exception, is_newer: bool) -> None:
        is_refusal = isinstance(error, CommitFailedException)
        if not (is_refusal or is_newer or "database is locked" in str(error)):
            raise error
        if (pause := next(pauses, None)) is None:
            raise HeadwaterError(
                f"{self.identifier} took no commit; at last: {str(error).splitlines()[0]}",
                "see who else commits to it all the time; or raise table.commit_retries in the "
                "stream file",
            ) from error
        time.sleep(pause)


def send(catalog: Catalog, table: Table, updates: tuple[TableUpdate, ...]) -> Table:
    """Send the updates once, on condition that the table and its main branch have not changed.

    pyiceberg's own transactions build a snapshot again and retry when the claim does not hold,
    without asking who else has committed.
    """
    answer = catalog.commit_table(table, _claim(table), updates)
    with suppress(Exception):  # the commit is done, whether the old files can be deleted or not
        catalog._delete_old_metadata(table.io, table.metadata, answer.metadata)
    return Table(table.name(), answer.metadata, answer.metadata_location, table.io, catalog)


def commit_without_trace(catalog: Catalog, table: Table) -> None:
    """A commit of no rows, whose manifests do not describe files that were taken out."""
    staged = stage(table, (), (), {}, without_trace=True)
    send(catalog, table, _next(table, staged.snapshot, ()))


def _claim(table: Table) -> tuple[TableRequirement, ...]:
    return (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=table.metadata.current_snapshot_id),
    )


def _next(table: Table, snapshot: Snapshot, old: Sequence[Snapshot]) -> tuple[TableUpdate, ...]:
    """The main branch goes on to this snapshot, and keeps its own rules of retention."""
    rules = table.metadata.refs.get(MAIN_BRANCH)
    thin = RemoveSnapshotsUpdate(snapshot_ids=[gone.snapshot_id for gone in old])
    return (
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate(
            ref_name=MAIN_BRANCH,
            type=SnapshotRefType.BRANCH,
            snapshot_id=snapshot.snapshot_id,
            max_ref_age_ms=rules.max_ref_age_ms if rules else None,
            max_snapshot_age_ms=rules.max_snapshot_age_ms if rules else None,
            min_snapshots_to_keep=rules.min_snapshots_to_keep if rules else None,
        ),
        *([thin] if old else []),
    )


def _pauses(table: Table) -> Iterator[float]:
    """Seconds between the tries that the table's properties allow, each twice the one before."""
    retries, first = (
        property_as_int(table.properties, name, default) or 0
        for name, default in (
            (TableProperties.COMMIT_NUM_RETRIES, TableProperties.COMMIT_NUM_RETRIES_DEFAULT),
            (TableProperties.COMMIT_MIN_RETRY_WAIT_MS, 100),
        )
    )
    return (min(first / 1000 * 2**n, LONGEST_PAUSE) for n in range(retries))


def _with_commit_id(table: Table, commit_id: str) -> Snapshot | None:
    for snapshot in reversed(table.snapshots()):
        if snapshot.summary and snapshot.summary[COMMIT_ID] == commit_id:
            return snapshot
    return None


def read_position(table: Table) -> Position:
    """From the newest marked snapshot; where none is left, from the rows.

    Never before what retention has removed, though neither may know of it: a rollback may have
    brought back an older mark, and the rows are gone.
    """
    current, marked = table.current_snapshot(), newest_marked(table)
    if current is None:
        return Position(without_gaps(start_offsets(table), gaps(table)), None, EPOCH)
    if marked is not None and marked.summary is not None:
        offsets = Offsets.from_text(marked.summary[OFFSETS])
        newest = datetime.fromisoformat(marked.summary[STAMP] or "")
    else:
        offsets, newest = position_of_rows(table)
        offsets = start_offsets(table) | offsets
    offsets = without_gaps(offsets.raised_to(retired_offsets(table)), gaps(table))
    return Position(offsets, (marked or current).snapshot_id, newest)


def newest_marked(table: Table) -> Snapshot | None:
    """The newest snapshot in the table's present history that carries offsets."""
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if snapshot.summary is not None and snapshot.summary[OFFSETS]:
            return snapshot
    return None


def position_of_rows(table: Table) -> tuple[Offsets, datetime]:
    """The next offset of each partition by the rows themselves, and their newest stamp.

    A file that holds one partition says both in its bounds. Only others are read: compaction makes
    files of several partitions, and a table that was changed in SQL may have files without bounds.
    """
    newest, unclear = EPOCH, set[str]()
    offsets: dict[tuple[str, int], int] = {}
    for file in data_files(table):
        bounds = _bounds(table, file)
        if bounds is None or bounds[0][:2] != bounds[1][:2]:
            unclear.add(file.file_path)
            continue
        topic, partition, last, stamp = bounds[1]
        offsets[topic, partition] = max(offsets.get((topic, partition), 0), last + 1)
        newest = max(newest, EPOCH + timedelta(microseconds=stamp))
    rows = _rows_of(table, unclear)
    return Offsets(offsets).raised_to(rows[0]), max(newest, rows[1])


def data_files(table: Table) -> list[DataFile]:
    snapshot = table.current_snapshot()
    return [
        entry.data_file
        for manifest in (snapshot.manifests(table.io) if snapshot else [])
        if manifest.content == ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    ]


def _bounds(table: Table, file: DataFile) -> tuple[list[Any], list[Any]] | None:
    """The least and the greatest of each column in BOUNDED, if the file says all of them."""
    least, greatest = list[Any](), list[Any]()
    for name in BOUNDED:
        field = table.schema().find_field(name)
        assert isinstance(field.field_type, PrimitiveType)  # noqa: S101
        for values, bounds in ((least, file.lower_bounds), (greatest, file.upper_bounds)):
            if field.field_id not in (bounds or ()):
                return None
            values.append(from_bytes(field.field_type, bounds[field.field_id]))
    return least, greatest


def _rows_of(table: Table, paths: set[str]) -> tuple[Offsets, datetime]:
    if not paths:
        return Offsets(), EPOCH
    scan = table.scan(selected_fields=BOUNDED)
    tasks = [task for task in scan.plan_files() if task.file.file_path in paths]
    rows = ArrowScan(table.metadata, table.io, scan.projection(), AlwaysTrue()).to_table(tasks)
    topic, partition, offset, stamp = BOUNDED
    newest = rows.group_by([topic, partition]).aggregate([(offset, "max"), (stamp, "max")])
    ends = {(row[topic], row[partition]): row[f"{offset}_max"] + 1 for row in newest.to_pylist()}
    return Offsets(ends), max(newest[f"{stamp}_max"].to_pylist(), default=EPOCH)


def next_stamp(newest: datetime) -> datetime:
    """Now, or a microsecond after the newest stamp: it grows whatever the clock does."""
    return max(datetime.now(UTC), newest + timedelta(microseconds=1))


def moved(table: str, reason: str) -> TableMovedError:
    return TableMovedError(
        f"{table} was changed by someone else since this ingestion last looked; {reason}",
        "run one ingestion per stream, then start again: it goes on from the table",
    )
