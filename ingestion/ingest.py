"""Run streams: Structured Streaming reads Kafka, each micro-batch becomes one commit to bronze."""

import json
import os
import shutil
import threading
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from py4j.protocol import Py4JError, Py4JNetworkError

from headwater.catalog import open_catalog
from headwater.errors import HeadwaterError, SparkGoneError
from headwater.kafka import Offsets, ensure_topic, lag
from headwater.security import spark_options
from headwater.settings import Settings
from headwater.spark import is_gone
from ingestion.bronze import ERROR_TYPES, ensure_table
from ingestion.decode import UNDECLARED, check_stream, decode
from ingestion.formats import schema_id
from ingestion.ledger import EPOCH, commit, moved, own_position, read_position
from ingestion.origin import Gap, check_topics, next_offsets
from ingestion.registry import Registry
from ingestion.stream import REGISTRY, Stream

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FINISH_BATCH_SECONDS = 120


@dataclass
class Progress:
    """What the runs of a stream in this process have done so far."""

    read: int = 0  # offsets taken up, also by batches that were not committed
    rows: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    undeclared: int = 0  # records with fields that the stream does not declare
    undeclared_names: set[str] = field(default_factory=set)  # some of their names
    commits: int = 0
    last_commit: datetime | None = None
    last_rows: int = 0
    last_seconds: float = 0.0
    batch_seconds: float = 0.0
    commit_seconds: float = 0.0  # of these, after the data files were written
    bytes: int = 0
    files: int = 0
    retired: int = 0  # offsets that a backfill left out: retention has removed their rows


class Landing:
    """How records of a stream become a commit: decoded, forwarded, counted, written."""

    def __init__(
        self,
        spark: "SparkSession",
        settings: Settings,
        stream: Stream,
        progress: Progress | None = None,
    ) -> None:
        self.stream = stream
        self.progress = progress or Progress()
        self._spark = spark
        self._settings = settings
        self._catalog = open_catalog(settings)
        formats = {"key": stream.key, "value": stream.value}
        self._by_id = [name for name, one in formats.items() if one and one.schema_ == REGISTRY]
        self._registry = Registry(settings) if self._by_id else None
        check_stream(spark, stream)
        if stream.forward:
            ensure_topic(settings, stream.forward.topic)
        self.table = ensure_table(settings, stream)
        self.position = read_position(self.table)

    @property
    def by_registry(self) -> bool:
        return self._registry is not None

    def load_table(self) -> "Table":
        self.table = self._catalog.load_table(self.stream.table)
        return self.table

    def read(self, reader: Any) -> Any:
        """A batch or streaming reader of Kafka, with what both need."""
        return (
            reader.format("kafka")
            .options(**spark_options(self._settings))
            .option("kafka.isolation.level", "read_committed")
            # A batch knows where it ends. At the end of a log, each of its tasks would wait for
            # half a second for more: small batches took 1.5 s instead of 0.5 s.
            .option("kafka.fetch.max.wait.ms", "50")
            .option("includeHeaders", str(self.stream.headers).lower())
        )

    def decode(self, records: "DataFrame") -> "DataFrame":
        """Rows of the table; for a registry, with the schemas that these records name."""
        if self._registry is None:
            return decode(records, self.stream)
        ids = {
            row[0]
            for part in self._by_id
            for row in records.select(schema_id(records[part])).distinct().collect()
            if row[0] is not None
        }
        return decode(records, self.stream, self._registry.schemas(sorted(ids)))

    def commit(self, rows: "DataFrame", end: Offsets) -> None:
        """Forward what is valid, then write all of it in one commit that ends at these offsets."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        began = time.monotonic()
        jobs = Jobs(self._spark, f"{self.stream.name}: commit {self.progress.commits + 1}")
        if self.stream.forward:
            rows = rows.persist()  # so that they are decoded once for both
        counts = Observation()
        name = F.get(UNDECLARED, F.lit(0))
        counted_rows = rows.observe(
            counts,
            F.count(F.lit(1)).alias("rows"),
            F.count_if(F.size(UNDECLARED) > 0).alias("undeclared"),
            F.min(name).alias("first_undeclared"),
            F.max(name).alias("last_undeclared"),
            *(F.count_if(F.col("_error_type") == kind).alias(kind) for kind in ERROR_TYPES),
        )
        try:
            self.forward(rows.where("_error_type is null"))
            stamp = commit(counted_rows.drop(UNDECLARED), self.stream.table, self.position, end)
            self.progress.commit_seconds += jobs.seconds_since_last()
        finally:
            rows.unpersist()
        self.position = own_position(self.load_table(), stamp, end)
        self._note(counts.get, stamp, time.monotonic() - began)

    def forward(self, valid: "DataFrame") -> None:
        """At least once: it comes before the commit, so a crash in between sends it again."""
        if self.stream.forward is None:
            return
        columns = ["key", "value", *(["headers"] if self.stream.headers else [])]
        (
            valid.selectExpr(*(f"_kafka_{name} as {name}" for name in columns))
            .write.format("kafka")
            .options(**spark_options(self._settings))
            .option("includeHeaders", str(self.stream.headers).lower())
            .option("topic", self.stream.forward.topic)
            .save()
        )

    def _note(self, counted: dict[str, Any], stamp: datetime, seconds: float) -> None:
        done = self.progress
        done.last_rows = counted["rows"]
        done.rows += done.last_rows
        done.errors.update({kind: counted[kind] for kind in ERROR_TYPES})
        done.undeclared += counted["undeclared"]
        names = {counted["first_undeclared"], counted["last_undeclared"]} - {None}
        done.undeclared_names.update(names)
        done.commits += 1
        done.last_commit = stamp
        done.last_seconds = seconds
        done.batch_seconds += seconds
        written = self.table.snapshot_by_id(self.position.snapshot_id or 0)
        if written and written.summary:
            done.bytes += int(written.summary["added-files-size"] or 0)
            done.files += int(written.summary["added-data-files"] or 0)


class Ingestion:
    """One run of one stream, from the position in its table onwards."""

    def __init__(
        self,
        spark: "SparkSession",
        settings: Settings,
        stream: Stream,
        progress: Progress | None = None,
        accept_gaps: bool = False,
    ) -> None:
        self.stream = stream
        self.gaps: list[Gap] = []  # what this run accepted as lost
        self.failure: BaseException | None = None
        self._settings = settings
        self._spark = spark
        self._turn = threading.Lock()  # held by the batch under way, or by whoever paused the run
        self._stopping = False
        self._landing = Landing(spark, settings, stream, progress)
        self._checkpoint = _new_checkpoint(settings.home / "checkpoints" / stream.name)
        self._accept_gaps = accept_gaps
        self._read_to: Offsets = {}
        self._query: StreamingQuery | None = None

    @property
    def progress(self) -> Progress:
        return self._landing.progress

    def start(self, once: bool) -> None:
        """`once` reads what is there now and ends; otherwise the run goes on until `stop`."""
        batch, topics, pattern = self.stream.batch, self.stream.topics, self.stream.topic_pattern
        reader = (
            self._landing.read(self._spark.readStream)
            .option("subscribe" if topics else "subscribePattern", ",".join(topics) or pattern)
            .option("startingOffsets", json.dumps(self._start_offsets()))
            .option("maxOffsetsPerTrigger", batch.max_records)
        )
        if not once:  # Spark would hold back what is less even when it shall end
            reader = reader.option("maxTriggerDelay", f"{batch.max_seconds}s").option(
                "minOffsetsPerTrigger", min(batch.min_records, batch.max_records)
            )
        records = reader.load()
        # Planned once for all batches, unless each batch must first be asked for its schemas.
        rows = records if self._landing.by_registry else self._landing.decode(records)
        writer = (
            rows.writeStream.queryName(self.stream.name)
            .option("checkpointLocation", f"file://{self._checkpoint}")
            .foreachBatch(self._land)
        )
        self._query = writer.trigger(availableNow=True).start() if once else writer.start()

    def pause(self) -> None:
        """Wait for the end of the batch under way, and let no other begin."""
        self._turn.acquire()

    def resume(self) -> None:
        """Go on after someone else's turn, from the same offsets on top of what they wrote."""
        try:
            now = read_position(self._landing.load_table())
            if now.offsets != self._landing.position.offsets:
                raise moved(self.stream.table, "its position is another one")
            self._landing.position = now
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._turn.release()

    @property
    def is_running(self) -> bool:
        try:
            return self._query is not None and self._query.isActive
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
        return lag(self._settings, self.stream.reads, self._landing.position.offsets)

    @property
    def last_commit(self) -> datetime | None:
        newest = self._landing.position.newest_stamp
        return newest if newest > EPOCH else None

    def stop(self) -> None:
        """Let the batch under way commit, then end."""
        self._stopping = True
        if self._turn.acquire(timeout=FINISH_BATCH_SECONDS):
            self._turn.release()
        if self._query and self.is_running:
            self._query.stop()
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def raise_failure(self) -> None:
        """The reason of a run that ended by itself, if it failed."""
        if self.failed:
            assert self.failure is not None  # noqa: S101
            raise reason(self._settings, self.stream, self.failure)

    def _start_offsets(self) -> Offsets:
        """Spark wants every partition named."""
        landing = self._landing
        self._read_to, self.gaps = next_offsets(
            self._settings,
            self.stream,
            landing.table,
            landing.position.offsets,
            self._accept_gaps,
        )
        if self.gaps:
            landing.position = read_position(landing.load_table())
        return self._read_to

    def _land(self, batch_rows: "DataFrame", batch: int) -> None:
        """One micro-batch. It runs on Spark's callback thread."""
        with self._turn:
            if self._stopping:  # what is not in the table is read again by the next run
                return
            try:
                if self.failure is not None:
                    raise self.failure
                batch_end = _batch_end(self._checkpoint, batch)
                end = _merged(self._landing.position.offsets, batch_end)
                if end == self._landing.position.offsets:  # the topics have nothing new
                    return
                check_topics(self._settings, self._landing.table, batch_end)
                self.progress.read += _distance(self._read_to, batch_end)
                self._read_to = batch_end
                if self._landing.by_registry:
                    batch_rows = self._landing.decode(batch_rows)
                self._landing.commit(batch_rows, end)
            except BaseException as error:
                self.failure = error
                raise


def _new_checkpoint(folder: Path) -> Path:
    """A checkpoint for this run alone; those of processes that are gone are cleared away."""
    for old in folder.glob("*-*"):
        if not psutil.pid_exists(int(old.name.split("-")[0])):
            shutil.rmtree(old, ignore_errors=True)
    checkpoint = folder / f"{os.getpid()}-{uuid.uuid4().hex}"
    checkpoint.mkdir(parents=True)
    return checkpoint


def _batch_end(checkpoint: Path, batch: int) -> Offsets:
    """The end offsets of a batch; Spark writes them down before the batch runs."""
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    end: Offsets = json.loads(lines[-1])
    return end


def _merged(known: Offsets, end: Offsets) -> Offsets:
    """A topic that is not read now keeps its offsets: it may come back."""
    return known | {topic: known.get(topic, {}) | offsets for topic, offsets in end.items()}


def _distance(start: Offsets, end: Offsets) -> int:
    return sum(
        offset - start.get(topic, {}).get(one, 0)
        for topic, known in end.items()
        for one, offset in known.items()
    )


class Jobs:
    """The Spark jobs of one commit, under one name in Spark's UI."""

    def __init__(self, spark: "SparkSession", name: str) -> None:
        self._context = spark.sparkContext
        self._group = uuid.uuid4().hex
        self._context.setJobGroup(self._group, name)

    def seconds_since_last(self) -> float:
        """How long ago the last of them ended: Iceberg's commit began then."""
        store = self._context._jsc.sc().statusStore()
        ended = [time.time()]
        for number in self._context.statusTracker().getJobIdsForGroup(self._group):
            with suppress(Py4JError):  # Spark's store runs a little behind, and forgets old jobs
                ended.append(store.job(number).completionTime().get().getTime() / 1000)
        return max(time.time() - max(ended[1:], default=ended[0]), 0.0)


def reason(settings: Settings, stream: Stream, error: BaseException) -> HeadwaterError:
    """What a failure means to a user."""
    if isinstance(error, HeadwaterError):
        return error
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
    hint = f"start it again when that is mended: it goes on from the table. {log}"
    return HeadwaterError(what, hint)


def _innermost(error: BaseException) -> str:
    """The innermost cause in one line: what Spark wraps around it says nothing to a user."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes or lines or [type(error).__name__])[-1 if causes else 0][:300]
