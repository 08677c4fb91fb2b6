"""Where a table's rows come from: its topics, where reading them began, and what was lost of them.

The table's properties hold all of it. Before each run it is compared with the broker: a topic that
was created again, or records that are gone before they were read, stop the stream with a reason.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from ingestion.errors import HeadwaterError, TopicChangedError
from ingestion.kafka import (
    Partitions,
    begin_offsets,
    end_offsets,
    offsets_at,
    require_broker,
    topic_ids,
    topics,
)
from ingestion.offsets import Offsets, resume_offsets
from ingestion.settings import Settings
from ingestion.stream import Stream

START_OFFSETS = "headwater.start-offsets"
TOPIC_IDS = "headwater.topic-ids"
GAPS = "headwater.accepted-gaps"
RETIRED = "headwater.retired"  # written by macros/before_retention.sql

COMMIT_ATTEMPTS = 10


@dataclass(frozen=True)
class Gap:
    """Offsets that Kafka deleted before they were read, from `first` up to but not `end`."""

    topic: str
    partition: int
    first: int
    end: int
    accepted_at: str = ""

    @property
    def size(self) -> int:
        return self.end - self.first

    def __str__(self) -> str:
        return f"{self.topic} partition {self.partition}: offsets {self.first} to {self.end - 1}"


def stream_partitions(settings: Settings, stream: Stream) -> Partitions:
    """The topics of a stream and their partitions; each declared topic must be there."""
    require_broker(settings)
    found = topics(settings, stream.reads)
    missing = [topic for topic in stream.topics if topic not in found]
    if missing or not found:
        what = ", ".join(missing) or stream.topic_pattern
        raise HeadwaterError(
            f"topic {what} of stream {stream.name} does not exist at {settings.bootstrap_servers}",
            "create it, or send it some records; `headwater produce` makes some for the streams "
            "that come with Headwater",
        )
    return found


def origin(settings: Settings, stream: Stream) -> dict[str, str]:
    """Where the stream begins, as offsets, decided once: a restart keeps them.

    A topic that does not exist yet begins, whenever it comes, with its first record.
    """
    require_broker(settings)
    partitions = topics(settings, stream.reads)
    return {
        START_OFFSETS: _settled(settings, stream, partitions).to_json(),
        TOPIC_IDS: json.dumps(topic_ids(settings, partitions)),
    }


def _settled(settings: Settings, stream: Stream, partitions: Partitions) -> Offsets:
    match stream.start:
        case "latest":
            return end_offsets(settings, partitions)
        case datetime() as when:
            return offsets_at(settings, partitions, when)
    begin = begin_offsets(settings, partitions)
    return begin | stream.start if isinstance(stream.start, Offsets) else begin


def start_offsets(table: Table) -> Offsets:
    return Offsets.from_json(table.properties.get(START_OFFSETS))


def gaps(table: Table) -> list[Gap]:
    found = json.loads(table.properties.get(GAPS, "[]"))
    return [Gap(**gap | {"partition": int(gap["partition"])}) for gap in found]


def retired_offsets(table: Table) -> Offsets:
    """One behind the highest offset of each partition whose row was removed by retention.

    What retention has removed must not come again.
    """
    return Offsets.from_json(table.properties.get(RETIRED))


def check_topics(
    settings: Settings, table: Table, read: Iterable[str], remember: bool = True
) -> None:
    """Refuse topics that were deleted and made again; remember those that are new."""
    known: dict[str, str] = json.loads(table.properties.get(TOPIC_IDS, "{}"))
    found = topic_ids(settings, read)
    for topic, now in found.items():
        if known.get(topic, now) != now:
            name = ".".join(table.name()[-2:])
            raise TopicChangedError(
                f"topic {topic} was deleted and created again since {name} was filled from it "
                f"(its id was {known[topic]} and is {now}): its offsets start again, so its "
                "records cannot be told from those in the table",
                "give the stream another name, and so a new table; or send the new records to a "
                f"topic of another name; or drop {name} if its rows are not needed",
            )
    if remember and found.keys() - known.keys():
        _set_properties(table, {TOPIC_IDS: json.dumps(found | known)})


def next_offsets(
    settings: Settings, stream: Stream, table: Table, position: Offsets, accept: bool
) -> tuple[Offsets, list[Gap]]:
    """The resume position in each partition that exists, and the gaps accepted for it."""
    partitions = stream_partitions(settings, stream)
    check_topics(settings, table, partitions)
    begin, end = begin_offsets(settings, partitions), end_offsets(settings, partitions)
    resume = resume_offsets(position, begin)
    lost = []
    for (topic, number), at in resume.items():
        if at > end[topic, number]:
            raise TopicChangedError(
                f"{stream.table} holds {topic} partition {number} up to offset {at - 1}, but the "
                f"topic ends at {end[topic, number] - 1}: the broker has lost records",
                "bring the broker's data back; or give the stream another name, and so a new table",
            )
        if at < (oldest := begin[topic, number]):
            lost.append(Gap(topic, number, at, oldest, datetime.now(UTC).isoformat()))
    if lost and not accept:
        raise TopicChangedError(
            f"Kafka has deleted records of stream {stream.name} before they were read:\n"
            + "\n".join(f"  {gap} ({gap.size:,})" for gap in lost),
            "bring them back if you can; or go on without them, and let the table remember the "
            f"gap: headwater ingest {stream.name} --accept-gaps",
        )
    if lost:
        _set_properties(table, {GAPS: json.dumps([asdict(gap) for gap in (*gaps(table), *lost)])})
    return resume.raised_to(begin), lost


def without_gaps(position: Offsets, accepted: Iterable[Gap]) -> Offsets:
    """The position, moved behind the gaps that begin at or before it."""
    for gap in sorted(accepted, key=lambda gap: gap.first):
        if gap.first <= position.get((gap.topic, gap.partition), 0) < gap.end:
            position |= {(gap.topic, gap.partition): gap.end}
    return position


def _set_properties(table: Table, properties: dict[str, str]) -> None:
    for attempt in range(COMMIT_ATTEMPTS):
        try:
            with table.transaction() as transaction:
                transaction.set_properties(properties)
            return
        except CommitFailedException:  # a compaction, say, was quicker
            if attempt == COMMIT_ATTEMPTS - 1:
                raise
            table.refresh()
