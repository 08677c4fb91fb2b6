"""Bronze rows emptied for good: the record is gone, its place in the ledger stays.

A row is not deleted. Its coordinates and stamps stay, everything else becomes null, so the position
by rows is right, a backfill sees that the record was there, and the verifier knows that it was
taken out on purpose.
"""

import json
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from headwater.rows.amend import amend, branch_of
from headwater.rows.condition import Condition, as_sql
from ingestion.catalog import open_catalog
from ingestion.errors import ERASED
from ingestion.ledger import COORDINATES, OFFSETS, STAMP, next_stamp, read_position
from ingestion.settings import Settings
from ingestion.spark import quoted
from ingestion.stream import Stream

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import Column, SparkSession

PURPOSE = "forget"
KEPT = (*COORDINATES, "_kafka_timestamp", "_ingested_at")
ERASED_AT = "headwater.last-erasure"  # when a table has rows that were emptied

COMMIT_ATTEMPTS = 5

Coordinates = tuple[str, int, int]


def erase(
    spark: "SparkSession",
    settings: Settings,
    stream: Stream,
    condition: Condition,
    failed: list[Coordinates],
) -> int:
    """Empty the rows that fulfil the condition, and these failed ones. Returns how many.

    The commit is the newest marked one and names no file that it took out, so every older snapshot
    can be expired. Call it in a turn of the stream.
    """
    from pyspark.sql import functions as F

    catalog = open_catalog(settings)
    table = catalog.load_table(stream.table)
    seen = table.current_snapshot()
    if seen is None:
        return 0
    position = read_position(table)
    marks = {
        OFFSETS: json.dumps(position.offsets),
        STAMP: next_stamp(position.newest_stamp).isoformat(),
    }
    rows = spark.read.option("snapshot-id", seen.snapshot_id).table(quoted(stream.table))
    wanted = rows.where(_is_meant(condition, table, failed))
    found = wanted.agg(F.count(F.lit(1)), F.min("_ingested_at")).first()
    assert found is not None  # noqa: S101
    count, oldest = found
    if not count and not lists_deleted_files(table):
        return 0
    if count and ERASED_AT not in table.properties:
        with table.transaction() as transaction:
            transaction.set_properties({ERASED_AT: datetime.now(UTC).isoformat()})
    with amend(spark, stream, seen.snapshot_id, PURPOSE) as merge:
        if count:
            merge(wanted.select(*map(_emptied, rows.schema)), oldest, marks)
        forget_files(catalog.load_table(stream.table), branch_of(PURPOSE), marks)
    return int(count)


def _is_meant(condition: Condition, table: "Table", failed: list[Coordinates]) -> "Column":
    from pyspark.sql import functions as F

    places: dict[tuple[str, int], list[int]] = {}
    for topic, partition, offset in failed:
        places.setdefault((topic, partition), []).append(offset)
    by_place = [
        (F.col("_kafka_topic") == topic)
        & (F.col("_kafka_partition") == partition)
        & F.col("_kafka_offset").isin(offsets)
        for (topic, partition), offsets in places.items()
    ]
    fulfils = F.expr(as_sql(condition.bind(table.schema())))
    return reduce(or_, by_place, fulfils) & ~F.col("_error_type").eqNullSafe(ERASED)


def _emptied(field: Any) -> "Column":
    from pyspark.sql import functions as F

    if field.name in KEPT:
        return F.col(field.name)
    said = {
        "_error_type": ERASED,
        "_error_message": f"erased on {datetime.now(UTC):%Y-%m-%d} UTC",
    }
    return F.lit(said.get(field.name)).cast(field.dataType).alias(field.name)


# --- files that were taken out -------------------------------------------------------------------


def lists_deleted_files(table: "Table") -> bool:
    """Whether the manifests of the newest snapshot still describe files that were taken out."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    return any(one.deleted_files_count for one in manifests)


def forget_files(table: "Table", branch: str = "main", marks: dict[str, str] | None = None) -> None:
    """A commit without rows, whose manifests do not describe files that were taken out.

    The commit that takes a file out lists it as deleted, together with the least and greatest value
    of its columns. Iceberg's own rewrite_manifests leaves a single manifest as it is.
    """
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update.snapshot import _FastAppendFiles

    class WithoutDeleted(_FastAppendFiles):
        def _existing_manifests(self) -> list[ManifestFile]:
            return [
                clean
                for manifest in super()._existing_manifests()
                if (clean := self._clean(manifest)) is not None
            ]

        def _clean(self, manifest: ManifestFile) -> ManifestFile | None:
            if not manifest.deleted_files_count:
                return manifest
            entries = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
            if not entries:
                return None
            with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
                for entry in entries:
                    writer.add_entry(
                        ManifestEntry.from_args(
                            status=ManifestEntryStatus.EXISTING,
                            snapshot_id=entry.snapshot_id,
                            sequence_number=entry.sequence_number,
                            file_sequence_number=entry.file_sequence_number,
                            data_file=entry.data_file,
                        )
                    )
            return writer.to_manifest_file()

    for attempt in range(COMMIT_ATTEMPTS):
        try:
            with table.transaction() as transaction:
                WithoutDeleted(
                    Operation.APPEND,
                    transaction,
                    table.io,
                    snapshot_properties=marks or {},
                    branch=branch,
                ).commit()
            return
        except (CommitFailedException, ValueError):  # another commit was quicker
            if attempt == COMMIT_ATTEMPTS - 1:
                raise
            table.refresh()
