"""What a commit and a start cost when a table has a long history: `python -m benchmarks.metadata`.

Commits to a table in an embedded catalog, one every ten seconds of a clock that is made up, and
measures after the first hundred and after a week. Data files are described and not written: what is
measured is the table's metadata, which is all that a ledger handles.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from ingestion.embedded_catalog import EmbeddedCatalog
from ingestion.ledger import BOUNDED, EPOCH, Ledger, needed_metrics
from ingestion.offsets import Offsets

NAME = "bronze.bench"
TOPIC = "sensor-readings"
SECONDS = 10  # from one commit to the next
FEW, MANY = 100, 60_000
SAMPLE = 48  # commits that are measured: manifests are merged three times
STARTS = 15
RECORDS = 1_000  # in each commit

TYPES = (StringType(), IntegerType(), LongType(), TimestamptzType())
SCHEMA = Schema(
    *(
        NestedField(number, name, kind, required=False)
        for number, (name, kind) in enumerate(zip(BOUNDED, TYPES, strict=True), start=1)
    )
)
SPEC = PartitionSpec(PartitionField(4, 1000, DayTransform(), "_ingested_at_day"))


@dataclass(frozen=True)
class Row:
    """One line of the table that this benchmark prints."""

    partitions: int
    commits: int
    commit_ms: float  # CPU, mean
    commit_wall_ms: float  # median
    longest_ms: float  # CPU of the dearest commit up to here
    start_ms: float  # CPU to open the catalog and the ledger, median
    snapshots: int
    manifests: int
    metadata_kb: float
    offsets_kb: float


class Clock:
    """Begins now and goes on when it is told to."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now

    @contextmanager
    def ruling(self) -> Iterator[None]:
        with patch("time.time", self):
            yield


def data_file(table: Table, number: int, first: int, stamp: datetime) -> DataFile:
    """As a task would describe a file with the records of one Kafka partition."""
    micros = (stamp - EPOCH) // timedelta(microseconds=1)
    ends: list[tuple[str | int, ...]] = [
        (TOPIC, number, place, micros) for place in (first, first + RECORDS - 1)
    ]
    lower, upper = (
        {
            field: to_bytes(kind, value)
            for field, (kind, value) in enumerate(zip(TYPES, values, strict=True), start=1)
        }
        for values in ends
    )
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/{number}-{first}-{micros}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record((stamp - EPOCH).days),
        record_count=RECORDS,
        file_size_in_bytes=100_000,
        column_sizes=dict.fromkeys(lower, 1_000),
        value_counts=dict.fromkeys(lower, RECORDS),
        null_value_counts=dict.fromkeys(lower, 0),
        nan_value_counts={},
        lower_bounds=lower,
        upper_bounds=upper,
        split_offsets=[4],
    )
    file.spec_id = 0
    return file


class Writer:
    """A stream of so many partitions, which commits the records of each in turn."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self.partitions = partitions
        self.clock = Clock()
        self.open: Callable[[], Ledger] = lambda: Ledger(_catalog(folder), NAME)
        catalog = _catalog(folder)
        catalog.create_namespace("bronze")
        properties = needed_metrics() | {
            "format-version": "2",
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "20",
        }
        catalog.create_table(NAME, SCHEMA, partition_spec=SPEC, properties=properties)
        self.ledger = self.open()
        # Partitions of one topic hold about as much as each other, and not the same.
        self.offsets = [10**9 + pow(5, one, 899_999_963) % 10**7 for one in range(partitions)]
        self.commits = 0
        self.longest = 0.0

    def commit(self) -> tuple[float, float]:
        """CPU and wall seconds of the next commit."""
        with self.clock.ruling():
            self.clock.now += SECONDS
            stamp = datetime.fromtimestamp(self.clock.now, UTC)
            number = self.commits % self.partitions
            file = data_file(self.ledger.table, number, self.offsets[number], stamp)
            self.offsets[number] += RECORDS
            end = Offsets({(TOPIC, one): offset for one, offset in enumerate(self.offsets)})
            cpu, wall = time.process_time(), time.perf_counter()
            self.ledger.commit(end, stamp, [file])
            took = time.process_time() - cpu, time.perf_counter() - wall
        self.commits += 1
        self.longest = max(self.longest, took[0])
        return took

    def row(self, commits: int) -> Row:
        """Go on to so many commits, then measure some more."""
        while self.commits < commits:
            self.commit()
        times = [self.commit() for _ in range(SAMPLE)]
        starts = []
        for _ in range(STARTS):
            began = time.process_time()
            ledger = self.open()
            starts.append(time.process_time() - began)
        snapshot = ledger.table.current_snapshot()
        if snapshot is None or ledger.position != self.ledger.position:
            raise SystemExit("the table does not say where its stream stands")
        return Row(
            self.partitions,
            commits,
            statistics.mean(cpu for cpu, _ in times) * 1000,
            statistics.median(wall for _, wall in times) * 1000,
            self.longest * 1000,
            statistics.median(starts) * 1000,
            len(ledger.table.snapshots()),
            len(snapshot.manifests(ledger.table.io)),
            len(ledger.table.metadata.model_dump_json()) / 1000,
            len(ledger.position.offsets.to_text()) / 1000,
        )


def _catalog(folder: Path) -> EmbeddedCatalog:
    uri, warehouse = f"sqlite:///{folder}/catalog.db?timeout=30", f"file://{folder}/warehouse"
    return EmbeddedCatalog("lake", uri=uri, warehouse=warehouse)


def measured(many: int = MANY, partitions: tuple[int, ...] = (8, 1_000)) -> list[Row]:
    rows = []
    for count in partitions:
        with tempfile.TemporaryDirectory() as folder:
            writer = Writer(Path(folder), count)
            rows += [writer.row(commits) for commits in (FEW, many)]
    return rows


def markdown(rows: list[Row]) -> str:
    """The rows as a table, with how much dearer many commits are than few."""
    head = "partitions|commits|commit, CPU ms|commit, wall ms|dearest, CPU ms|start, CPU ms"
    lines = [f"|{head}|snapshots|manifests|metadata, KB|offsets, KB|", "|" + "---:|" * 10]
    for few, many in zip(rows[::2], rows[1::2], strict=True):
        for row in (few, many):
            name, commits, *rest = vars(row).values()
            numbers = [f"{value:,.1f}" if isinstance(value, float) else value for value in rest]
            lines.append(f"|{name:,}|{commits:,}|{'|'.join(map(str, numbers))}|")
        ratios = (many.commit_ms / few.commit_ms, many.start_ms / few.start_ms)
        lines.append(f"||ratio|{ratios[0]:.2f}|||{ratios[1]:.2f}|||||")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=MANY)
    parser.add_argument("--partitions", type=int, nargs="*", default=(8, 1_000))
    parser.add_argument("--write", type=Path, help="a file that gets the rows as JSON, too")
    arguments = parser.parse_args()
    rows = measured(arguments.commits, tuple(arguments.partitions))
    sys.stdout.write(markdown(rows) + "\n")
    if arguments.write:
        arguments.write.write_text(json.dumps([vars(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
