"""A backlog that is to be landed, and what a contender made of it."""

import socket
from dataclasses import dataclass

import duckdb
from pyiceberg.table import Table

from benchmarks.measure import Sample
from demo.generators import GENERATORS
from ingestion.kafka import end_offsets
from ingestion.settings import LOOPBACK, Settings

PEER_HEAP = "2g"  # what Headwater gives its JVM by default


@dataclass(frozen=True)
class Case:
    """So many records of a stream, in a topic of their own on a broker."""

    broker: Settings
    stream: str  # stocks for JSON, health for Avro
    records: int

    @property
    def topic(self) -> str:
        return f"{GENERATORS[self.stream].topic}-{self.records}"

    @property
    def name(self) -> str:
        kind = {"stocks": "JSON", "health": "Avro"}[self.stream]
        if self.records % 1_000_000:
            return f"Ingest {self.records:,} {kind} records"
        return f"Ingest {self.records // 1_000_000} million {kind} records"

    @property
    def measure(self) -> str:
        """A column that every record fills."""
        return {"stocks": "price", "health": "value"}[self.stream]


@dataclass(frozen=True)
class Landed:
    """One run of a contender: the table that it filled, and what that took."""

    table: Table
    partition: str  # names of the columns with the coordinates of each record
    offset: str
    start_up: Sample
    total: Sample
    samples: list[Sample]

    @property
    def peak_mb(self) -> float:
        return max(sample.mb for sample in self.samples)

    @property
    def files(self) -> int:
        return self._summary("total-data-files")

    @property
    def mb(self) -> float:
        return self._summary("total-files-size") / 1e6

    def _summary(self, key: str) -> int:
        snapshot = self.table.current_snapshot()
        return int((snapshot.summary[key] or 0) if snapshot and snapshot.summary else 0)

    def problem(self, case: Case) -> str | None:
        """What is wrong with the table; None when it has each record once, and decoded."""
        ends = end_offsets(case.broker, {case.topic: list(range(4))})
        expected = sorted((partition, end) for (_, partition), end in ends.items() if end)
        rows = self.table.scan(selected_fields=(self.partition, self.offset, case.measure))
        found = (
            duckdb.from_arrow(rows.to_arrow_batch_reader())
            .aggregate(
                f"{self.partition}, count(*), count(distinct {self.offset}), "
                f"min({self.offset}), max({self.offset}), count({case.measure})"
            )
            .fetchall()
        )
        exact = [(partition, end, end, 0, end - 1, end) for partition, end in expected]
        if sorted(found) == exact:
            return None
        landed, distinct, decoded = (sum(row[index] for row in found) for index in (1, 2, 5))
        return (
            f"NO: {case.records:,} records, {landed:,} rows, {distinct:,} distinct, "
            f"{decoded:,} decoded"
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
