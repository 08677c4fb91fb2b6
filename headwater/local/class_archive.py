"""Quick starts of ingestion: the JVM's classes, parsed and checked once, in a file of their own.

Java calls it class data sharing. A start of Spark takes about half the CPU with it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from headwater.console import progress_bar
from ingestion.errors import HeadwaterError
from ingestion.settings import Settings, child_environment, settings
from ingestion.spark import spark_session, stop_session
from ingestion.spark_home import CLASS_ARCHIVE, has_class_archive

MOST_SECONDS = 300


def ensure_class_archive() -> None:
    """Make the archive unless it is there: run Spark once, in a process of its own."""
    if has_class_archive():
        return
    command = [sys.executable, "-m", "headwater.local.class_archive"]
    with tempfile.TemporaryDirectory() as home, progress_bar() as bar:
        task = bar.add_task("Preparing quick starts of Spark, once", total=1)
        environment = child_environment(HEADWATER_HOME=home, HEADWATER_SPARK_MASTER="local[1]")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        bar.advance(task)
    if done.returncode != 0 or not has_class_archive():
        said = (done.stderr or done.stdout).strip().splitlines() or ["it gave no reason"]
        raise HeadwaterError(
            f"Spark could not be run to prepare {CLASS_ARCHIVE}: {said[-1]}",
            "run `headwater doctor`; check that the folder is writable and has 500 MB of space",
        )


def make_class_archive(chosen: Settings) -> None:
    """Run a stream as ingestion does, and let Java keep the classes that this took."""
    CLASS_ARCHIVE.parent.mkdir(exist_ok=True)
    draft = CLASS_ARCHIVE.with_name(f"{os.getpid()}.jsa")
    session = spark_session(chosen, "ingest", java=f"-XX:ArchiveClassesAtExit={draft}")
    session.dataSource.register(_OneBatch)
    query = (
        session.readStream.format(_OneBatch.name())
        .load()
        .writeStream.foreachBatch(_collect)
        .option("checkpointLocation", f"file://{chosen.home}/checkpoint")
        .start()
    )
    query.processAllAvailable()
    query.stop()
    stop_session(session, MOST_SECONDS)  # Java writes the archive now
    draft.replace(CLASS_ARCHIVE)


def _collect(batch: DataFrame, _number: int) -> None:
    batch.collect()


class _OneBatch(DataSource):
    """A stream like ingestion's, with one row and without Kafka."""

    @classmethod
    def name(cls) -> str:
        return "one_batch"

    def schema(self) -> str:
        return "landed binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        return _OneRow()


class _OneRow(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"row": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        return {"row": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(start["row"], end["row"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:  # noqa: ARG002
        yield (b"",)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to keep."""


if __name__ == "__main__":
    make_class_archive(settings())
