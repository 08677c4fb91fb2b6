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
from typing import TYPE_CHECKING

import psutil
from py4j.protocol import Py4JError

from headwater.catalog import open_catalog
from headwater.errors import HeadwaterError
from headwater.kafka import lag, require_broker, topic_partitions
from headwater.settings import Settings
from ingestion.bronze import check_rules, ensure_table
from ingestion.decode import ERROR_TYPES, decode
from ingestion.ledger import Offsets, Position, commit, own_position, read_position
from ingestion.stream import Stream

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EARLIEST = -2  # Spark's number for "from the oldest record there is"
FINISH_BATCH_SECONDS = 120


@dataclass
class Progress:
    """What one run has done so far."""

    rows: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    commits: int = 0
    last_commit: datetime | None = None
    last_rows: int = 0
    last_seconds: float = 0.0


class Ingestion:
    """One run of one stream, from the position in its table onwards."""

    def __init__(self, spark: "SparkSession", settings: Settings, stream: Stream) -> None:
        self.stream = stream
        self.progress = Progress()
        self.failure: BaseException | None = None
        self._settings = settings
        self._spark = spark
        self._batch_done = threading.Lock()
        self._stopping = False
        self._checkpoint = _new_checkpoint(settings.home / "checkpoints" / stream.name)
        self._position = self._prepare()
        self._query: StreamingQuery | None = None

    def start(self, once: bool) -> None:
        """`once` reads what is there now and ends; otherwise the run goes on until `stop`."""
        reader = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._settings.bootstrap_servers)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", self.stream.topic)
            .option("startingOffsets", json.dumps(self._starting_offsets()))
            .option("maxOffsetsPerTrigger", self.stream.batch.max_records)
        )
        writer = (
            reader.load()
            .writeStream.queryName(self.stream.name)
            .option("checkpointLocation", f"file://{self._checkpoint}")
            .foreachBatch(self._land)
        )
        self._query = writer.trigger(availableNow=True).start() if once else writer.start()

    @property
    def is_running(self) -> bool:
        try:
            return self._query is not None and self._query.isActive
        except (Py4JError, OSError) as error:  # the JVM is gone
            if self.failure is None:
                self.failure = HeadwaterError(
                    f"Spark's process ended while it ran stream {self.stream.name}: {error}",
                    "start it again: it goes on from the table. If memory ran out, raise "
                    "HEADWATER_SPARK_DRIVER_MEMORY or lower batch.max_records in the stream file; "
                    f"Spark's log: {self._settings.logs / 'ingest.log'}",
                )
            return False

    @property
    def failed(self) -> bool:
        if self.failure is None and self._query is not None:
            with suppress(Py4JError, OSError):  # the JVM may be gone; is_running tells
                self.failure = self._query.exception()
        return self.failure is not None

    @property
    def lag(self) -> int | None:
        """Records in the topic that are not in the table yet; None while no broker answers."""
        return lag(self._settings, self.stream.topic, self._position.offsets)

    def stop(self) -> None:
        """Let the batch under way commit, then end."""
        self._stopping = True
        if self._batch_done.acquire(timeout=FINISH_BATCH_SECONDS):
            self._batch_done.release()
        if self._query and self.is_running and not self.failed:
            self._query.stop()
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def raise_failure(self) -> None:
        """The reason of a run that ended by itself, if it failed."""
        if not self.failed:
            return
        assert self.failure is not None  # noqa: S101
        if isinstance(self.failure, HeadwaterError):
            raise self.failure
        raise HeadwaterError(
            f"stream {self.stream.name} failed: {_reason(self.failure)}",
            "start it again when that is mended: it goes on from the table. "
            f"Spark's log: {self._settings.logs / 'ingest.log'}",
        ) from self.failure

    def _prepare(self) -> Position:
        require_broker(self._settings)
        if not topic_partitions(self._settings, self.stream.topic):
            raise HeadwaterError(
                f"topic {self.stream.topic} of stream {self.stream.name} does not exist at "
                f"{self._settings.bootstrap_servers}",
                f"create it, or make some records: headwater produce {self.stream.name}",
            )
        check_rules(self._spark, self.stream)
        ensure_table(self._spark, self._settings, self.stream)
        return read_position(self._load_table())

    def _load_table(self) -> "Table":
        return open_catalog(self._settings).load_table(self.stream.table)

    def _starting_offsets(self) -> Offsets:
        """Spark wants every partition of the topic named; one without rows starts at its oldest."""
        topic = self.stream.topic
        known = self._position.offsets.get(topic, {})
        partitions = topic_partitions(self._settings, topic)
        return {topic: {str(p): known.get(str(p), EARLIEST) for p in partitions}}

    def _land(self, records: "DataFrame", batch: int) -> None:
        """One micro-batch. It runs on Spark's callback thread."""
        with self._batch_done:
            if self._stopping:  # what is not in the table is read again by the next run
                return
            try:
                self._commit(records, batch)
            except BaseException as error:
                self.failure = error
                raise

    def _commit(self, records: "DataFrame", batch: int) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        began = time.monotonic()
        end = _batch_end(self._checkpoint, batch)
        if end == self._position.offsets:  # the topic has nothing new
            return
        counts = Observation()
        rows = decode(records, self.stream).observe(
            counts,
            F.count(F.lit(1)).alias("rows"),
            *(F.count_if(F.col("_error_type") == kind).alias(kind) for kind in ERROR_TYPES),
        )
        stamp = commit(rows, self.stream.table, self._position, end)
        self._position = own_position(self._load_table(), stamp, end)
        counted = counts.get
        done = self.progress
        done.last_rows = counted.pop("rows")
        done.rows += done.last_rows
        done.errors.update(counted)
        done.commits += 1
        done.last_commit = stamp
        done.last_seconds = time.monotonic() - began


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


def _reason(error: BaseException) -> str:
    """The innermost cause in one line: what Spark wraps around it says nothing to a user."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes or lines or [type(error).__name__])[-1 if causes else 0][:300]
