"""Rows that have landed, changed in one atomic commit that the ledger can trust.

The work is done on a branch of the table and becomes visible by one fast-forward, which Iceberg
refuses when anyone has committed to the table since.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING

from ingestion.errors import HeadwaterError
from ingestion.ledger import COORDINATES, moved
from ingestion.spark import CATALOG, quoted
from ingestion.stream import Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Merge = Callable[["DataFrame", datetime, dict[str, str]], None]


def branch_of(purpose: str) -> str:
    return f"headwater_{purpose}"


@contextmanager
def amend(spark: "SparkSession", stream: Stream, seen: int, purpose: str) -> Iterator[Merge]:
    """A branch on top of the snapshot `seen`; what the block does to it is published at its end.

    Yields a function that replaces rows by their coordinates: (new rows, the oldest stamp of the
    rows as they are now, what the summary of the commit shall say).
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    table, branch = quoted(stream.table), branch_of(purpose)
    spark.sql(f"alter table {table} drop branch if exists {branch}")
    spark.sql(f"alter table {table} create branch {branch} as of version {seen}")

    def merge(changes: "DataFrame", oldest: datetime, marks: dict[str, str]) -> None:
        changes.createOrReplaceTempView("headwater_changes")
        settings = {
            f"spark.sql.iceberg.snapshot-property.{key}": text for key, text in marks.items()
        }
        for key, text in settings.items():
            spark.conf.set(key, text)
        try:
            same = " and ".join(f"old.{name} = new.{name}" for name in COORDINATES)
            spark.sql(
                f"merge into {table}.branch_{branch} as old using headwater_changes as new "
                f"on {same} and old._ingested_at >= timestamp '{oldest.isoformat()}' "
                "when matched then update set *"
            )
        finally:
            for key in settings:
                spark.conf.unset(key)

    try:
        yield merge
        try:
            spark.sql(f"call {CATALOG}.system.fast_forward('{stream.table}', 'main', '{branch}')")
        except (Py4JJavaError, PySparkException) as error:
            if "not an ancestor" in str(error):
                raise moved(stream.table, f"the {purpose} changed nothing") from error
            raise HeadwaterError(
                f"the {purpose} of {stream.table} was not published: {str(error).splitlines()[0]}",
                "nothing was changed; try again",
            ) from error
    finally:
        with suppress(Py4JJavaError, PySparkException):
            spark.sql(f"alter table {table} drop branch if exists {branch}")
