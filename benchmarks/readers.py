"""Does another engine read what Headwater has written? Part of `make bench`.

Spark and pyiceberg read the tables in every test. Here Flink does, through its own Iceberg library.
"""

import tempfile
from pathlib import Path

import click
import duckdb

from benchmarks.measure import watch_headwater
from benchmarks.peers import flink
from benchmarks.peers.case import free_port
from benchmarks.peers.headwater import own_settings
from demo.generators import GENERATORS
from headwater.console import console, table
from headwater.local.services import borrowed_stack, wait_ready
from ingestion.catalog import open_catalog
from ingestion.settings import Settings

STREAM = "stocks"
FIGURES = (
    "count(*)",
    "count(_error_type)",
    "count(_kafka_value)",
    "sum(_kafka_offset)",
    "sum(price)",
    "count(distinct ticker)",
)


@click.command()
@click.option("--records", default=20_000, show_default=True)
def main(records: int) -> None:
    """Land some records, good and bad, and compare what Flink and pyiceberg find."""
    with tempfile.TemporaryDirectory() as scratch:
        broker = Settings(home=Path(scratch) / "broker", kafka_port=free_port())
        flink.install(broker)
        with borrowed_stack(broker, lambda _: None, only=("kafka",)) as launched:
            wait_ready(broker, launched, lambda _: None)
            folder = Path(scratch) / "landed"
            settings = own_settings(broker, folder, STREAM, GENERATORS[STREAM].topic)
            for command in (
                ("produce", STREAM, "--rows", str(records), "--bad", "0.05"),
                ("ingest", STREAM, "--once"),
            ):
                watch_headwater(settings, *command).wait()
        rows = open_catalog(settings).load_table(f"bronze.{STREAM}").scan().to_arrow()
        expected = duckdb.from_arrow(rows).aggregate(", ".join(FIGURES)).fetchall()[0]
        query = f"SELECT {', '.join(FIGURES)} FROM lake.bronze.{STREAM}"  # noqa: S608
        found = flink.read(settings, query, folder)
    lines = list(zip(FIGURES, map(str, expected), found, strict=True))
    console.print(table(f"bronze.{STREAM}", ["figure", "pyiceberg", flink.NAME], lines))
    if any(ours != theirs for _, ours, theirs in lines):
        raise SystemExit("Flink reads something else")


if __name__ == "__main__":
    main()
