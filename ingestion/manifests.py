"""A snapshot to commit: the files that it adds and removes, written as manifests.

Each commit adds a manifest, so small ones are merged as they come, a few at a time, into one of the
next size: a table of 60,000 commits lists a few dozen of them, and none is written again often.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.utils.properties import property_as_int

FAN_IN = 16  # this many manifests of one size become one of the next
LARGEST_MERGE = 200  # where a table has far more of them, written by others


class FilesGoneError(Exception):
    """Files to remove are not in the table any more."""


@dataclass
class Staged:
    """A snapshot that is written and not committed, and the files that only it refers to."""

    snapshot: Snapshot
    written: list[str]


def stage(
    table: Table,
    added: Sequence[DataFile],
    removed: Sequence[DataFile],
    properties: Mapping[str, str],
    without_trace: bool = False,
) -> Staged:
    """Written on top of the table's current snapshot; each removed file must still be in it.

    A manifest lists the files that were taken out with the bounds of their columns. `without_trace`
    leaves them out of the new snapshot, those of earlier commits as well.
    """
    parent = table.current_snapshot()
    writer = _Writer(table)
    manifests = [
        manifest
        for manifest in (parent.manifests(table.io) if parent else [])
        if manifest.has_added_files() or manifest.has_existing_files()
    ]
    manifests, gone = writer.without(manifests, removed, without_trace)
    manifests = writer.merged(manifests)
    manifests = writer.adding(added) + manifests
    snapshot = Snapshot(
        snapshot_id=writer.snapshot_id,
        parent_snapshot_id=parent.snapshot_id if parent else None,
        sequence_number=table.metadata.next_sequence_number(),
        timestamp_ms=_now(table),
        manifest_list=writer.manifest_list(manifests),
        summary=_summary(table, added, gone, properties),
        schema_id=table.metadata.current_schema_id,
    )
    return Staged(snapshot, writer.written)


def discard(io: FileIO, paths: Iterable[str]) -> None:
    """Delete files. Orphan removal finds those that cannot be deleted now."""
    for path in paths:
        with suppress(Exception):
            io.delete(path)


def _now(table: Table) -> int:
    """Never before what the table has seen: its clock may have been ahead of this one."""
    parent = table.current_snapshot()
    newest = parent.timestamp_ms if parent else 0
    return max(int(time.time() * 1000), newest, table.metadata.last_updated_ms)


@dataclass
class _Writer:
    table: Table
    written: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.snapshot_id = self.table.metadata.new_snapshot_id()
        self._name = uuid4()
        self._compression = self.table.properties.get(
            TableProperties.WRITE_AVRO_COMPRESSION, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT
        )

    def adding(self, files: Sequence[DataFile]) -> list[ManifestFile]:
        by_spec = defaultdict(list)
        for file in files:
            spec_id = getattr(file, "spec_id", self.table.metadata.default_spec_id)
            by_spec[spec_id].append(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=self.snapshot_id, data_file=file
                )
            )
        return [self._manifest(spec_id, entries) for spec_id, entries in by_spec.items()]

    def without(
        self, manifests: list[ManifestFile], removed: Sequence[DataFile], without_trace: bool
    ) -> tuple[list[ManifestFile], list[DataFile]]:
        """Those that held a removed file are written again and say so."""
        missing = {file.file_path for file in removed}
        kept, gone = [], []
        for manifest in manifests:
            is_cleaned = without_trace and bool(manifest.deleted_files_count)
            entries = self._live_entries(manifest) if missing or is_cleaned else []
            hit = [entry for entry in entries if entry.data_file.file_path in missing]
            if not hit and not is_cleaned:
                kept.append(manifest)
                continue
            for entry in hit:
                entry.status = ManifestEntryStatus.DELETED
                entry.snapshot_id = self.snapshot_id
                gone.append(entry.data_file)
                missing.discard(entry.data_file.file_path)
            if without_trace:
                entries = [
                    entry for entry in entries if entry.status != ManifestEntryStatus.DELETED
                ]
            if entries:
                kept.append(self._manifest(manifest.partition_spec_id, entries))
        if missing:
            raise FilesGoneError(", ".join(sorted(missing)))
        return kept, gone

    def merged(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """The smallest that are many are made one; their entries keep what they say of the past."""
        largest = property_as_int(
            self.table.properties,
            TableProperties.MANIFEST_TARGET_SIZE_BYTES,
            TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT,
        )
        groups = defaultdict(list)
        for manifest in manifests:
            is_old = manifest.added_snapshot_id != self.snapshot_id
            if is_old and _is_data(manifest) and manifest.manifest_length < (largest or 0):
                groups[_size(manifest), manifest.partition_spec_id].append(manifest)
        for (_, spec_id), group in sorted(groups.items()):
            if len(group) >= FAN_IN:
                group = group[:LARGEST_MERGE]
                entries = [entry for manifest in group for entry in self._live_entries(manifest)]
                paths = {manifest.manifest_path for manifest in group}
                kept = [manifest for manifest in manifests if manifest.manifest_path not in paths]
                return [self._manifest(spec_id, entries), *kept]
        return manifests

    def manifest_list(self, manifests: list[ManifestFile]) -> str:
        path = self._path(f"snap-{self.snapshot_id}-0-{self._name}.avro")
        with write_manifest_list(
            format_version=self.table.metadata.format_version,
            output_file=self.table.io.new_output(path),
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=self.table.metadata.current_snapshot_id,
            sequence_number=self.table.metadata.next_sequence_number(),
            avro_compression=self._compression,  # type: ignore[arg-type]
        ) as writer:
            writer.add_manifests(manifests)
        return path

    def _manifest(self, spec_id: int, entries: Sequence[ManifestEntry]) -> ManifestFile:
        path = self._path(f"{self._name}-m{len(self.written)}.avro")
        with write_manifest(
            format_version=self.table.metadata.format_version,
            spec=self.table.specs()[spec_id],
            schema=self.table.schema(),
            output_file=self.table.io.new_output(path),
            snapshot_id=self.snapshot_id,
            avro_compression=self._compression,  # type: ignore[arg-type]
        ) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def _live_entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """As they are in a manifest of a later snapshot: theirs is the snapshot that added them."""
        if not _is_data(manifest):
            return []
        entries = manifest.fetch_manifest_entry(self.table.io, discard_deleted=True)
        for entry in entries:
            entry.status = ManifestEntryStatus.EXISTING
        return entries

    def _path(self, name: str) -> str:
        path = self.table.location_provider().new_metadata_location(name)
        self.written.append(path)
        return path


def _is_data(manifest: ManifestFile) -> bool:
    return bool(manifest.content == ManifestContent.DATA)


def _size(manifest: ManifestFile) -> int:
    """How many times its files can be divided by the fan-in."""
    files, size = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0), 0
    while files >= FAN_IN:
        files, size = files // FAN_IN, size + 1
    return size


def _summary(
    table: Table,
    added: Sequence[DataFile],
    removed: Sequence[DataFile],
    properties: Mapping[str, str],
) -> Summary:
    counts = SnapshotSummaryCollector()
    specs, schema = table.specs(), table.schema()
    for file in added:
        spec_id = getattr(file, "spec_id", table.metadata.default_spec_id)
        counts.add_file(file, schema, specs[spec_id])
    for file in removed:
        counts.remove_file(file, schema, specs[file.spec_id])
    parent = table.current_snapshot()
    operation = Operation.OVERWRITE if removed else Operation.APPEND
    return update_snapshot_summaries(
        Summary(operation, **counts.build(), **properties), parent.summary if parent else None
    )


def lists_removed_files(table: Table) -> bool:
    """Whether the manifests of the newest snapshot still describe files that were taken out."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    return any(manifest.deleted_files_count for manifest in manifests)
