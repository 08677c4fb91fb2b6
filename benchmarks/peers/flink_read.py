"""A job of flink.py: what is in a table of Headwater? It runs in PyFlink's own Python."""

import json
import sys
from typing import Any

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment


def main(job: dict[str, Any]) -> None:
    configuration = Configuration()
    configuration.set_string("pipeline.jars", ";".join(f"file://{jar}" for jar in job["jars"]))
    settings = EnvironmentSettings.new_instance().in_batch_mode()
    tables = TableEnvironment.create(settings.with_configuration(configuration).build())
    tables.execute_sql(f"""
        CREATE CATALOG lake WITH (
            'type' = 'iceberg', 'catalog-impl' = 'org.apache.iceberg.jdbc.JdbcCatalog',
            'uri' = 'jdbc:sqlite:file:{job["catalog"]}', 'jdbc.schema-version' = 'V1',
            'warehouse' = '{job["warehouse"]}'
        )""")
    with tables.execute_sql(job["query"]).collect() as rows:
        print(json.dumps([str(value) for value in next(rows)]))  # noqa: T201 - flink.py reads it


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
