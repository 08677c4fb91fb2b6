"""The job of flink.py. It runs in PyFlink's own Python: nothing of this project is there."""

import json
import sys
from typing import Any

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment
from pyflink.table.expressions import col

FORMATS = {
    "stocks": "'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601'",
    "health": "'format' = 'avro'",
}
# Avro bytes name no fields: these are those of the writer's schema, in its order.
COLUMNS = {
    "stocks": {
        "event_time": "TIMESTAMP(6)",
        "ticker": "STRING",
        "price": "DOUBLE",
    },
    "health": {
        "sample_id": "STRING NOT NULL",
        "user_id": "STRING NOT NULL",
        "device_id": "STRING NOT NULL",
        "data_type": "STRING NOT NULL",
        "value": "DOUBLE NOT NULL",
        "unit": "STRING",
        "start_time": "TIMESTAMP(3) NOT NULL",
        "end_time": "TIMESTAMP(3) NOT NULL",
        "source_app": "STRING",
        "metadata": "MAP<STRING NOT NULL, STRING NOT NULL> NOT NULL",
    },
}


def main(job: dict[str, Any]) -> None:
    stream, folder = job["stream"], job["folder"]
    tables = table_environment(job)
    columns = COLUMNS[stream]
    source = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    target = ", ".join(
        f"`{name}` {kind.removesuffix(' NOT NULL').replace('(3)', '(6)')}"
        for name, kind in columns.items()
    )
    tables.execute_sql(f"""
        CREATE TEMPORARY TABLE records (
            {source},
            kafka_topic STRING METADATA FROM 'topic' VIRTUAL,
            kafka_partition INT METADATA FROM 'partition' VIRTUAL,
            kafka_offset BIGINT METADATA FROM 'offset' VIRTUAL,
            kafka_timestamp TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL
        ) WITH (
            'connector' = 'kafka', 'topic' = '{job["topic"]}',
            'properties.bootstrap.servers' = '{job["broker"]}',
            'properties.group.id' = 'benchmark', 'scan.startup.mode' = 'earliest-offset',
            'scan.bounded.mode' = 'latest-offset', {FORMATS[stream]}
        )""")
    tables.execute_sql(f"""
        CREATE CATALOG lake WITH (
            'type' = 'iceberg', 'catalog-type' = 'hadoop',
            'warehouse' = 'file://{folder}/warehouse'
        )""")
    tables.execute_sql("CREATE DATABASE lake.db")
    tables.execute_sql(f"""
        CREATE TABLE lake.db.{stream} (
            kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT,
            kafka_timestamp TIMESTAMP_LTZ(6), {target}
        ) WITH (
            'format-version' = '2', 'write.format.default' = 'parquet',
            'write.parquet.compression-codec' = 'zstd', 'write.distribution-mode' = 'none'
        )""")
    names = ["kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", *columns]
    records = tables.from_path("default_catalog.default_database.records")
    result = records.select(*map(col, names)).execute_insert(f"lake.db.{stream}")
    print("The job is submitted", flush=True)  # noqa: T201 - flink.py waits for it
    result.wait()


def table_environment(job: dict[str, Any]) -> TableEnvironment:
    configuration = Configuration()
    parallelism, folder = str(job["parallelism"]), job["folder"]
    for key, value in {
        "parallelism.default": parallelism,
        "taskmanager.numberOfTaskSlots": parallelism,
        "execution.checkpointing.interval": "10s",  # as often as Headwater commits
        "execution.checkpointing.dir": f"file://{folder}/checkpoints",
        "io.tmp.dirs": folder,
        "pipeline.jars": ";".join(f"file://{jar}" for jar in job["jars"]),
    }.items():
        configuration.set_string(key, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode()
    return TableEnvironment.create(settings.with_configuration(configuration).build())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
