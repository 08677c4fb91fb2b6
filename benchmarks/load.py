"""Memory under a large backlog, and lag and latency under a steady load: part of `make bench`.

First a backlog is drained: is memory flat? Then records come at a steady rate, 1 % of them bad:
does the lag grow, and how long does a record take from Kafka until it can be read in bronze? Each
table is checked at the end. The benchmark keeps its own broker and removes it.
"""

import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import mean

import click
import duckdb
import requests
from prometheus_client.parser import text_string_to_metric_families
from pyiceberg.table import Table

from benchmarks.ingest import MILLION, produce
from benchmarks.measure import Sample, watch_headwater
from benchmarks.peers.case import Case, free_port
from benchmarks.peers.headwater import land, own_settings
from benchmarks.results import report
from demo.generators import GENERATORS
from headwater.console import console
from headwater.local.services import borrowed_stack, wait_ready
from headwater.rows.verify import verify
from ingestion.catalog import open_catalog
from ingestion.settings import LOOPBACK, Settings
from ingestion.stream_file import load_streams

STREAM = "stocks"
BAD = 0.01
SLICES = 10
CATCH_UP_SECONDS = 120
WRITTEN = "headwater_records_written_total"
LAG = "headwater_lag_records"


def drain(broker: Settings, records: int, folder: Path) -> None:
    """Is memory as large at the end of a backlog as at its start?"""
    case = Case(broker, STREAM, records)
    console.print(f"Producing {records:,} records")
    produce(case)
    landed = land(case, folder)
    began, ended = landed.start_up.seconds, landed.total.seconds
    step = (ended - began) / SLICES
    rows = []
    for number in range(SLICES):
        start = began + number * step
        memory = _memory(landed.samples, start, start + step)
        if memory:
            rows.append((start, start + step, mean(memory), max(memory)))
    problem = landed.problem(case)
    report(
        f"Memory while {records / MILLION:g} million records are drained",
        ("from, s", "to, s", "mean memory, MB", "largest, MB"),
        rows,
        f"{landed.total.seconds:.1f} s and {landed.total.cpu:.1f} CPU s with the start; at most "
        f"{landed.peak_mb:,.0f} MB. PSS of the whole process tree, after Spark has started. "
        f"Each record once: {problem or 'yes'}.",
    )
    if problem:
        raise SystemExit(problem)


def hold(broker: Settings, rate: int, minutes: int, folder: Path) -> None:
    """Does ingestion keep up, and how far behind is it?"""
    settings = own_settings(broker, folder, STREAM, GENERATORS[STREAM].topic)
    records = rate * minutes * 60
    produce_first(settings)
    port = free_port()
    with watch_headwater(settings, "ingest", STREAM, HEADWATER_METRICS_PORT=str(port)) as ingestion:
        ingestion.wait_until(lambda: metric(port, WRITTEN) == 1, CATCH_UP_SECONDS)
        before, began = ingestion.used, time.time()
        lags = steady_load(settings, rate, records, port)
        took = lags[-1][0]
        ingestion.wait_until(lambda: metric(port, WRITTEN) == records + 1, CATCH_UP_SECONDS)
        cpu = ingestion.used.cpu - before.cpu
    table = open_catalog(settings).load_table(f"bronze.{STREAM}")
    median, p95, longest = latencies(table, began)
    rows = []
    for minute in range(minutes):
        start, end = 60 * minute, 60 * (minute + 1)
        inside = [behind for at, behind in lags if start <= at < end]
        memory = _memory(ingestion.samples, before.seconds + start, before.seconds + end)
        if inside and memory:
            rows.append((minute + 1, mean(inside), max(inside), mean(memory), max(memory)))
    exact = is_exact(settings, table)
    report(
        f"Lag and latency under {rate:,} records a second for {minutes} minutes",
        ("minute", "mean lag", "largest lag", "mean memory, MB", "largest, MB"),
        rows,
        f"From Kafka's timestamp of a record to the commit that shows it: median {median:.1f} s, "
        f"p95 {p95:.1f} s, longest {longest:.1f} s. Produced: {records / took:,.0f} records a "
        f"second, {BAD:.0%} of them bad. CPU s per million records: {cpu * MILLION / records:.1f}. "
        f"Verified, record by record: {'exact' if exact else 'NOT EXACT'}.",
    )
    if not exact:
        raise SystemExit("the table is not exact: see `headwater verify`")


def produce_first(settings: Settings) -> None:
    """A record for the stream to begin with: it must find its topic."""
    watch_headwater(settings, "produce", STREAM, "--rows", "1").wait()


def steady_load(
    settings: Settings, rate: int, records: int, port: int
) -> list[tuple[float, float]]:
    """Produce at this rate; returns the lag as it was each second."""
    arguments = ["--rows", str(records), "--rate", str(rate), "--bad", str(BAD), "--seed", "2"]
    lags: list[tuple[float, float]] = []
    with watch_headwater(settings, "produce", STREAM, *arguments) as producer:
        began = time.monotonic()
        while producer.running:
            if (behind := metric(port, LAG)) is not None:
                lags.append((time.monotonic() - began, behind))
            time.sleep(1)
        producer.wait()
    return lags


def metric(port: int, name: str) -> float | None:
    """A figure as Headwater itself offers it."""
    with suppress(requests.RequestException):
        text = requests.get(f"http://{LOOPBACK}:{port}/metrics", timeout=5).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name:
                    return sample.value
    return None


def latencies(table: Table, began: float) -> tuple[float, float, float]:
    """Median, p95 and maximum of the seconds from a record's timestamp to its commit.

    A batch takes its `_ingested_at` before it commits, and the next one begins after that: the
    first commit after the stamp is the one.
    """
    commits = [(snapshot.timestamp_ms,) for snapshot in table.snapshots()]
    with duckdb.connect() as connection:
        connection.execute("create table commits (visible bigint)")
        connection.executemany("insert into commits values (?)", commits)
        arrow = table.scan(selected_fields=("_kafka_timestamp", "_ingested_at")).to_arrow()
        connection.register("bronze", arrow)
        found = connection.execute(
            """
            with by_commit as (
                select epoch_ms(_ingested_at) as stamp, epoch_ms(_kafka_timestamp) as created
                from bronze where _kafka_timestamp >= to_timestamp(?)
            ), waited as (
                select (visible - created) / 1000 as seconds
                from by_commit asof join commits on by_commit.stamp <= commits.visible
            )
            select median(seconds), quantile_cont(seconds, 0.95), max(seconds) from waited
            """,
            [began],
        ).fetchone()
    assert found is not None  # noqa: S101 - an aggregate has one row
    return found


def is_exact(settings: Settings, table: Table) -> bool:
    (stream,) = load_streams([STREAM], settings.streams)
    return verify(settings, stream, table, lambda *_: None).is_exact


def _memory(samples: list[Sample], start: float, end: float) -> list[float]:
    return [sample.mb for sample in samples if start <= sample.seconds < end and sample.mb]


@click.command()
@click.option("--backlog", default=20.0, show_default=True, help="Millions of records; 0 for none.")
@click.option("--rate", default=20_000, show_default=True, help="Records a second.")
@click.option("--minutes", default=10, show_default=True, help="Of that rate; 0 for none.")
def main(backlog: float, rate: int, minutes: int) -> None:
    """Drain a backlog, then keep up with a steady load."""
    with tempfile.TemporaryDirectory() as scratch:
        broker = Settings(home=Path(scratch) / "broker", kafka_port=free_port())
        with borrowed_stack(broker, lambda _: None, only=("kafka",)) as launched:
            wait_ready(broker, launched, lambda _: None)
            if backlog:
                drain(broker, int(backlog * MILLION), Path(scratch) / "drain")
            if minutes:
                hold(broker, rate, minutes, Path(scratch) / "hold")


if __name__ == "__main__":
    main()
