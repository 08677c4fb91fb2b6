from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from headwater.local.jars import classpath, ensure_jars, spark_sets
from headwater.local.thrift import iceberg_properties
from ingestion.settings import Settings
from ingestion.spark import spark_session, stop_session
from ingestion.stream import Stream
from ingestion.stream_file import load_streams
from tests.integration.lab import Lab
from tests.integration.outside import drop, kill_tree, started


@pytest.fixture(scope="session")
def settings(stack: dict[str, str]) -> Settings:
    return Settings(
        home=Path(stack["HEADWATER_HOME"]),
        kafka_port=int(stack["HEADWATER_KAFKA_PORT"]),
        thrift_port=int(stack["HEADWATER_THRIFT_PORT"]),
    )


@pytest.fixture(scope="session")
def spark(settings: Settings) -> Iterator[SparkSession]:
    """The Spark session that ingestion would have, in this process, and SQL on the tables."""
    jars = classpath(ensure_jars(settings, spark_sets(settings)))
    session = spark_session(settings, "ingest", iceberg_properties(settings, jars))
    yield session
    stop_session(session)


@pytest.fixture(autouse=True)
def _no_ingestion_is_left_running() -> Iterator[None]:
    yield
    for ingest in started:
        if ingest.poll() is None:
            kill_tree(ingest)
    started.clear()


def new_stream() -> Stream:
    """A stream of stock prices with a topic and a table of its own."""
    name = f"stream_{uuid4().hex[:8]}"
    return load_streams(["stocks"])[0].model_copy(
        update={"name": name, "topics": [name], "forward": None}
    )


@pytest.fixture
def stream(settings: Settings) -> Iterator[Stream]:
    """A stream of its own for each test."""
    made = new_stream()
    yield made
    drop(settings, made.table)


@pytest.fixture
def lab(stack: dict[str, str], tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Lab]:
    made = Lab(tmp_path, stack)
    made.create(pytestconfig.getoption("as_shipped"))
    yield made
    made.drop()
