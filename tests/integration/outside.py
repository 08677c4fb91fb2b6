"""What an outsider sees: the topic through a Kafka consumer, the tables through pyiceberg."""

import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Producer, TopicPartition

from headwater.rows.verify import verify
from ingestion.catalog import open_catalog
from ingestion.commit import Committer
from ingestion.kafka import Range, admin, client_options, end_offsets, ensure_topic, lag, topics
from ingestion.landing import Lander
from ingestion.lease import hold
from ingestion.ledger import read_position
from ingestion.origin import next_offsets, stream_partitions
from ingestion.run import Run, follow
from ingestion.settings import Settings
from ingestion.source import batch_end
from ingestion.stream import Stream
from ingestion.supervise import Supervised, Supervisor
from tests.conftest import HEADWATER, ROOT, clean_environment

VALUE = b'{"event_time": "2026-01-05T14:30:00", "ticker": "AAPL", "price": 1}'  # a stock price


def read_topic(settings: Settings, topic: str) -> dict[tuple[int, int], bytes | None]:
    """Every committed record of the topic: (partition, offset) to value."""
    ends = end_offsets(settings, topics(settings, lambda name: name == topic))
    consumer = Consumer(
        client_options(settings)
        | {
            "group.id": "outside",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for _, number in ends])
    found: dict[tuple[int, int], bytes | None] = {}
    open_partitions = {number for _, number in ends}
    while open_partitions:
        message = consumer.poll(10)
        assert message is not None, "the topic could not be read to its end"
        if message.error():
            open_partitions.discard(message.partition())
        else:
            found[message.partition(), message.offset()] = message.value()
    consumer.close()
    return found


def send(
    settings: Settings,
    topic: str,
    *values: bytes | None,
    keys: Iterable[bytes | None] = repeat(None),
    headers: list[tuple[str, bytes]] | None = None,
    partitions: int = 4,
) -> None:
    ensure_topic(settings, topic, partitions)
    producer = Producer(client_options(settings) | {"queue.buffering.max.messages": 1_000_000})
    for value, key in zip(values, keys, strict=False):
        producer.produce(topic, value, key, headers=headers)
        producer.poll(0)
    assert producer.flush(60) == 0


def read_table(settings: Settings, name: str, *columns: str) -> pa.Table:
    table = open_catalog(settings).load_table(name)
    return table.scan(selected_fields=columns or ("*",)).to_arrow()


def land(settings: Settings, stream: Stream, accept_gaps: bool = False) -> Committer:
    """Ingest what the topics hold now, in this process and without Spark."""
    committer = Committer(settings, stream)
    ledger = committer.ledger
    start, lost = next_offsets(settings, stream, ledger.table, committer.position, accept_gaps)
    if lost:
        ledger.refresh()
    end = end_offsets(settings, stream_partitions(settings, stream))
    lander = Lander(committer.plan)
    at = start
    while at.distance_to(end):
        target = batch_end(at, end, stream.batch.max_records)
        ranges = [
            Range(*one, at[one], offset) for one, offset in target.items() if offset > at[one]
        ]
        began, stamp = time.monotonic(), ledger.next_stamp()
        landed = lander.land(ranges, stamp)
        committer.commit([landed], follow(at.raised_to(committer.position), ranges), stamp, began)
        at = target
    lander.close()
    return committer


def run_once(spark: Any, settings: Settings, stream: Stream) -> Run:
    """Ingest what the topics hold now, with Spark."""
    run = Run(spark, settings, stream)
    run.start(once=True)
    wait_for(lambda: not run.is_running)
    run.stop()
    run.raise_failure()
    return run


def compact(spark: Any, stream: Stream) -> None:
    spark.sql(
        f"call lake.system.rewrite_data_files(table => '{stream.table}', "
        "options => map('rewrite-all', 'true'))"
    )


def expire(spark: Any, stream: Stream) -> None:
    """All snapshots but the newest."""
    spark.sql(
        f"call lake.system.expire_snapshots(table => '{stream.table}', "
        "older_than => timestamp '2100-01-01', retain_last => 1)"
    )


@contextmanager
def meanwhile(action: Callable[[], object], every: float) -> Iterator[None]:
    """Done again and again beside the block; the one under way is waited for."""
    done = threading.Event()

    def loop() -> None:
        while not done.wait(every):
            action()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def supervised(
    spark: Any, settings: Settings, *streams: Stream, accept_gaps: bool = False
) -> Iterator["Watched"]:
    """Streams that run under supervision in this process, as `headwater ingest` runs them."""
    events: list[dict[str, Any]] = []

    def emit(event: str, text: str, **fields: Any) -> None:
        events.append({"event": event, "text": text, **fields})

    with ExitStack() as stack:
        kept = [Supervised(one, stack.enter_context(hold(settings, one.name))) for one in streams]
        supervisor = Supervisor(spark, settings, kept, False, accept_gaps, emit)
        try:
            with meanwhile(supervisor.step, every=0.05):
                yield Watched(kept, events)
        finally:
            supervisor.stop()


@dataclass
class Watched:
    streams: list[Supervised]
    events: list[dict[str, Any]]

    def told(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["event"] == event]

    def wait_until_drained(self, seconds: float = 120) -> None:
        """Until every stream that has not failed holds all that its topics hold now."""

        def drained() -> bool:
            active = [one for one in self.streams if one.is_active]
            return all(one.run and one.run.is_running and one.run.lag == 0 for one in active)

        wait_for(drained, seconds)


started: list[subprocess.Popen[str]] = []  # what is left of them is killed after each test


def start_ingest(stack: dict[str, str], *streams: str, **extra: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [str(HEADWATER), "ingest", *(streams or ("stocks",))],
        env={**clean_environment(), **stack, **extra},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    started.append(process)
    return process


def kill_tree(ingest: subprocess.Popen[str]) -> None:
    for process in (*psutil.Process(ingest.pid).children(recursive=True), ingest):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    ingest.wait(30)


def is_whole(file: Path) -> bool:
    """Whether a data file is written to its end."""
    try:
        pq.read_metadata(file)
    except (OSError, pa.ArrowInvalid):
        return False
    return True


def row_count(settings: Settings, stream: Stream) -> int:
    catalog = open_catalog(settings)
    if not catalog.table_exists(stream.table):
        return 0
    snapshot = catalog.load_table(stream.table).current_snapshot()
    return int((snapshot.summary and snapshot.summary["total-records"]) or 0) if snapshot else 0


@contextmanager
def locked_catalog(settings: Settings) -> Iterator[None]:
    """Everyone may read it, and nobody may commit."""
    with closing(sqlite3.connect(settings.catalog_db, timeout=30, isolation_level=None)) as other:
        other.execute("begin immediate")
        yield
        other.execute("rollback")


def make_again(settings: Settings, topic: str) -> None:
    admin(settings).delete_topics([topic])[topic].result(30)
    wait_for(lambda: topic not in admin(settings).list_topics(timeout=5).topics)
    ensure_topic(settings, topic)


def behind(settings: Settings, stream: Stream) -> int | None:
    """How many offsets of its topics the table has not read."""
    table = open_catalog(settings).load_table(stream.table)
    return lag(settings, stream.reads, read_position(table).offsets)


def verified(settings: Settings, stream: Stream) -> int:
    """The verifier finds nothing wrong. Returns how many records it compared."""
    table = open_catalog(settings).load_table(stream.table)
    found = verify(settings, stream, table, lambda *_: None)
    assert found.is_exact, [one.problems for one in found.partitions]
    return sum(one.checked for one in found.partitions)


def processes_of(state: Path | str) -> list[dict[str, Any]]:
    """Every server and Spark process names its state folder in its arguments."""
    found = [process.info for process in psutil.process_iter(["pid", "cmdline"])]
    return [one for one in found if str(state) in " ".join(one["cmdline"] or ())]


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def assert_table_is_topic(settings: Settings, table: str, topic: str) -> int:
    """Each record of the topic is in the table once, byte for byte, and nothing else is."""
    expected = read_topic(settings, topic)
    rows = read_table(settings, table, "_kafka_partition", "_kafka_offset", "_kafka_value")
    coordinates = list(
        zip(rows["_kafka_partition"].to_pylist(), rows["_kafka_offset"].to_pylist(), strict=True)
    )
    assert len(coordinates) == len(set(coordinates)), "a record is in the table twice"
    assert set(coordinates) == set(expected)
    assert dict(zip(coordinates, rows["_kafka_value"].to_pylist(), strict=True)) == expected
    return len(expected)


def drop(settings: Settings, name: str) -> None:
    catalog = open_catalog(settings)
    if catalog.table_exists(name):
        folder = catalog.load_table(name).location().removeprefix("file://")
        catalog.drop_table(name)
        shutil.rmtree(folder)  # much quicker than to purge file by file what snapshots know
