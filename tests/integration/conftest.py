from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater.settings import Settings
from headwater.spark import spark_session


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
