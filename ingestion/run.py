"""One run of one stream: Spark reads Kafka, each micro-batch becomes one commit to bronze."""

import os
import pickle
import shutil
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import psutil
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ingestion.commit import Committer, Progress
from ingestion.errors import HeadwaterError, SparkGoneError, carried
from ingestion.kafka import Range, end_offsets, lag
from ingestion.landing import Landed
from ingestion.ledger import EPOCH, moved
from ingestion.offsets import Offsets
from ingestion.origin import check_topics, next_offsets, stream_partitions
from ingestion.settings import Settings
from ingestion.source import NAME, STAMP, Reading, source
from ingestion.spark import is_gone
from ingestion.stream import Stream

FINISH_BATCH_SECONDS = 120


class Run:
    """One run of one stream, from the position in its table onwards."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        stream: Stream,
        progress: Progress | None = None,
        accept_gaps: bool = False,
    ) -> None:
        self.stream = stream
        self.failure: BaseException | None = None
        self._settings = settings
        self._spark = spark
        self._turn = threading.Lock()  # held by the batch under way, or by whoever paused the run
        self._stopping = False
        self._committer = Committer(settings, stream, progress)
        self._checkpoint = _new_checkpoint(settings.home / "checkpoints" / stream.name)
        ledger = self._committer.ledger
        start, self.gaps = next_offsets(
            settings, stream, ledger.table, ledger.position.offsets, accept_gaps
        )
        if self.gaps:
            ledger.refresh()
        self._start = start
        self._end: Offsets | None = None  # where a bounded run ends
        self._query: StreamingQuery | None = None

    @property
    def progress(self) -> Progress:
        return self._committer.progress

    def start(self, once: bool) -> None:
        """`once` reads what is there now and ends; otherwise the run goes on until `stop`."""
        if once:
            partitions = stream_partitions(self._settings, self.stream)
            self._end = end_offsets(self._settings, partitions)
        cores = self._spark.sparkContext.defaultParallelism
        plan = pickle.dumps(self._committer.plan)
        reading = Reading(self._settings, self.stream, plan, self._start, self._end, cores)
        self._spark.dataSource.register(source(reading))
        self._query = (
            self._spark.readStream.format(NAME)
            .load()
            .writeStream.queryName(self.stream.name)
            .option("checkpointLocation", f"file://{self._checkpoint}")
            .foreachBatch(self._land)
            .start()
        )

    def pause(self) -> None:
        """Wait for the running batch to end, and start no other."""
        self._turn.acquire()

    def resume(self) -> None:
        """Continue after another writer's turn, from the same offsets."""
        try:
            before = self._committer.position
            self._committer.ledger.refresh()
            if self._committer.position != before:
                raise moved(self.stream.table, "its position has changed")
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._turn.release()

    @property
    def is_done(self) -> bool:
        """Whether a bounded run has landed all that it was to land."""
        return self._end is not None and not self._reached().distance_to(self._end)

    @property
    def is_running(self) -> bool:
        try:
            return self._query is not None and self._query.isActive and not self.is_done
        except (Py4JError, OSError) as error:  # the JVM is gone
            self.failure = self.failure or error
            return False

    @property
    def failed(self) -> bool:
        if self.failure is None and self._query is not None:
            with suppress(Py4JError, OSError):  # the JVM may be gone; is_running tells
                self.failure = self._query.exception()
        return self.failure is not None

    @property
    def lag(self) -> int | None:
        """Records in the topics that are not in the table yet; None while no broker answers."""
        return lag(self._settings, self.stream.reads, self._committer.position)

    @property
    def last_commit(self) -> datetime | None:
        newest = self._committer.ledger.position.newest_stamp
        return newest if newest > EPOCH else None

    def stop(self) -> None:
        """Let the batch under way commit, then end."""
        self._stopping = True
        if self._turn.acquire(timeout=FINISH_BATCH_SECONDS):
            self._turn.release()
        with suppress(Py4JError, OSError):  # the JVM may be gone
            if self._query and self._query.isActive:
                self._query.stop()
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def raise_failure(self) -> None:
        """The reason of a run that ended by itself, if it failed."""
        if self.failed:
            assert self.failure is not None  # noqa: S101
            raise reason(self._settings, self.stream, self.failure)

    def _reached(self) -> Offsets:
        """The position. A topic that is not read now keeps its offsets: it may return."""
        return self._start.raised_to(self._committer.position)

    def _land(self, batch: DataFrame, _number: int) -> None:
        """One micro-batch. It runs on Spark's callback thread."""
        with self._turn:
            if self._stopping:  # what is not in the table is read again by the next run
                return
            try:
                if self.failure is not None:
                    raise self.failure
                self._commit(batch)
            except BaseException as error:
                self.failure = error
                raise

    def _commit(self, batch: DataFrame) -> None:
        began = time.monotonic()
        stamp = self._committer.ledger.next_stamp()
        context = self._spark.sparkContext
        context.setLocalProperty(STAMP, stamp.isoformat())
        context.setJobDescription(f"{self.stream.name}: commit {self.progress.commits + 1}")
        landed = [Landed.from_bytes(bytes(row.landed)) for row in batch.collect()]
        ranges = [span for part in landed for span in part.ranges]
        if not ranges:
            return
        end = follow(self._reached(), ranges)
        self.progress.read += sum(span.size for span in ranges)
        check_topics(self._settings, self._committer.ledger.table, {span.topic for span in ranges})
        self._committer.commit(landed, end, stamp, began)


def follow(position: Offsets, ranges: Sequence[Range]) -> Offsets:
    """The end of these ranges, which must join on to the position without a gap or an overlap."""
    end = dict(position)
    for span in sorted(ranges):
        at = end.get((span.topic, span.partition), span.begin)
        if at != span.begin:
            raise HeadwaterError(
                f"a batch of {span.topic} partition {span.partition} begins at offset "
                f"{span.begin}, but the table's position is {at}",
                "start it again: it goes on from the table",
            )
        end[span.topic, span.partition] = span.end
    return Offsets(end)


def _new_checkpoint(folder: Path) -> Path:
    """A checkpoint folder for this run. Those of processes that have ended are deleted."""
    for old in folder.glob("*-*"):
        if not psutil.pid_exists(int(old.name.split("-")[0])):
            shutil.rmtree(old, ignore_errors=True)
    checkpoint = folder / f"{os.getpid()}-{uuid.uuid4().hex}"
    checkpoint.mkdir(parents=True)
    return checkpoint


def reason(settings: Settings, stream: Stream, error: BaseException) -> HeadwaterError:
    """A failure in words that help a user."""
    if isinstance(error, HeadwaterError):
        return error
    if known := carried(str(error)):
        return known
    if is_gone() or isinstance(error, Py4JNetworkError):
        return SparkGoneError(
            f"Spark's process ended while it ran stream {stream.name}",
            "start it again: it goes on from the table. If memory ran out, raise "
            "HEADWATER_SPARK_DRIVER_MEMORY or lower batch.max_records in the stream file; "
            f"Spark's log: {settings.logs / 'ingest.log'}",
        )
    cause = _innermost(error)
    what = f"stream {stream.name} failed: {cause}"
    log = f"Spark's log: {settings.logs / 'ingest.log'}"
    if "No space left on device" in str(error):
        return HeadwaterError(
            f"the disk that holds {settings.warehouse_location} or {settings.home} is full: {what}",
            f"free some space; nothing is lost, and it goes on from the table. {log}",
        )
    return HeadwaterError(
        what, f"start it again when that is fixed: it goes on from the table. {log}"
    )


def _innermost(error: BaseException) -> str:
    """The innermost cause in one line: what Spark wraps around it says nothing to a user."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes or lines or [type(error).__name__])[-1 if causes else 0][:300]
