"""Failed rows, judged anew by today's stream file, in one atomic commit."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from headwater.rows.amend import amend
from ingestion.decode import HEADERS_TYPE, KAFKA_COLUMNS, UNDECLARED
from ingestion.errors import ERASED
from ingestion.ledger import COORDINATES, OFFSETS, STAMP, next_stamp
from ingestion.run import Landing
from ingestion.settings import Settings
from ingestion.spark import quoted
from ingestion.stream import Stream
from ingestion.table import HEADERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
        .where(f"_error_type is not null and _error_type <> '{ERASED}' and _resolved_at is null")
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
            with amend(spark, stream, seen.snapshot_id, "replay") as merge:
                merge(changes.select(*columns), oldest, marks)
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
