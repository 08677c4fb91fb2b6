"""The embedded catalog: pyiceberg's on SQLite, with metadata whose times never run backwards.

Java refuses metadata whose snapshot log or metadata log runs more than a minute backwards, and
pyiceberg writes whatever the clock says. So a clock that was set back, or a failover to a host
whose clock is behind, would make a table that Spark cannot read.
"""

from collections.abc import Iterable
from typing import TypeVar

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, SnapshotLogEntry
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

Entry = TypeVar("Entry", MetadataLogEntry, SnapshotLogEntry)


class EmbeddedCatalog(SqlCatalog):
    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        staged = super()._update_and_stage_table(
            current_table, table_identifier, requirements, updates
        )
        if current_table is not None:
            staged.metadata = never_backwards(current_table.metadata, staged.metadata)
        return staged


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
