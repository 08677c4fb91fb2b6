from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from headwater.settings import Settings
from headwater.spark import spark_session
from ingestion.stream import Stream, load_streams
from tests.integration.lab import Lab


@pytest.fixture(scope="session")
def settings(stack: dict[str, str]) -> Settings:
    return Settings(
        home=Path(stack["HEADWATER_HOME"]),
        kafka_port=int(stack["HEADWATER_KAFKA_PORT"]),
        thrift_port=int(stack["HEADWATER_THRIFT_PORT"]),
    )


@pytest.fixture(scope="session")
def spark(settings: Settings) -> Iterator[SparkSession]:
    """The Spark session that ingestion would have, in this process."""
    session = spark_session(settings, "ingest")
    yield session
    session.stop()


def new_stream() -> Stream:
    """A stream of stock prices with a topic and a table of its own."""
    name = f"stream_{uuid4().hex[:8]}"
    return load_streams(["stocks"])[0].model_copy(
        update={"name": name, "topics": [name], "forward": None}
    )


@pytest.fixture
def stream(spark: SparkSession) -> Iterator[Stream]:
    """A stream of its own for each test."""
    made = new_stream()
    yield made
    spark.sql(f"drop table if exists lake.{made.table} purge")


@pytest.fixture
def lab(stack: dict[str, str], tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Lab]:
    made = Lab(tmp_path, stack)
    made.create(pytestconfig.getoption("as_shipped"))
    yield made
    made.drop()
