"""The embedded catalog: pyiceberg's on SQLite, with metadata whose times never run backwards.

Java refuses metadata whose snapshot log or metadata log runs more than a minute backwards, and
pyiceberg writes whatever the clock says. So a clock that was set back, or a failover to a host
whose clock is behind, would make a table that Spark cannot read.
"""

from collections.abc import Iterable
from typing import Any, TypeVar
from uuid import UUID

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry
from pyiceberg.table.update import RemoveSnapshotsUpdate, TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

Entry = TypeVar("Entry", MetadataLogEntry, SnapshotLogEntry)


def _shared(entry: Any, _memo: object = None) -> Any:
    return entry


# pyiceberg copies a table's metadata in depth at each commit. These never change, and are many.
for frozen in (Snapshot, SnapshotLogEntry):
    setattr(frozen, "__deepcopy__", _shared)  # noqa: B010 - a plain assignment is refused by mypy


class EmbeddedCatalog(SqlCatalog):
    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._newest: dict[Identifier, Table] = {}
        self._snapshots = _SnapshotTexts()

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        answer = super().commit_table(table, requirements, updates)
        self._newest[table.name()] = Table(
            table.name(), answer.metadata, answer.metadata_location, table.io, self
        )
        return answer

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        """Read the table's metadata, unless it is the file that was read or written last."""
        name = (orm_table.table_namespace, orm_table.table_name)
        table = self._newest.get(name)
        if table is None or table.metadata_location != orm_table.metadata_location:
            table = self._newest[name] = super()._convert_orm_to_iceberg(orm_table)
        return Table(name, table.metadata, table.metadata_location, table.io, self)

    def _write_metadata(  # type: ignore[override]  # pyiceberg's is static
        self, metadata: TableMetadata, io: FileIO, metadata_path: str
    ) -> None:
        others = metadata.model_copy(update={"snapshots": []}).model_dump_json()
        before, key, behind = others.partition('"snapshots":[')
        with io.new_output(metadata_path).create() as file:
            file.write((before + key).encode())
            file.write(b",".join(self._snapshots.of(metadata)))
            file.write(behind.encode())

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        if current_table is not None:
            _check_refs(current_table.metadata, updates)
        staged = super()._update_and_stage_table(
            current_table, table_identifier, requirements, updates
        )
        if current_table is not None:
            staged.metadata = never_backwards(current_table.metadata, staged.metadata)
        return staged


class _SnapshotTexts:
    """The snapshots of a table as JSON. Nearly all of them are those of the commit before."""

    def __init__(self) -> None:
        self._known: dict[UUID, dict[int, tuple[Snapshot, bytes]]] = {}

    def of(self, metadata: TableMetadata) -> list[bytes]:
        known = self._known.get(metadata.table_uuid, {})
        texts = {}
        for snapshot in metadata.snapshots:
            entry = known.get(snapshot.snapshot_id)
            if entry is None or entry[0] is not snapshot:
                entry = snapshot, snapshot.model_dump_json().encode()
            texts[snapshot.snapshot_id] = entry
        self._known[metadata.table_uuid] = texts
        return [text for _, text in texts.values()]


def _check_refs(metadata: TableMetadata, updates: Iterable[TableUpdate]) -> None:
    """A tag that was set meanwhile keeps its snapshot: pyiceberg would remove the tag with it."""
    removed = {
        number
        for update in updates
        if isinstance(update, RemoveSnapshotsUpdate)
        for number in update.snapshot_ids
    }
    for name, ref in metadata.refs.items():
        if ref.snapshot_id in removed:
            raise CommitFailedException(f"{name} refers to the snapshot {ref.snapshot_id}")


def never_backwards(base: TableMetadata, changed: TableMetadata) -> TableMetadata:
    """The changed metadata with times at least as late as those before them."""
    snapshot_log, metadata_log = rising(changed.snapshot_log), rising(changed.metadata_log)
    logged = [log[-1].timestamp_ms for log in (snapshot_log, metadata_log) if log]
    return changed.model_copy(
        update={
            "last_updated_ms": max(changed.last_updated_ms, base.last_updated_ms, *logged),
            "snapshot_log": snapshot_log,
            "metadata_log": metadata_log,
        }
    )


def rising(log: Iterable[Entry]) -> list[Entry]:
    newest, found = 0, []
    for entry in log:
        newest = max(newest, entry.timestamp_ms)
        is_behind = entry.timestamp_ms < newest
        found.append(entry.model_copy(update={"timestamp_ms": newest}) if is_behind else entry)
    return found
