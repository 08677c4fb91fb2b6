"""Is each record of the topics in the table exactly once, as it was sent?

The table is compared with a committed read of its topics, record by record, through pyiceberg and a
plain Kafka consumer: neither Spark nor anything else that wrote the table takes part. Offsets may
have holes (transactions, compaction), so nothing is concluded from their arithmetic.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa
from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]
from pyiceberg.expressions import AlwaysTrue, And, EqualTo, Not
from pyiceberg.table import Table

from ingestion.errors import ERASED, HeadwaterError
from ingestion.kafka import (
    TIMEOUT_SECONDS,
    Range,
    admin,
    begin_offsets,
    committed_consumer,
    read_ranges,
    require_broker,
    topics,
)
from ingestion.ledger import COORDINATES, read_position
from ingestion.offsets import Partition
from ingestion.origin import Gap, check_topics, gaps, retired_offsets, start_offsets
from ingestion.settings import Settings
from ingestion.stream import Stream
from ingestion.table import HEADERS

REPORT_EVERY = 10_000

Span = tuple[int, int]  # first and last offset, of records that follow one another


@dataclass
class PartitionCheck:
    """What was found in one partition. The lists hold offsets."""

    topic: str
    partition: int
    checked: int = 0  # records that are in the table once, with equal content
    missing: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    different: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)  # in the table, but no committed record
    erased: int = 0  # rows that `headwater forget` emptied: their content is not compared
    gone: int = 0  # rows whose records retention or compaction has deleted since
    retired: int = 0  # records whose rows the table's own retention has removed

    @property
    def problems(self) -> dict[str, list[Span]]:
        """What is wrong, with the offsets as ranges."""
        found = {
            "missing in the table": self.missing,
            "in the table more than once": self.doubled,
            "not as it was sent": self.different,
            "not a committed record of the topic": self.unknown,
        }
        return {what: spans(offsets) for what, offsets in found.items() if offsets}


@dataclass(frozen=True)
class Verified:
    partitions: list[PartitionCheck]
    gaps: list[Gap]
    strangers: int  # rows of partitions that the position does not know

    @property
    def is_exact(self) -> bool:
        return not self.strangers and not any(one.problems for one in self.partitions)


def spans(offsets: Iterable[int]) -> list[Span]:
    """Sorted offsets as ranges of neighbours."""
    found: list[Span] = []
    for offset in sorted(offsets):
        if found and offset <= found[-1][1] + 1:
            found[-1] = (found[-1][0], offset)
        else:
            found.append((offset, offset))
    return found


def verify(
    settings: Settings, stream: Stream, table: Table, report: Callable[[int, int], None]
) -> Verified:
    """Compare the table as it is now with its topics, up to the position that it names.

    `report` gets how many offsets were compared, and of how many. A running stream is no obstacle:
    what it commits meanwhile lies behind the position.
    """
    require_broker(settings)
    start, position = start_offsets(table), read_position(table).offsets
    retired = retired_offsets(table)
    partitions = topics(settings, lambda topic: topic in position.topics)
    if away := [topic for topic in position.topics if topic not in partitions]:
        raise HeadwaterError(
            f"topic {', '.join(away)} is gone, and {stream.table} was filled from it",
            "there is nothing left to compare its rows with",
        )
    check_topics(settings, table, partitions, remember=False)
    begin = begin_offsets(settings, partitions)
    total = begin.distance_to(position)
    counted = Counted(report, total)
    found = []
    for place, end in position.items():
        topic, number = place
        check = PartitionCheck(topic, number)
        records = committed_records(settings, Range(topic, number, begin[place], end))
        rows = _rows(table, topic, number, stream.headers)
        left = _merge(
            check,
            rows,
            counted(records),
            stream.headers,
            wanted_from=start.get(place, 0),
            retired_to=retired.get(place, 0),
        )
        # What is left has no record. It may have gone while the topic was read.
        oldest = begin_offsets(settings, {topic: [number]})[place]
        newest = end if _is_compacted(settings, topic) else oldest
        check.gone = sum(offset < max(oldest, newest) for offset in left)
        check.unknown = [offset for offset in left if offset >= max(oldest, newest)]
        found.append(check)
    report(total, total)
    return Verified(found, gaps(table), _strangers(table, position))


def _is_compacted(settings: Settings, topic: str) -> bool:
    """Whether Kafka may delete single records of the topic."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (answer,) = admin(settings).describe_configs([resource]).values()
    return "compact" in answer.result(TIMEOUT_SECONDS)["cleanup.policy"].value


def committed_records(settings: Settings, wanted: Range) -> Iterator[Any]:
    """What a committed read of a range returns."""
    # Retention may be quicker than this read.
    consumer = committed_consumer(settings, "verify", **{"auto.offset.reset": "earliest"})
    try:
        for block in read_ranges(consumer, [wanted]):
            yield from block
    finally:
        consumer.close()


class Counted:
    """Reports how many records have passed."""

    def __init__(self, report: Callable[[int, int], None], total: int) -> None:
        self._report = report
        self._total = total
        self._done = 0

    def __call__(self, records: Iterable[Any]) -> Iterator[Any]:
        for record in records:
            self._done += 1
            if self._done % REPORT_EVERY == 0:
                self._report(self._done, self._total)
            yield record


def _merge(
    check: PartitionCheck,
    rows: Iterator[tuple[int, int | None]],
    records: Iterable[Any],
    headers: bool,
    wanted_from: int,
    retired_to: int,
) -> list[int]:
    """Walk rows and records side by side, both in the order of their offsets.

    Returns the offsets of rows that have no record.
    """
    left: list[int] = []
    row = next(rows, None)
    for record in records:
        offset = record.offset()
        while row and row[0] < offset:
            left.append(row[0])
            row = next(rows, None)
        if row is None or row[0] > offset:
            if offset < wanted_from:  # these are there only after a backfill
                continue
            if offset < retired_to:
                check.retired += 1
            else:
                check.missing.append(offset)
            continue
        plain = hash((record.timestamp()[1], record.key(), record.value()))
        pairs = tuple(record.headers() or ()) if headers else ()
        expected = {hash((plain, pairs)), hash((plain, ()))} if headers else {plain}
        if row[1] is None:
            check.erased += 1
        elif row[1] in expected:  # rows that landed before the stream kept headers have none
            check.checked += 1
        else:
            check.different.append(offset)
        row = next(rows, None)
        while row and row[0] == offset:
            check.doubled.append(offset)
            row = next(rows, None)
    while row:
        left.append(row[0])
        row = next(rows, None)
    check.doubled += [one for one, other in pairwise(left) if one == other]
    return left


def _rows(
    table: Table, topic: str, partition: int, headers: bool
) -> Iterator[tuple[int, int | None]]:
    """The rows of one partition by offset, each with a hash of what the record was.

    The hash is None where the row was emptied on purpose.

    Sixteen bytes a row are held in memory.
    """
    columns = ("_kafka_offset", "_kafka_timestamp", "_kafka_key", "_kafka_value", "_error_type")
    scan = table.scan(
        _inside(topic, partition), selected_fields=(*columns, *((HEADERS.name,) if headers else ()))
    )
    pieces = []
    for batch in scan.to_arrow_batch_reader():
        stamps = batch["_kafka_timestamp"].cast("int64").to_pylist()
        keys, values = batch["_kafka_key"].to_pylist(), batch["_kafka_value"].to_pylist()
        hashes = [
            hash((stamp // 1000, key, value))
            for stamp, key, value in zip(stamps, keys, values, strict=True)
        ]
        if headers:
            hashes = [
                hash((plain, tuple((one["key"], one["value"]) for one in pairs or ())))
                for plain, pairs in zip(hashes, batch[HEADERS.name].to_pylist(), strict=True)
            ]
        kinds = batch["_error_type"].to_pylist()
        found = [
            None if (kind, key, value) == (ERASED, None, None) else one
            for one, kind, key, value in zip(hashes, kinds, keys, values, strict=True)
        ]
        pieces.append(
            pa.table([batch["_kafka_offset"], pa.array(found, "int64")], ["offset", "hash"])
        )
    if not pieces:
        return
    for piece in pa.concat_tables(pieces).sort_by("offset").to_batches(REPORT_EVERY):
        yield from zip(piece["offset"].to_pylist(), piece["hash"].to_pylist(), strict=True)


def _strangers(table: Table, places: Iterable[Partition]) -> int:
    """Rows of topics and partitions that the table's own position does not know."""
    outside: Any = AlwaysTrue()
    for topic, number in places:
        outside = And(outside, Not(_inside(topic, number)))
    return int(table.scan(outside, selected_fields=COORDINATES).count())


def _inside(topic: str, partition: int) -> Any:
    equal: Any = EqualTo
    return And(equal(COORDINATES[0], topic), equal(COORDINATES[1], partition))
