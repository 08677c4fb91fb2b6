"""Failed rows, judged anew by today's stream file, in one atomic commit.

The work is done on a branch of the table and becomes visible by one fast-forward, which Iceberg
refuses when anyone has committed to the table since.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from headwater.errors import HeadwaterError
from headwater.settings import Settings
from headwater.spark import CATALOG, quoted
from ingestion.bronze import HEADERS
from ingestion.decode import HEADERS_TYPE, KAFKA_COLUMNS, UNDECLARED
from ingestion.ingest import Landing
from ingestion.ledger import COORDINATES, OFFSETS, STAMP, moved, next_stamp
from ingestion.stream import Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BRANCH = "headwater_replay"


@dataclass(frozen=True)
class Replayed:
    failed: int  # rows that were judged anew
    resolved: int  # of these good now
    changed: int  # of these failed for another reason than before


def replay(
    spark: "SparkSession",
    settings: Settings,
    stream: Stream,
    types: list[str],
    since: datetime | None,
) -> Replayed:
    """Resolve what is good now, and keep the newest reason of what is not."""
    from pyspark.sql import functions as F

    landing = Landing(spark, settings, stream)
    seen = landing.load_table().current_snapshot()
    if seen is None:
        return Replayed(0, 0, 0)
    table = quoted(stream.table)
    failed = (
        spark.read.option("snapshot-id", seen.snapshot_id)
        .table(table)
        .where("_error_type is not null and _resolved_at is null")
    )
    if types:
        failed = failed.where(F.col("_error_type").isin(types))
    if since is not None:
        failed = failed.where(F.col("_ingested_at") >= F.lit(since))
    stamp = next_stamp(landing.position.newest_stamp)
    judged = _judge(landing, failed, stamp).persist()
    try:
        counts = judged.agg(
            F.count(F.lit(1)),
            F.count_if(F.col("_resolved_at").isNotNull()),
            F.count_if(F.col("_is_changed")),
            F.min("_old_ingested_at"),
        ).first()
        assert counts is not None  # noqa: S101
        total, resolved, changed, oldest = counts
        changes = judged.where("_resolved_at is not null or _is_changed")
        if resolved or changed:
            landing.forward(judged.where("_resolved_at is not null"))
            offsets = json.dumps(landing.position.offsets)
            marks = {OFFSETS: offsets, STAMP: stamp.isoformat()}
            columns = [field.name for field in spark.table(table).schema]
            _publish(spark, stream, changes.select(*columns), seen.snapshot_id, oldest, marks)
        return Replayed(total, resolved, changed)
    finally:
        judged.unpersist()


def _judge(landing: Landing, failed: "DataFrame", stamp: datetime) -> "DataFrame":
    """The failed rows as they would land today, beside their old error."""
    from pyspark.sql import functions as F

    if HEADERS.name not in failed.columns:  # the stream had none when these rows landed
        failed = failed.withColumn(HEADERS.name, F.lit(None).cast(HEADERS_TYPE))
    names = [*KAFKA_COLUMNS, "headers"]
    records = failed.select(*(F.col(f"_kafka_{name}").alias(name) for name in names))
    old = failed.select(
        *COORDINATES,
        F.col("_error_type").alias("_old_type"),
        F.col("_error_message").alias("_old_message"),
        F.col("_ingested_at").alias("_old_ingested_at"),
    )
    judged = landing.decode(records).drop(UNDECLARED).join(old, list(COORDINATES))
    is_good = F.col("_error_type").isNull()
    reason, old_reason = (
        F.struct("_error_type", "_error_message"),
        F.struct("_old_type", "_old_message"),
    )
    return judged.withColumns(
        {
            "_resolved_at": F.when(is_good, F.lit(stamp)),
            "_is_changed": ~is_good & (reason != old_reason),
            "_ingested_at": F.lit(stamp),
            # What was wrong stays on record.
            "_error_type": F.coalesce("_error_type", "_old_type"),
            "_error_message": F.when(is_good, F.col("_old_message")).otherwise(
                F.col("_error_message")
            ),
        }
    )


def _publish(
    spark: "SparkSession",
    stream: Stream,
    changes: "DataFrame",
    seen: int,
    oldest: datetime,
    marks: dict[str, str],
) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    table = quoted(stream.table)
    spark.sql(f"alter table {table} drop branch if exists {BRANCH}")
    spark.sql(f"alter table {table} create branch {BRANCH} as of version {seen}")
    try:
        changes.createOrReplaceTempView("headwater_changes")
        settings = {
            f"spark.sql.iceberg.snapshot-property.{key}": text for key, text in marks.items()
        }
        for key, text in settings.items():
            spark.conf.set(key, text)
        try:
            same = " and ".join(f"old.{name} = new.{name}" for name in COORDINATES)
            spark.sql(
                f"merge into {table}.branch_{BRANCH} as old using headwater_changes as new "
                f"on {same} and old._ingested_at >= timestamp '{oldest.isoformat()}' "
                "when matched then update set *"
            )
        finally:
            for key in settings:
                spark.conf.unset(key)
        try:
            spark.sql(f"call {CATALOG}.system.fast_forward('{stream.table}', 'main', '{BRANCH}')")
        except (Py4JJavaError, PySparkException) as error:
            if "not an ancestor" in str(error):
                raise moved(stream.table, "the replay changed nothing") from error
            raise HeadwaterError(
                f"the replay of {stream.table} was not published: {str(error).splitlines()[0]}",
                "nothing was changed; try again",
            ) from error
    finally:
        with suppress(Py4JJavaError, PySparkException):
            spark.sql(f"alter table {table} drop branch if exists {BRANCH}")
