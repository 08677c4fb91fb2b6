"""What a commit and a start cost when a table has a long history: `python -m benchmarks.metadata`.

Commits to a table in an embedded catalog, one every so many seconds of a made-up clock, and
measures after the first hundred and after a week. Data files are described and not written: what is
measured is the table's metadata, which is all that a ledger handles.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import click
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from benchmarks.results import report
from ingestion.embedded_catalog import EmbeddedCatalog
from ingestion.ledger import BOUNDED, EPOCH, Ledger, needed_metrics
from ingestion.offsets import Offsets

NAME = "bronze.bench"
TOPIC = "sensor-readings"
FEW, MANY = 100, 60_000
SAMPLE = 48  # commits that are measured: manifests are merged three times
STARTS = 9
START = """
import sys, time
from pathlib import Path
from benchmarks.metadata import NAME, open_catalog
from ingestion.ledger import Ledger
began = time.process_time()
Ledger(open_catalog(Path(sys.argv[1])), NAME)
print(time.process_time() - began)
"""
RECORDS = 1_000  # in each commit

COLUMNS = (
    "partitions",
    "commits",
    "commit, CPU ms",
    "commit, wall ms",
    "dearest, CPU ms",
    "start, CPU ms",
    "of this the ledger",
    "snapshots",
    "manifests",
    "metadata, KB",
    "offsets, KB",
)

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
    start_ms: float  # CPU of a new process that finds the position, median
    of_this_ledger_ms: float  # to open the catalog and the ledger
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

    def __init__(self, folder: Path, partitions: int, seconds: int) -> None:
        self.folder = folder
        self.partitions = partitions
        self.seconds = seconds  # from one commit to the next
        self.clock = Clock()
        self.open: Callable[[], Ledger] = lambda: Ledger(open_catalog(folder), NAME)
        catalog = open_catalog(folder)
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
            self.clock.now += self.seconds
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

    def start(self) -> tuple[float, float]:
        """CPU seconds of a process that finds the position, and of these, without its imports."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", START, str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return used, float(done.stdout)

    def row(self, commits: int) -> Row:
        """Go on to so many commits, then measure some more."""
        while self.commits < commits:
            self.commit()
        times = [self.commit() for _ in range(SAMPLE)]
        starts = [self.start() for _ in range(STARTS)]
        ledger = self.open()
        snapshot = ledger.table.current_snapshot()
        if snapshot is None or ledger.position != self.ledger.position:
            raise SystemExit("the table does not say where its stream stands")
        return Row(
            self.partitions,
            commits,
            statistics.mean(cpu for cpu, _ in times) * 1000,
            statistics.median(wall for _, wall in times) * 1000,
            self.longest * 1000,
            statistics.median(whole for whole, _ in starts) * 1000,
            statistics.median(opening for _, opening in starts) * 1000,
            len(ledger.table.snapshots()),
            len(snapshot.manifests(ledger.table.io)),
            len(ledger.table.metadata.model_dump_json()) / 1000,
            len(ledger.position.offsets.to_text()) / 1000,
        )


def open_catalog(folder: Path) -> EmbeddedCatalog:
    uri, warehouse = f"sqlite:///{folder}/catalog.db?timeout=30", f"file://{folder}/warehouse"
    return EmbeddedCatalog("lake", uri=uri, warehouse=warehouse)


def measured(many: int, partitions: tuple[int, ...], seconds: int) -> list[Row]:
    rows = []
    for count in partitions:
        with tempfile.TemporaryDirectory() as folder:
            writer = Writer(Path(folder), count, seconds)
            rows += [writer.row(commits) for commits in (FEW, many)]
    return rows


def shown(rows: list[Row]) -> list[tuple[object, ...]]:
    """The rows, with how much dearer many commits are than few."""
    lines: list[tuple[object, ...]] = []
    for few, many in zip(rows[::2], rows[1::2], strict=True):
        lines += [tuple(vars(few).values()), tuple(vars(many).values())]
        ratios = (many.commit_ms / few.commit_ms, many.start_ms / few.start_ms)
        lines.append((few.partitions, "ratio", ratios[0], None, None, ratios[1], *[None] * 5))
    return lines


@click.command()
@click.option("--commits", default=MANY, show_default=True)
@click.option("--partitions", default=(8, 1_000), show_default=True, multiple=True)
@click.option("--seconds", default=10, show_default=True, help="From one commit to the next.")
def main(commits: int, partitions: tuple[int, ...], seconds: int) -> None:
    """Compare commits and starts of a table with a short history and with a long one."""
    report(
        f"Commits and starts of a table with a long history, one commit every {seconds} s",
        COLUMNS,
        shown(measured(commits, partitions, seconds)),
        f"Embedded catalog, one commit every {seconds} s of a made-up clock; means of {SAMPLE} "
        f"commits, medians of {STARTS} starts, each a new Python process that finds the position.",
    )


if __name__ == "__main__":
    main()
