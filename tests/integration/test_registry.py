"""Avro in schema-registry framing, from a real broker, with schemas from a real HTTP server."""

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession

from headwater.rows.replay import replay
from ingestion.errors import HeadwaterError
from ingestion.registry import Registry
from ingestion.run import Ingestion
from ingestion.settings import Settings
from ingestion.stream import Stream, load_stream
from tests.integration.outside import assert_table_is_topic, land, read_table, send, wait_for
from tests.integration.registry_server import RegistryServer, registry_server
from tests.integration.test_formats import AVRO, AVRO_COLUMNS, NEWER, avro, column, framed


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


@pytest.fixture
def with_registry(settings: Settings, server: RegistryServer) -> Settings:
    return settings.model_copy(update={"schema_registry_url": server.url})


@pytest.fixture
def stream(tmp_path: Path, spark: SparkSession) -> Iterator[Stream]:
    name = f"registry_{uuid4().hex[:8]}"
    columns = AVRO_COLUMNS + column("unit", "string", "optional: true")
    indented = "\n".join("  " + line for line in columns.strip().splitlines())
    file = tmp_path / f"{name}.yml"
    file.write_text(
        f"description: Made.\ntopic: {name}\nvalue: {{format: avro, schema: registry}}\n"
        f"batch: {{min_records: 1}}\ncolumns:\n{indented}\n"
    )
    yield load_stream(file)
    spark.sql(f"drop table if exists lake.bronze.{name} purge")


def test_a_new_schema_id_is_picked_up_while_the_stream_runs(
    spark: SparkSession, with_registry: Settings, server: RegistryServer, stream: Stream
) -> None:
    server.register(1, AVRO)
    topic = stream.topics[0]
    send(with_registry, topic, *[framed(1, avro())] * 20)
    run = Ingestion(spark, with_registry, stream)
    run.start(once=False)
    try:
        wait_for(lambda: run.progress.rows == 20)
        server.register(2, NEWER)
        send(with_registry, topic, framed(1, avro()), framed(2, avro(NEWER, unit="C")))
        wait_for(lambda: run.progress.rows == 22)
    finally:
        run.stop()
    run.raise_failure()
    assert_table_is_topic(with_registry, stream.table, topic)
    rows = read_table(with_registry, stream.table, "unit", "_error_type").to_pylist()
    assert [row["unit"] for row in rows].count("C") == 1
    assert {row["_error_type"] for row in rows} == {None}
    assert run.progress.undeclared == 0
    assert server.asked.count("/schemas/ids/1") == 1  # what an id names never changes


def test_a_schema_that_comes_late_is_mended_by_a_replay(
    spark: SparkSession, with_registry: Settings, server: RegistryServer, stream: Stream
) -> None:
    server.register(1, AVRO)
    send(with_registry, stream.topics[0], framed(1, avro()), framed(7, avro(NEWER, unit="C")))
    run = land(spark, with_registry, stream)
    assert run.progress.errors["deserialization_error"] == 1
    server.register(7, NEWER)
    assert replay(spark, with_registry, stream, [], None).resolved == 1


def test_a_registry_that_is_away_stops_the_stream_and_loses_nothing(
    spark: SparkSession, with_registry: Settings, server: RegistryServer, stream: Stream
) -> None:
    server.register(1, AVRO)
    server.broken = True
    send(with_registry, stream.topics[0], framed(1, avro()))
    with pytest.raises(HeadwaterError) as caught:
        land(spark, with_registry, stream)
    assert server.url in caught.value.message
    assert "HEADWATER_SCHEMA_REGISTRY_URL" in caught.value.hint
    server.broken = False
    assert land(spark, with_registry, stream).progress.rows == 1


def test_references_are_set_in_where_they_are_first_named(
    with_registry: Settings, server: RegistryServer
) -> None:
    money = {"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]}
    order = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "net", "type": "Money"}, {"name": "tax", "type": ["null", "Money"]}],
    }
    reference = {"name": "Money", "subject": "money", "version": 3}
    server.register(5, order, references=[reference])
    server.subjects["money", 3] = {"schema": json.dumps(money)}
    schema = json.loads(Registry(with_registry).schemas([5])[5] or "")
    assert [field["type"] for field in schema["fields"]] == [money, ["null", "Money"]]


def test_a_password_is_sent_and_a_wrong_one_is_never_shown(settings: Settings) -> None:
    with registry_server(login="me:hidden") as server:
        server.register(1, AVRO)
        login = {"schema_registry_url": server.url, "schema_registry_username": "me"}
        right = settings.model_copy(
            update=login | {"schema_registry_password": SecretStr("hidden")}
        )
        assert Registry(right).schemas([1, 2])[2] is None
        wrong = settings.model_copy(update=login | {"schema_registry_password": SecretStr("bad!")})
        with pytest.raises(HeadwaterError) as caught:
            Registry(wrong).schemas([1])
        assert "bad!" not in caught.value.message + caught.value.hint + repr(wrong)
        assert "401" in caught.value.message


def test_without_an_address_the_setting_is_named(settings: Settings) -> None:
    with pytest.raises(HeadwaterError) as caught:
        Registry(settings)
    assert "HEADWATER_SCHEMA_REGISTRY_URL" in caught.value.hint
