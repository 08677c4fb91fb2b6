"""Ranges of offsets become data files: read, decode, check, forward, write.

This is the work of a task. It runs in Spark's Python workers, and in the process of a backfill.
"""

import gc
import pickle
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, Producer
from pyiceberg.manifest import DataFile

from ingestion import files
from ingestion.decode import Block, Records, StreamDecoder, uses_registry
from ingestion.errors import HeadwaterError
from ingestion.files import FileWriter, TableFiles
from ingestion.formats.registry import Registry
from ingestion.kafka import (
    CHECK_HINT,
    Range,
    Record,
    client_options,
    committed_consumer,
    read_ranges,
)
from ingestion.settings import Settings
from ingestion.stream import Stream

FLUSH_SECONDS = 60
# Work on a block of columns has a price of its own, about 2 ms, however few its records are.
BLOCK_RECORDS, BLOCK_BYTES = 40_000, 20 << 20
# What librdkafka reads beyond a range is thrown away, and a long queue does not stay in the
# processor's cache.
READ_AHEAD = {
    "auto.offset.reset": "error",  # records that are gone must not be skipped in silence
    "fetch.wait.max.ms": 50,
    "fetch.message.max.bytes": 2 << 20,
    "queued.min.messages": 20_000,
    "fetch.queue.backoff.ms": 5,
    "queued.max.messages.kbytes": 16 << 10,
}


@dataclass(frozen=True)
class Plan:
    """What a process needs to land records of a stream. It is sent to the workers."""

    settings: Settings
    stream: Stream
    table: TableFiles
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass
class Landed:
    """The result of landing some ranges: data files that are not committed yet."""

    ranges: list[Range]
    files: list[DataFile] = field(default_factory=list)
    rows: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    undeclared: set[str] = field(default_factory=set)

    def note(self, block: Block) -> None:
        self.rows += block.rows.num_rows
        self.errors += block.errors
        self.undeclared |= block.undeclared

    def to_bytes(self) -> bytes:
        written = [files.to_bytes(file) for file in self.files]
        return pickle.dumps((self.ranges, written, self.rows, self.errors, self.undeclared))

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Landed":
        ranges, written, *rest = pickle.loads(raw)  # noqa: S301 - from our own workers
        return cls(ranges, [files.from_bytes(file) for file in written], *rest)


class Lander:
    """Lands ranges of one stream, and keeps its Kafka clients in between."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        stream = plan.stream
        registry = Registry(plan.settings) if uses_registry(stream) else None
        self.decoder = StreamDecoder(stream, registry)
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None

    def land(
        self,
        ranges: Sequence[Range],
        stamp: datetime,
        wanted: Callable[[Record], bool] | None = None,
    ) -> Landed:
        """Write the records of these ranges, or only those that `wanted` accepts."""
        with without_cycle_collection():
            return self._land(Landed(list(ranges)), stamp, wanted)

    def _land(
        self, landed: Landed, stamp: datetime, wanted: Callable[[Record], bool] | None
    ) -> Landed:
        writer = FileWriter(self.plan.table)
        try:
            for records in self._blocks(landed.ranges, wanted):
                block = self.decoder.decode(records, stamp)
                self.forward(block.rows)
                writer.write(block.rows)
                landed.note(block)
            self.flush()
            landed.files = writer.close()
        except BaseException:
            writer.abort()
            self.close()  # the next attempt begins with new connections
            raise
        return landed

    def _blocks(
        self, ranges: Sequence[Range], wanted: Callable[[Record], bool] | None
    ) -> Iterator[Records]:
        """The records in blocks, large enough to work on whole columns."""
        parts: list[Records] = []
        count = size = 0
        for messages in read_ranges(self.consumer, ranges):
            if wanted is not None:
                messages = list(filter(wanted, messages))
            if not messages:
                continue
            parts.append(Records.of(messages, self.plan.stream.headers))
            count, size = count + len(messages), size + parts[-1].values.column.nbytes
            if count >= BLOCK_RECORDS or size >= BLOCK_BYTES:
                yield Records.joined(parts)
                parts, count, size = [], 0, 0
        if parts:
            yield Records.joined(parts)

    @property
    def consumer(self) -> Consumer:
        if self._consumer is None:
            self._consumer = committed_consumer(self.plan.settings, "land", **READ_AHEAD)
        return self._consumer

    def forward(self, rows: pa.Table) -> None:
        """Send valid records on. At least once: it comes before the commit."""
        forward = self.plan.stream.forward
        if forward is None:
            return
        if self._producer is None:
            options = {"enable.idempotence": True, "linger.ms": 20, "log_level": 0}
            self._producer = Producer(client_options(self.plan.settings) | options)
        valid = rows.filter(pc.is_null(rows["_error_type"]))
        headers: list[Any] = [None] * valid.num_rows
        if self.plan.stream.headers:
            headers = [
                [(header["key"], header["value"]) for header in known] if known else None
                for known in valid["_kafka_headers"].to_pylist()
            ]
        keys, values = valid["_kafka_key"].to_pylist(), valid["_kafka_value"].to_pylist()
        for key, value, known in zip(keys, values, headers, strict=True):
            while True:
                try:
                    self._producer.produce(
                        forward.topic, value, key, headers=known, on_delivery=self._delivered
                    )
                    break
                except BufferError:
                    self._producer.poll(0.1)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all that was forwarded has arrived."""
        if self._producer is not None and (left := self._producer.flush(FLUSH_SECONDS)):
            raise self._not_forwarded(f"{left:,} records got no answer in {FLUSH_SECONDS} s")

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            raise self._not_forwarded(error.str())

    def _not_forwarded(self, why: str) -> HeadwaterError:
        forward = self.plan.stream.forward
        topic = forward.topic if forward else ""
        return HeadwaterError(
            f"records of stream {self.plan.stream.name} could not be forwarded to {topic}: {why}",
            CHECK_HINT,
        )

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._producer = None


@contextmanager
def without_cycle_collection() -> Iterator[None]:
    """Records make millions of objects and no cycles; looking for cycles took a quarter of the CPU.

    One collection at the end frees what other code left.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
            gc.collect()


_landers: dict[str, Lander] = {}  # by stream: one run after another uses a worker


def lander(plan: Plan) -> Lander:
    """The lander of this process for a run."""
    known = _landers.get(plan.stream.name)
    if known is None or known.plan.id != plan.id:
        if known is not None:
            known.close()
        known = _landers[plan.stream.name] = Lander(plan)
    return known
