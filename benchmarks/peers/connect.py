"""The Iceberg sink of Kafka Connect, in a standalone worker.

Of each record it keeps the typed columns and where it came from, not its bytes. It reads JSON only:
its worker has no converter for Avro without a schema registry. A connector never ends by itself, so
a run is over when the table has all records.
"""

import os
import uuid
from pathlib import Path

import requests
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from benchmarks.measure import LONGEST_SECONDS, Watched
from benchmarks.peers.case import PEER_HEAP, Case, Landed, free_port
from benchmarks.peers.install import peer_jars
from headwater.local.java import find_java
from ingestion.kafka import ensure_topic
from ingestion.settings import LOOPBACK, Settings

NAME = "Kafka Connect 4.1.1, Iceberg 1.12.0"
TABLE = "db.stocks"
SCHEMA = Schema(
    NestedField(1, "event_time", TimestampType()),
    NestedField(2, "ticker", StringType()),
    NestedField(3, "price", DoubleType()),
    NestedField(4, "_kafka_metadata_topic", StringType()),
    NestedField(5, "_kafka_metadata_partition", IntegerType()),
    NestedField(6, "_kafka_metadata_offset", LongType()),
    NestedField(7, "_kafka_metadata_timestamp", TimestamptzType()),
)
# Those with which Kafka's own scripts start a worker.
JVM = (
    "-server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 "
    "-XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true"
)


def install(settings: Settings) -> None:
    for name in ("connect-worker", "connect-plugin"):
        peer_jars(settings, "connect", name)


def land(case: Case, folder: Path) -> Landed:
    catalog = make_table(folder)
    name = f"benchmark-{uuid.uuid4().hex[:8]}"  # a known name would go on from its offsets
    ensure_topic(case.broker, f"{name}-control", partitions=1)
    port = free_port()
    files = [
        write_properties(folder / "worker.properties", worker(case, folder, port)),
        write_properties(folder / "connector.properties", connector(case, folder, name)),
    ]
    log4j = Path(__file__).with_name("log4j2.properties")
    command = [str(find_java().command), f"-Xms256m -Xmx{PEER_HEAP} {JVM}"]
    command = [*" ".join(command).split(), f"-Dlog4j2.configurationFile={log4j}"]
    command += ["-cp", f"{peer_jars(case.broker, 'connect', 'connect-worker')}/*"]
    command += ["org.apache.kafka.connect.cli.ConnectStandalone", *files]
    with Watched(command, folder / "connect.log", folder=folder) as watched:
        watched.wait_until(lambda: is_running(port, name), timeout=120)
        start_up = watched.used
        watched.wait_until(lambda: rows(catalog) >= case.records, timeout=LONGEST_SECONDS)
        total = watched.used
    table = catalog.load_table(TABLE)
    columns = ("_kafka_metadata_partition", "_kafka_metadata_offset")
    return Landed(table, *columns, start_up, total, watched.samples)


def make_table(folder: Path) -> Catalog:
    uri = f"sqlite:///{folder}/catalog.db?timeout=30"
    catalog = SqlCatalog("iceberg", uri=uri, warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("db")
    properties = {"format-version": "2", "write.parquet.compression-codec": "zstd"}
    catalog.create_table(TABLE, SCHEMA, properties=properties)
    return catalog


def worker(case: Case, folder: Path, port: int) -> dict[str, str]:
    plugins = folder / "plugins"
    plugins.mkdir()
    (plugins / "iceberg").symlink_to(peer_jars(case.broker, "connect", "connect-plugin"))
    return {
        "bootstrap.servers": case.broker.bootstrap_servers,
        "listeners": f"http://{LOOPBACK}:{port}",
        "plugin.path": str(plugins),
        "plugin.discovery": "service_load",
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "1000",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }


def connector(case: Case, folder: Path, name: str) -> dict[str, str]:
    return {
        "name": name,
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": str(os.cpu_count()),
        "topics": case.topic,
        "iceberg.tables": TABLE,
        "iceberg.control.topic": f"{name}-control",
        "iceberg.control.commit.interval-ms": "10000",  # as often as Headwater commits
        "iceberg.catalog": "iceberg",
        "iceberg.catalog.type": "jdbc",
        "iceberg.catalog.uri": f"jdbc:sqlite:file:{folder}/catalog.db?busy_timeout=30000",
        "iceberg.catalog.warehouse": f"file://{folder}/warehouse",
        "transforms": "meta",
        "transforms.meta.type": "org.apache.iceberg.connect.transforms.KafkaMetadataTransform",
    }


def is_running(port: int, name: str) -> bool:
    """Whether the connector and each of its tasks run."""
    try:
        url = f"http://{LOOPBACK}:{port}/connectors/{name}/status"
        status = requests.get(url, timeout=5).json()
        states = [part["state"] for part in (status["connector"], *status["tasks"])]
    except (requests.RequestException, KeyError):
        return False
    return len(states) > 1 and set(states) == {"RUNNING"}


def rows(catalog: Catalog) -> int:
    snapshot = catalog.load_table(TABLE).current_snapshot()
    return int((snapshot.summary["total-records"] or 0) if snapshot and snapshot.summary else 0)


def write_properties(file: Path, properties: dict[str, str]) -> str:
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return str(file)
