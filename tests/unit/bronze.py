"""A small bronze table in an embedded catalog, and the commits that ledger tests make to it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from ingestion.embedded_catalog import EmbeddedCatalog
from ingestion.ledger import Ledger, data_files, needed_metrics
from ingestion.offsets import Offsets

NAME = "bronze.numbers"
SCHEMA = Schema(
    NestedField(1, "_kafka_topic", StringType(), required=False),
    NestedField(2, "_kafka_partition", IntegerType(), required=False),
    NestedField(3, "_kafka_offset", LongType(), required=False),
    NestedField(4, "_ingested_at", TimestamptzType(), required=False),
)
ARROW = SCHEMA.as_arrow()
SPEC = PartitionSpec(PartitionField(4, 1000, DayTransform(), "_ingested_at_day"))
PROPERTIES = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.retry.num-retries": "4",
    "commit.retry.min-wait-ms": "1",
}


class Catalog(EmbeddedCatalog):
    """The embedded catalog, with something that happens around the next commit."""

    before: Callable[[], object] = staticmethod(lambda: None)
    after: Callable[[], object] = staticmethod(lambda: None)

    def commit_table(self, *arguments: Any) -> CommitTableResponse:
        before, after = self.before, self.after
        self.__dict__.pop("before", None)
        self.__dict__.pop("after", None)
        before()
        answer = super().commit_table(*arguments)
        after()
        return answer


def open_catalog(folder: Path, timeout: float = 30) -> Catalog:
    uri = f"sqlite:///{folder}/catalog.db?timeout={timeout}"
    return Catalog("lake", uri=uri, warehouse=f"file://{folder}/warehouse")


def make_table(catalog: Catalog, name: str = NAME, **properties: str) -> Table:
    catalog.create_namespace_if_not_exists(name.split(".")[0])
    return catalog.create_table(
        name, SCHEMA, partition_spec=SPEC, properties=PROPERTIES | needed_metrics() | properties
    )


def rows(first: int, end: int, stamp: datetime, partition: int = 0) -> pa.Table:
    offsets = range(first, end)
    return pa.Table.from_pydict(
        {
            "_kafka_topic": ["t"] * len(offsets),
            "_kafka_partition": [partition] * len(offsets),
            "_kafka_offset": list(offsets),
            "_ingested_at": [stamp] * len(offsets),
        },
        ARROW,
    )


def files(table: Table, *parts: pa.Table) -> list[DataFile]:
    return [
        file for part in parts for file in _dataframe_to_data_files(table.metadata, part, table.io)
    ]


def land(ledger: Ledger, count: int = 10, partition: int = 0) -> None:
    """The next records of one partition."""
    one, stamp = ("t", partition), ledger.next_stamp()
    first = ledger.position.offsets.get(one, 0)
    added = files(ledger.table, rows(first, first + count, stamp, partition))
    ledger.commit(ledger.position.offsets | {one: first + count}, stamp, added)


def compact(catalog: Catalog) -> None:
    """All rows in one file, in a commit that says nothing about offsets."""
    table = catalog.load_table(NAME)
    everything = table.scan(selected_fields=ARROW.names).to_arrow().cast(ARROW)
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as change:
        for file in data_files(table):
            change.delete_data_file(file)
        for file in files(table, everything):
            change.append_data_file(file)


def expire(catalog: Catalog) -> None:
    """All snapshots but the newest, and the files that only they refer to, as Spark does it."""
    table = catalog.load_table(NAME)
    current = table.metadata.current_snapshot_id
    old = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != current]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    for path in manifest_files(table) - known_manifest_files(table.refresh()):
        table.io.delete(path)


def landed(catalog: Catalog) -> list[tuple[int, int]]:
    """The coordinates of all rows, in their order."""
    table = catalog.load_table(NAME).scan().to_arrow()
    columns = (table[name].to_pylist() for name in ("_kafka_partition", "_kafka_offset"))
    return sorted(zip(*columns, strict=True))


def upto(*ends: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, end in enumerate(ends) for offset in range(end)]


def offsets(*ends: int) -> Offsets:
    return Offsets({("t", partition): end for partition, end in enumerate(ends)})


def manifest_files(table: Table) -> set[str]:
    """All manifests and manifest lists in the table's folder."""
    folder = Path(urlparse(table.location()).path, "metadata")
    return {f"file://{path}" for path in folder.glob("*.avro")}


def known_manifest_files(table: Table) -> set[str]:
    """Those that snapshots of the table refer to."""
    lists = {one.manifest_list for one in table.snapshots()}
    return lists | {
        manifest.manifest_path for one in table.snapshots() for manifest in one.manifests(table.io)
    }


@contextmanager
def clock(by: timedelta) -> Iterator[None]:
    """This host's clock, set forward or back, for the ledger as for pyiceberg."""
    import time

    real_time = time.time

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.fromtimestamp(real_time() + by.total_seconds(), tz)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: real_time() + by.total_seconds())
        patch.setattr("pyiceberg.table.update.datetime", Shifted)
        patch.setattr("ingestion.ledger.datetime", Shifted)
        yield
