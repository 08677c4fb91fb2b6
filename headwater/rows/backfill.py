"""A bounded read of older records: adds those that are not in the table yet, and only those."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import pyarrow.compute as pc
from pyiceberg.table import Table

from ingestion.commit import Committer, Progress
from ingestion.errors import HeadwaterError
from ingestion.kafka import Partitions, Range, Record, begin_offsets, end_offsets, offsets_at
from ingestion.landing import Lander
from ingestion.offsets import Offsets, Partition
from ingestion.origin import check_topics, retired_offsets, stream_partitions
from ingestion.settings import Settings
from ingestion.stream import Stream

OFFSET = re.compile(r"(?:(?P<topic>[\w.-]+):)?(?P<partition>\d+):(?P<offset>\d+)")


def bound(settings: Settings, stream: Stream, text: str, option: str) -> Offsets:
    """`earliest`, `latest`, a time, or offsets such as `0:1500,1:1700`, as offsets."""
    partitions = stream_partitions(settings, stream)
    if text == "earliest":
        return begin_offsets(settings, partitions)
    if text == "latest":
        return end_offsets(settings, partitions)
    pieces = [OFFSET.fullmatch(piece.strip()) for piece in text.split(",")]
    if all(pieces):
        return _named_offsets(partitions, [piece.groupdict() for piece in pieces if piece], option)
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise HeadwaterError(
            f"{option} {text} is neither a time nor offsets",
            f"write {option} earliest, {option} 2026-01-31T00:00, {option} 0:1500,1:1700 "
            "(partition:offset) or my-topic:0:1500",
        ) from error
    return offsets_at(settings, partitions, when if when.tzinfo else when.replace(tzinfo=UTC))


def _named_offsets(partitions: Partitions, pieces: list[dict[str, str]], option: str) -> Offsets:
    found: dict[Partition, int] = {}
    for piece in pieces:
        topic, number = piece["topic"] or next(iter(partitions)), int(piece["partition"])
        if not piece["topic"] and len(partitions) > 1:
            raise HeadwaterError(
                f"{option} names no topic, and the stream has {', '.join(partitions)}",
                f"write {option} {topic}:0:1500",
            )
        if number not in partitions.get(topic, []):
            raise HeadwaterError(
                f"{option}: topic {topic} has no partition {number}",
                f"its partitions are {partitions.get(topic, [])}",
            )
        found[topic, number] = int(piece["offset"])
    return Offsets(found)


def backfill(
    settings: Settings,
    stream: Stream,
    begin: Offsets,
    end: Offsets,
    report: Callable[[int, int], None],
) -> tuple[Progress, int]:
    """Commit by commit, each with at most `batch.max_records` records; the position stays.

    Returns what was added, and how many offsets were left out because retention has
    removed their rows: they must not come back.
    """
    committer = Committer(settings, stream)
    partitions = stream_partitions(settings, stream)
    check_topics(settings, committer.ledger.table, partitions)
    position, retired = committer.position, retired_offsets(committer.ledger.table)
    oldest = begin_offsets(settings, partitions)
    ranges, left_out = [], 0
    for one, first in begin.items():
        last = min(end.get(one, 0), position.get(one, 0))
        kept = min(max(first, retired.get(one, 0)), max(first, last))
        left_out += kept - first
        if kept < min(last, oldest[one]):
            topic, number = one
            raise HeadwaterError(
                f"{topic} partition {number}: offsets {kept} to {oldest[one] - 1} are gone from "
                "Kafka",
                f"begin at {number}:{oldest[one]}, or with --from earliest",
            )
        if kept < last:
            ranges.append(Range(*one, kept, last))
    total, done = sum(one.size for one in ranges), 0
    lander = Lander(committer.plan)
    try:
        for chunk in _chunks(ranges, stream.batch.max_records):
            _add(committer, lander, chunk)
            done += sum(one.size for one in chunk)
            report(done, total)
    finally:
        lander.close()
    return committer.progress, left_out


def _chunks(ranges: Sequence[Range], size: int) -> Iterator[list[Range]]:
    """The ranges in pieces of at most so many offsets."""
    chunk: list[Range] = []
    room = size
    for one in ranges:
        begin = one.begin
        while begin < one.end:
            end = min(one.end, begin + room)
            chunk.append(one._replace(begin=begin, end=end))
            room -= end - begin
            begin = end
            if not room:
                yield chunk
                chunk, room = [], size
    if chunk:
        yield chunk


def _add(committer: Committer, lander: Lander, chunk: list[Range]) -> None:
    began, stamp = time.monotonic(), committer.ledger.next_stamp()
    known = _known(committer.ledger.table, chunk)

    def is_missing(record: Record) -> bool:
        return record.offset() not in known[record.topic(), record.partition()]

    landed = lander.land(chunk, stamp, is_missing)
    if landed.rows:
        committer.commit([landed], committer.position, stamp, began)


def _known(table: Table, chunk: list[Range]) -> dict[Partition, set[int]]:
    """The offsets in these ranges that are in the table."""
    found = {}
    for one in chunk:
        inside = (
            f"_kafka_topic = '{one.topic}' and _kafka_partition = {one.partition} "
            f"and _kafka_offset >= {one.begin} and _kafka_offset < {one.end}"
        )
        rows = table.scan(inside, selected_fields=("_kafka_offset",)).to_arrow()
        found[one.topic, one.partition] = set(pc.unique(rows["_kafka_offset"]).to_pylist())
    return found
