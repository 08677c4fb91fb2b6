"""Kafka as a streaming source of Spark, whose rows are data files.

Spark asks `latestOffset` again and again: it decides when a batch is due and how far it goes.
`partitions` cuts the batch into balanced tasks, and `read` runs in the executors. No record passes
the JVM: what a task yields is one row, which says what it wrote.
"""

import json
import math
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ingestion.errors import CarriedError, HeadwaterError
from ingestion.kafka import Partitions, Range, begin_offsets, end_offsets, topics
from ingestion.offsets import Offsets, resume_offsets
from ingestion.settings import Settings
from ingestion.stream import Batch, Stream

NAME = "headwater"
STAMP = "headwater.stamp"  # the local property with the stamp of the commit that is to come
LEAST_RECORDS = 10_000  # in a task: less is not worth another file
# Between batches, unless a full one waits: a topic that is never quiet would be landed in thousands
# of small files and commits, most of the CPU being their overhead.
LEAST_SECONDS = 1.0
TOPICS_SECONDS = 5.0  # how often new topics and partitions are looked for


@dataclass(frozen=True)
class Reading:
    """One run: where it starts, where it ends if it does, and how many tasks a batch may have."""

    settings: Settings
    stream: Stream
    plan: bytes  # a pickled Plan, which the tasks unpack
    start: Offsets
    end: Offsets | None
    cores: int


class Slice(InputPartition):
    """The work of one task."""

    def __init__(self, ranges: list[Range]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def source(reading: Reading) -> type[DataSource]:
    """The data source of a run. A class of its own, since options would show in Spark's UI."""

    class KafkaFiles(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return "landed binary"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
            return Reader(reading)

    return KafkaFiles


class Reader(DataSourceStreamReader):
    """Plans batches in one process beside the driver, and reads them in the workers."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._planned = reading.start  # where the last batch ends
        self._began = -math.inf  # when the last batch was planned
        self._topics_known = 0.0
        self._partitions: Partitions = {}
        self._starts = reading.start  # also of partitions that came later

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return _state(self._reading.start)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        with _carried():
            return _state(self._next_end())

    def _next_end(self) -> Offsets:
        reading, batch = self._reading, self._reading.stream.batch
        if reading.end is not None:
            return batch_end(self._planned, reading.end, batch.max_records)
        settings, stream = reading.settings, reading.stream
        now = time.monotonic()
        if now > self._topics_known + TOPICS_SECONDS:
            self._topics_known = now
            self._partitions = topics(settings, stream.reads)
        end = end_offsets(settings, self._partitions)
        if end.keys() - self._planned.keys():
            begin = begin_offsets(settings, self._partitions)
            self._starts = resume_offsets(self._planned, begin) | self._planned
        start = self._starts | self._planned
        waiting = start.distance_to(end)
        if not is_due(waiting, batch, now - self._began):
            return self._planned
        return batch_end(start, end, batch.max_records)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, last = _offsets(start), _offsets(end)
        self._planned = last
        self._began = time.monotonic()
        ranges = [
            Range(*partition, first.get(partition, self._starts.get(partition, 0)), offset)
            for partition, offset in last.items()
        ]
        return [Slice(part) for part in balanced(ranges, self._reading.cores)]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        # Imported here, since Spark keeps three processes for planning, which need none of it.
        from ingestion.landing import lander

        context = TaskContext.get()
        assert isinstance(partition, Slice) and context is not None  # noqa: S101
        stamp = context.getLocalProperty(STAMP)
        with _carried():
            landed = lander(pickle.loads(self._reading.plan)).land(  # noqa: S301 - our own driver
                partition.ranges, datetime.fromisoformat(stamp or "")
            )
        yield (landed.to_bytes(),)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the table holds the position."""


def _state(offsets: Offsets) -> dict[str, Any]:
    """Offsets as Spark writes them into its checkpoint."""
    return dict(json.loads(offsets.to_json()))


def _offsets(state: dict[str, Any]) -> Offsets:
    return Offsets.from_json(json.dumps(state))


@contextmanager
def _carried() -> Iterator[None]:
    """Spark passes only the text of an exception to the driver: pack our own errors into it."""
    try:
        yield
    except HeadwaterError as error:
        raise CarriedError(error) from error


def is_due(waiting: int, batch: Batch, seconds: float) -> bool:
    """Whether a batch is due when so many records wait, so many seconds after the last began."""
    if waiting >= batch.max_records:
        return True
    if seconds < LEAST_SECONDS:
        return False
    return waiting >= batch.min_records or (waiting > 0 and seconds >= batch.max_seconds)


def batch_end(start: Offsets, end: Offsets, most: int) -> Offsets:
    """The end of the next batch: at most `most` offsets on, shared fairly by the partitions."""
    waiting = start.distance_to(end)
    if waiting <= most:
        return start | {
            partition: max(offset, start.get(partition, 0)) for partition, offset in end.items()
        }
    found = {}
    for partition, last in end.items():
        first = start.get(partition, 0)
        share = max((last - first) * most // waiting, 1)
        found[partition] = min(first + share, last) if last > first else first
    return start | found


def balanced(ranges: list[Range], tasks: int) -> list[list[Range]]:
    """The ranges in parts of about equal size, one part for each task. A range may be cut."""
    total = sum(span.size for span in ranges)
    tasks = max(1, min(tasks, total // LEAST_RECORDS))
    share = -(-total // tasks)
    parts: list[list[Range]] = [[]]
    room = share
    for span in ranges:
        begin = span.begin
        while begin < span.end:
            if not room:
                parts.append([])
                room = share
            end = min(span.end, begin + room)
            parts[-1].append(span._replace(begin=begin, end=end))
            room -= end - begin
            begin = end
    return [part for part in parts if part]
