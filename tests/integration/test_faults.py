"""Faults made to happen while a stream runs. Each test ends with the verifier.

Here is one quick round of each; `test_faults_slow.py` has the long ones.
"""

import json
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions
from pyspark.sql import SparkSession

from headwater.local import services
from ingestion import kafka, lease, ledger
from ingestion.catalog import open_catalog
from ingestion.errors import HeadwaterError, TakenOverError, TopicChangedError
from ingestion.kafka import admin, end_offsets, ensure_topic
from ingestion.lease import Board
from ingestion.ledger import Ledger
from ingestion.origin import gaps
from ingestion.settings import Settings
from ingestion.stream import Stream
from ingestion.supervise import Supervised
from tests.conftest import HEADWATER, run
from tests.integration.conftest import new_stream
from tests.integration.outside import (
    VALUE,
    compact,
    drop,
    expire,
    land,
    locked_catalog,
    make_again,
    meanwhile,
    read_table,
    row_count,
    send,
    supervised,
    verified,
    wait_for,
)


@pytest.fixture
def eager(stream: Stream) -> Stream:
    """Commits what comes, in small batches."""
    return with_batch(stream, min_records=1, max_seconds=1, max_records=2_000)


def with_batch(stream: Stream, **limits: int) -> Stream:
    return stream.model_copy(update={"batch": stream.batch.model_copy(update=limits)})


def load(settings: Settings, stream: Stream) -> AbstractContextManager[None]:
    """Records come all the time."""
    ensure_topic(settings, stream.topics[0])
    return meanwhile(lambda: send(settings, stream.topics[0], *[VALUE] * 200), every=0.1)


def wait_for_more(settings: Settings, stream: Stream) -> None:
    before = row_count(settings, stream)
    wait_for(lambda: row_count(settings, stream) > before)


def restart_broker(stack: dict[str, str], settings: Settings, away_seconds: float) -> None:
    (service,) = (one for one in services.services(settings) if one.name == "kafka")
    services.end(settings, service, lambda _: None)
    time.sleep(away_seconds)  # the outage is what is tested
    done = run(HEADWATER, "up", env=stack)
    assert done.returncode == 0, done.stderr


def trim(settings: Settings, topic: str, before: dict[int, int]) -> None:
    """Delete older records, as retention does."""
    places = [TopicPartition(topic, one, offset) for one, offset in before.items()]
    for answer in admin(settings).delete_records(places).values():
        answer.result(30)


# --- servers and disks that go away --------------------------------------------------------------


def test_a_broker_that_restarts_in_mid_batch(
    stack: dict[str, str], spark: SparkSession, settings: Settings, stream: Stream
) -> None:
    send(settings, stream.topics[0], *[VALUE] * 60_000)
    offsets = settings.home / "checkpoints" / stream.name
    with supervised(spark, settings, stream) as watched:
        wait_for(lambda: any(offsets.glob("*/offsets/0")))
        restart_broker(stack, settings, away_seconds=1)
        send(settings, stream.topics[0], *[VALUE] * 1_000)
        watched.wait_until_drained()
    assert verified(settings, stream) == 61_000


def test_a_broker_that_hangs_holds_no_task_for_ever(
    settings: Settings, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "QUIET_SECONDS", 2)
    send(settings, stream.topics[0], *[VALUE] * 20_000, partitions=1)
    little_ahead = {"queued.min.messages": 100, "fetch.message.max.bytes": 10_000}
    consumer = kafka.committed_consumer(settings, "test", **little_ahead)
    blocks = kafka.read_ranges(consumer, [kafka.Range(stream.topics[0], 0, 0, 20_000)])
    next(blocks)
    with hung_broker(settings), pytest.raises(HeadwaterError, match="gave no record for 2 s"):
        deque(blocks)
    consumer.close()
    land(settings, stream)
    assert verified(settings, stream) == 20_000


@contextmanager
def hung_broker(settings: Settings) -> Iterator[None]:
    """It takes connections and answers nothing."""
    (service,) = (one for one in services.services(settings) if one.name == "kafka")
    process = psutil.Process(services.running_pid(settings, service))
    process.suspend()
    try:
        yield
    finally:
        process.resume()


@pytest.mark.parametrize("seconds", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_a_catalog_that_is_locked(
    spark: SparkSession, settings: Settings, eager: Stream, seconds: float
) -> None:
    with supervised(spark, settings, eager) as watched, load(settings, eager):
        wait_for_more(settings, eager)
        with locked_catalog(settings):
            time.sleep(seconds)  # longer than the writers' own patience of 30 s, or not
        wait_for_more(settings, eager)
        assert not watched.told("failed")
    land(settings, eager)
    verified(settings, eager)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("only root may mount the small file system that this test fills")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk(
    spark: SparkSession, settings: Settings, small_disk: Path, eager: Stream
) -> None:
    """The table is on it. The stream says why it fails, and goes on when there is room again."""
    settings = settings.model_copy(update={"warehouse": str(small_disk / "warehouse")})
    filler = small_disk / "filler"
    with supervised(spark, settings, eager) as watched:
        send(settings, eager.topics[0], *[VALUE] * 500)
        wait_for(lambda: row_count(settings, eager) == 500)
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(4096))
        send(settings, eager.topics[0], *[VALUE] * 500)
        wait_for(lambda: bool(watched.told("restart")))
        assert "is full" in watched.told("restart")[0]["reason"]
        filler.unlink()
        wait_for(lambda: row_count(settings, eager) == 1_000)
    assert verified(settings, eager) == 1_000


# --- others at the table -------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_compaction_and_expiry_while_the_stream_writes(
    spark: SparkSession, settings: Settings, eager: Stream, rounds: int
) -> None:
    other = spark.newSession()
    with supervised(spark, settings, eager) as watched, load(settings, eager):
        for _ in range(rounds):
            wait_for_more(settings, eager)
            compact(other, eager)
            expire(other, eager)
        wait_for_more(settings, eager)
        assert not watched.told("failed")
    land(settings, eager)
    verified(settings, eager)


def test_a_rollback_while_the_stream_runs_is_read_again(
    spark: SparkSession, settings: Settings, eager: Stream
) -> None:
    with supervised(spark, settings, eager) as watched:
        for number in (1, 2):
            send(settings, eager.topics[0], *[VALUE] * 100)
            wait_for(lambda number=number: row_count(settings, eager) == 100 * number)
        first = open_catalog(settings).load_table(eager.table).snapshots()[0]
        spark.sql(f"call lake.system.rollback_to_snapshot('{eager.table}', {first.snapshot_id})")
        send(settings, eager.topics[0], *[VALUE] * 100)
        wait_for(lambda: row_count(settings, eager) == 300)
        assert len(watched.told("restart")) == 1
    assert verified(settings, eager) == 300


def test_a_writer_whose_lease_was_taken_stops_and_says_by_whom(
    spark: SparkSession, settings: Settings, eager: Stream
) -> None:
    send(settings, eager.topics[0], *[VALUE] * 10)
    other = lease.replace(lease._claim(lease.INGEST), host="elsewhere", pid=4711)
    with supervised(spark, settings, eager) as watched:
        wait_for(lambda: row_count(settings, eager) == 10)
        Board(settings, eager.name).put_lease(other)
        (one,) = watched.streams
        wait_for(lambda: not one.is_active)
        assert isinstance(one.reason, TakenOverError)
        assert "with pid 4711 on elsewhere" in one.reason.message
        assert not watched.told("restart")
    left = Board(settings, eager.name).claims().lease
    assert left is not None  # what the other one holds was not taken away
    assert left.id == other.id
    assert verified(settings, eager) == 10


# --- topics that change --------------------------------------------------------------------------


def test_partitions_added_while_the_stream_runs(
    spark: SparkSession, settings: Settings, eager: Stream
) -> None:
    topic = eager.topics[0]
    send(settings, topic, *[VALUE] * 100, partitions=2)
    with supervised(spark, settings, eager) as watched:
        wait_for(lambda: row_count(settings, eager) == 100)
        admin(settings).create_partitions([NewPartitions(topic, 6)])[topic].result(30)
        for _ in range(10):  # a producer learns of new partitions after a while
            send(settings, topic, *[VALUE] * 50)
        wait_for(lambda: row_count(settings, eager) == 600)
        assert not watched.told("restart")
        assert watched.streams[0].state == Supervised.RUNNING
    found = read_table(settings, eager.table, "_kafka_partition")["_kafka_partition"]
    assert len(found.unique()) == 6
    assert verified(settings, eager) == 600


def test_a_topic_made_again_is_refused_while_it_runs_and_others_go_on(
    spark: SparkSession, settings: Settings, eager: Stream
) -> None:
    other = with_batch(new_stream(), min_records=1, max_seconds=1)
    for one in (eager, other):
        send(settings, one.topics[0], *[VALUE] * 100)
    with supervised(spark, settings, eager, other) as watched:
        wait_for(lambda: row_count(settings, eager) == row_count(settings, other) == 100)
        make_again(settings, eager.topics[0])
        send(settings, eager.topics[0], *[VALUE] * 1_000)  # more than before: offsets look right
        failing, fine = watched.streams
        wait_for(lambda: not failing.is_active)
        assert failing.state == Supervised.FAILED
        assert isinstance(failing.reason, TopicChangedError)
        assert "was deleted and created again" in failing.reason.message
        send(settings, other.topics[0], *[VALUE] * 100)
        wait_for(lambda: row_count(settings, other) == 200)
        assert fine.state == Supervised.RUNNING
    assert row_count(settings, eager) == 100
    assert verified(settings, other) == 200
    # It stays refused at the next start, and the verifier says so too.
    with pytest.raises(TopicChangedError, match="was deleted and created again"):
        land(settings, eager)
    with pytest.raises(TopicChangedError, match="was deleted and created again"):
        verified(settings, eager)
    drop(settings, other.table)


def test_records_deleted_before_they_were_read_stop_the_stream_until_someone_accepts(
    stack: dict[str, str], spark: SparkSession, settings: Settings, stream: Stream, tmp_path: Path
) -> None:
    topic = stream.topics[0]
    send(settings, topic, *[VALUE] * 10, partitions=1)
    land(settings, stream)
    send(settings, topic, *[VALUE] * 20)
    trim(settings, topic, {0: 25})
    with pytest.raises(TopicChangedError) as caught:
        land(settings, stream)
    assert f"{topic} partition 0: offsets 10 to 24 (15)" in caught.value.message
    assert "--accept-gaps" in caught.value.hint
    assert row_count(settings, stream) == 10
    with supervised(spark, settings, stream, accept_gaps=True) as watched:
        wait_for(lambda: bool(watched.told("gap")))
    # Accepted is accepted, also when the process ends before the next commit.
    land(settings, stream)
    assert row_count(settings, stream) == 15
    (gap,) = gaps(open_catalog(settings).load_table(stream.table))
    assert (gap.topic, gap.partition, gap.first, gap.end) == (topic, 0, 10, 25)
    assert verified(settings, stream) == 5  # the others are gone from Kafka
    shutil.copy(stream.file, tmp_path / f"{stream.name}.yml")
    env = {**stack, "HEADWATER_STREAMS": str(tmp_path)}
    shown = json.loads(run(HEADWATER, "status", "--json", env=env).stdout)
    (told,) = shown["streams"][stream.name]["gaps"]
    assert (told["topic"], told["first"], told["end"]) == (topic, 10, 25)
    assert "offsets 10 to 24" in run(HEADWATER, "status", env=env).stdout


def test_records_deleted_while_a_batch_waits_are_not_skipped(
    spark: SparkSession, settings: Settings, eager: Stream
) -> None:
    topic = eager.topics[0]
    send(settings, topic, *[VALUE] * 10, partitions=1)
    offsets = settings.home / "checkpoints" / eager.name
    with supervised(spark, settings, eager) as watched:
        wait_for(lambda: row_count(settings, eager) == 10)
        (one,) = watched.streams
        assert one.run is not None
        one.run.pause()
        planned = len(list(offsets.glob("*/offsets/*")))
        send(settings, topic, *[VALUE] * 20)
        wait_for(lambda: len(list(offsets.glob("*/offsets/*"))) > planned)
        trim(settings, topic, {0: 25})
        one.run.resume()
        wait_for(lambda: not one.is_active)
        assert isinstance(one.reason, TopicChangedError)
        assert f"{topic} partition 0: offsets 10 to 24" in one.reason.message
    assert row_count(settings, eager) == 10


def test_a_new_topic_may_begin_anywhere_and_an_added_partition_at_its_first_record(
    settings: Settings, stream: Stream
) -> None:
    topic = stream.topics[0]
    send(settings, topic, *[VALUE] * 10, partitions=1)
    trim(settings, topic, {0: 5})
    land(settings, stream)  # the table begins where the topic does
    assert verified(settings, stream) == 5
    admin(settings).create_partitions([NewPartitions(topic, 2)])[topic].result(30)

    def in_new_partition() -> bool:
        send(settings, topic, *[VALUE] * 10)
        return end_offsets(settings, {topic: [1]})[topic, 1] >= 5

    wait_for(in_new_partition)
    trim(settings, topic, {1: 2})
    with pytest.raises(TopicChangedError, match="partition 1: offsets 0 to 1"):
        land(settings, stream)


# --- restarts ------------------------------------------------------------------------------------


def test_a_stream_that_keeps_failing_is_restarted_with_growing_pauses_then_stopped(
    spark: SparkSession, settings: Settings, eager: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings.model_copy(update={"restarts": 2, "restart_pause_seconds": 0.2})
    commit = Ledger.commit

    def broken(self: Ledger, *rest: Any) -> Any:
        if self.identifier == eager.table:
            raise RuntimeError("made to fail")
        return commit(self, *rest)

    monkeypatch.setattr(Ledger, "commit", broken)
    other = with_batch(new_stream(), min_records=1, max_seconds=1)
    for one in (eager, other):
        send(settings, one.topics[0], *[VALUE] * 10)
    with supervised(spark, settings, eager, other) as watched:
        failing, fine = watched.streams
        wait_for(lambda: bool(watched.told("failed")))
        assert [one["pause_seconds"] for one in watched.told("restart")] == [0.2, 0.4]
        (told,) = watched.told("failed")
        assert "after 2 restarts" in told["text"]
        assert isinstance(failing.reason, HeadwaterError)
        assert "made to fail" in failing.reason.message
        wait_for(lambda: row_count(settings, other) == 10)
        assert fine.state == Supervised.RUNNING
    monkeypatch.setattr(Ledger, "commit", commit)
    land(settings, eager)
    assert verified(settings, eager) == verified(settings, other) == 10
    drop(settings, other.table)


def test_a_commit_in_between_starts_the_count_anew(
    spark: SparkSession, settings: Settings, eager: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings.model_copy(update={"restarts": 1, "restart_pause_seconds": 0.1})
    commit = Ledger.commit
    calls = iter([False, True, False, True, False, True])

    def shaky(*arguments: Any) -> Any:
        if next(calls, True):
            return commit(*arguments)
        raise RuntimeError("made to fail")

    monkeypatch.setattr(Ledger, "commit", shaky)
    with supervised(spark, settings, eager) as watched:
        for number in (1, 2, 3):
            send(settings, eager.topics[0], *[VALUE] * 10)
            wait_for(lambda number=number: row_count(settings, eager) == 10 * number)
        assert len(watched.told("restart")) == 3
        assert not watched.told("failed")
    assert verified(settings, eager) == 30


# --- time ----------------------------------------------------------------------------------------


def test_stamps_grow_when_the_clock_steps_back(
    settings: Settings, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        ahead = timedelta(hours=1)

        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + cls.ahead

    monkeypatch.setattr(ledger, "datetime", Clock)
    seen = []
    for ahead in (timedelta(hours=1), timedelta(0), timedelta(hours=-1)):
        Clock.ahead = ahead
        send(settings, stream.topics[0], VALUE)
        seen.append(land(settings, stream).progress.last_commit)
    assert seen[0] is not None
    assert seen[0] > datetime.now(UTC) + timedelta(minutes=50)
    microsecond = timedelta(microseconds=1)
    assert seen == [seen[0], seen[0] + microsecond, seen[0] + 2 * microsecond]
    stamps = read_table(settings, stream.table, "_ingested_at")["_ingested_at"].to_pylist()
    assert sorted(stamps) == seen
    assert verified(settings, stream) == 3
