"""A bounded read of older records: adds those that are not in the table yet, and only those."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from headwater.errors import HeadwaterError
from headwater.kafka import Offsets, begin_offsets, end_offsets, offsets_at
from headwater.settings import Settings
from headwater.spark import quoted
from ingestion.ingest import Landing
from ingestion.ledger import COORDINATES
from ingestion.origin import check_topics, retired_offsets, stream_partitions
from ingestion.stream import Stream

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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


def _named_offsets(
    partitions: dict[str, list[int]], pieces: list[dict[str, str]], option: str
) -> Offsets:
    found: Offsets = {}
    for piece in pieces:
        topic = piece["topic"] or next(iter(partitions))
        if not piece["topic"] and len(partitions) > 1:
            raise HeadwaterError(
                f"{option} names no topic, and the stream has {', '.join(partitions)}",
                f"write {option} {topic}:0:1500",
            )
        if int(piece["partition"]) not in partitions.get(topic, []):
            raise HeadwaterError(
                f"{option}: topic {topic} has no partition {piece['partition']}",
                f"its partitions are {partitions.get(topic, [])}",
            )
        found.setdefault(topic, {})[piece["partition"]] = int(piece["offset"])
    return found


def backfill(
    spark: "SparkSession",
    settings: Settings,
    stream: Stream,
    begin: Offsets,
    end: Offsets,
    report: Callable[[int, int], None],
) -> Landing:
    """Commit by commit, each with at most `batch.max_records` records; the position stays.

    What retention has removed is left out, and counted: it must not come back.
    """
    landing = Landing(spark, settings, stream)
    partitions = stream_partitions(settings, stream)
    check_topics(settings, landing.load_table(), partitions)
    oldest = begin_offsets(settings, partitions)
    ranges = {
        (topic, one): (offset, min(end[topic][one], landing.position.offsets[topic].get(one, 0)))
        for topic, known in begin.items()
        for one, offset in known.items()
        if one in end.get(topic, {}) and topic in landing.position.offsets
    }
    retired = retired_offsets(landing.table)
    for (topic, one), (first, last) in ranges.items():
        kept = min(max(first, retired.get(topic, {}).get(one, 0)), max(first, last))
        landing.progress.retired += kept - first
        ranges[topic, one] = (kept, last)
    for (topic, one), (first, last) in ranges.items():
        if first < min(last, oldest[topic][one]):
            raise HeadwaterError(
                f"{topic} partition {one}: offsets {first} to {oldest[topic][one] - 1} are gone "
                "from Kafka",
                f"begin at {one}:{oldest[topic][one]}, or with --from earliest",
            )
    total = sum(max(last - first, 0) for first, last in ranges.values())
    done = 0
    for chunk in _chunks(ranges, stream.batch.max_records):
        _add(spark, landing, chunk)
        done += sum(last - first for first, last in chunk.values())
        report(done, total)
    return landing


Ranges = dict[tuple[str, str], tuple[int, int]]  # (topic, partition) -> first and one behind last


def _chunks(ranges: Ranges, size: int) -> Iterator[Ranges]:
    """The ranges in pieces of at most so many offsets."""
    left = {key: bounds for key, bounds in ranges.items() if bounds[0] < bounds[1]}
    while left:
        share = max(size // len(left), 1)
        chunk = {key: (first, min(first + share, last)) for key, (first, last) in left.items()}
        yield chunk
        left = {
            key: (chunk[key][1], last) for key, (_, last) in left.items() if chunk[key][1] < last
        }


def _add(spark: "SparkSession", landing: Landing, chunk: Ranges) -> None:
    offsets: list[Offsets] = [{}, {}]
    for (topic, one), bounds in chunk.items():
        for side, offset in zip(offsets, bounds, strict=True):
            side.setdefault(topic, {})[one] = offset
    assigned = {topic: [int(one) for one in known] for topic, known in offsets[0].items()}
    records = (
        landing.read(spark.read)
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(offsets[0]))
        .option("endingOffsets", json.dumps(offsets[1]))
        .load()
    )
    missing = records.join(_there(spark, landing.stream, chunk), _coordinates(records), "left_anti")
    if not missing.isEmpty():
        landing.commit(landing.decode(missing), landing.position.offsets)


def _there(spark: "SparkSession", stream: Stream, chunk: Ranges) -> "DataFrame":
    """The coordinates in the table that lie in these ranges."""
    from pyspark.sql import functions as F

    inside = [
        (F.col("_kafka_topic") == topic)
        & (F.col("_kafka_partition") == int(one))
        & F.col("_kafka_offset").between(first, last - 1)
        for (topic, one), (first, last) in chunk.items()
    ]
    table = spark.table(quoted(stream.table))
    return table.where(reduce(or_, inside)).select(*COORDINATES)


def _coordinates(records: "DataFrame") -> list["Column"]:
    from pyspark.sql import functions as F

    return [records[name.removeprefix("_kafka_")] == F.col(name) for name in COORDINATES]
