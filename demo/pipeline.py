"""`make demo`: the whole pipeline on this machine, and a summary that shows what it did."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.panel import Panel

from demo.generators import Shares
from demo.produce import produce
from headwater.console import advance_to, console, progress_bar, table
from headwater.dbt import build_docs, counter, parsed_project, run_dbt
from headwater.local.class_archive import ensure_class_archive
from headwater.local.jars import ensure_jars, needed_sets
from headwater.local.services import borrowed_stack, wait_ready
from headwater.status import list_tables, table_status
from ingestion.catalog import open_catalog
from ingestion.errors import ERROR_TYPES, HeadwaterError
from ingestion.lease import hold
from ingestion.run import Run
from ingestion.settings import Settings
from ingestion.spark import spark_session, stop_session
from ingestion.stream_file import load_streams

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

# Records of each stream: the first wave, and a second one that silver and gold take up by itself.
ROWS = {"stocks": 200_000, "health": 20_000, "sensors": 20_000, "traffic": 20_000}
SECOND_WAVE = dict.fromkeys(ROWS, 5_000)
SPANS = {"traffic": timedelta(days=9)}  # features and forecasts have a week to look back at
SHARES = Shares(bad=0.01, late=0.02, duplicates=0.02)


class Steps:
    """Names each step, times it, and keeps the times for the summary."""

    def __init__(self) -> None:
        self.times: list[tuple[str, float]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        console.print(f"[bold]▸ {name}[/]")
        began = time.monotonic()
        yield
        self.times.append((name, time.monotonic() - began))


def run_demo(settings: Settings) -> None:
    steps = Steps()
    began = time.monotonic()
    # Seeds by the clock: a second demo adds other records than the first.
    seed = int(time.time())
    with steps.step("Get the jars, and prepare quick starts of Spark"):
        ensure_jars(settings, needed_sets(settings))
        ensure_class_archive()
    with borrowed_stack(settings, _say) as launched:
        kafka = [service for service in launched if service.name == "kafka"]
        thrift = [service for service in launched if service.name == "thrift"]
        with steps.step("Start a Kafka broker (a Spark Thrift server starts meanwhile)"):
            wait_ready(settings, kafka, _say)
        with ThreadPoolExecutor(3) as pool:
            starting = pool.submit(spark_session, settings, "ingest")
            pool.submit(parsed_project, settings)
            thrift_ready = pool.submit(wait_ready, settings, thrift, _say)
            total = sum(ROWS.values())
            with steps.step(f"Produce {total:,} records: good, late, duplicate and bad ones"):
                _produce(settings, ROWS, seed)
            with steps.step("Ingest: Kafka to bronze, one commit a batch"):
                spark = starting.result()
                _ingest(spark, settings)
            with steps.step("Wait for the Spark Thrift server"):
                thrift_ready.result()
        with steps.step("dbt build: silver, gold, and every test of their data"):
            _dbt(settings, "build", "--exclude-resource-type", "unit_test")
        before = _rows(settings)
        with steps.step(f"A second wave of {sum(SECOND_WAVE.values()):,} records, to bronze"):
            _produce(settings, SECOND_WAVE, seed + 1)
            _ingest(spark, settings)
        stop_session(spark)
        with steps.step("dbt run: silver and gold take up only what is new"):
            _dbt(settings, "run")
        with steps.step("Build the docs site"):
            site = build_docs(settings)
        _summary(settings, steps, before, site)
    left = "The stack runs on, as before." if not launched else "Nothing is left running."
    console.print(f"\nDone in {time.monotonic() - began:.0f} s. {left}")


def _say(text: str) -> None:
    console.print(f"  [dim]{text}[/]")


def _produce(settings: Settings, rows: dict[str, int], seed: int) -> None:
    for stream, count in rows.items():
        with progress_bar() as bar:
            task = bar.add_task(f"  {stream}", total=count)
            report = partial(advance_to, bar, task, total=count)
            made = produce(settings, stream, count, None, seed, SHARES, report, SPANS.get(stream))
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in made.most_common())
        _say(f"{stream}: {kinds}")


def _ingest(spark: "SparkSession", settings: Settings) -> None:
    """All streams at once, each with its own commits."""
    with ExitStack() as leases:
        runs = []
        for stream in load_streams(list(ROWS)):
            leases.enter_context(hold(settings, stream.name, "demo"))
            runs.append(Run(spark, settings, stream))
            runs[-1].start(once=True)
        while any(run.is_running for run in runs):
            time.sleep(0.1)
        for run in runs:
            run.stop()
    for run in runs:
        run.raise_failure()
        done = run.progress
        _say(f"{run.stream.table}: {done.rows:,} rows in {done.commits} commit(s)")


def _dbt(settings: Settings, command: str, *options: str) -> None:
    with progress_bar() as bar:
        task = bar.add_task(f"  dbt {command}", total=None)
        ran = run_dbt(settings, command, *options, heard=counter(partial(advance_to, bar, task)))
        advance_to(bar, task, ran, ran)


def _rows(settings: Settings) -> dict[str, int]:
    tables = list_tables(open_catalog(settings))
    return {name: table_status(name, one).rows for name, one in tables.items()}


def _summary(settings: Settings, steps: Steps, before: dict[str, int], site: Path) -> None:
    tables = list_tables(open_catalog(settings))
    console.rule("[bold]What you have now[/]")
    rows = []
    for name, one in tables.items():
        now = table_status(name, one)
        rows.append((name, now.rows, now.rows - before.get(name, 0), now.files, now.bytes / 1e6))
    console.print(
        table("Tables", ["table", "rows", "of these in the second wave", "files", "MB"], rows)
    )
    console.print(
        table(
            "Bad records, kept in bronze with their bytes and the reason",
            ["stream", "error type", "rows"],
            [
                (stream, kind, rows)
                for stream in ROWS
                for kind, rows in sorted(errors_by_type(tables[f"bronze.{stream}"]).items())
            ],
        )
    )
    console.print(_preview(tables["gold.fct_stock_bars_1m"]))
    console.print(table("Time", ["step", "seconds"], [*steps.times]))
    console.print(
        Panel(
            f"Docs site with lineage   {site}\n"
            "Start the stack again    headwater up\n"
            "Live records             headwater produce stocks --rows 100000 --rate 500\n"
            "Land them as they come   headwater ingest\n"
            "Rebuild and test         dbt build\n"
            "See what is where        headwater status\n"
            "Stop it                  headwater down",
            title="What to try next (after: source .venv/bin/activate)",
            title_align="left",
        )
    )


def errors_by_type(bronze: "Table") -> Counter[str]:
    wanted = f"_error_type in ({', '.join(map(repr, ERROR_TYPES))})"
    failed = bronze.scan(wanted, selected_fields=("_error_type",)).to_arrow()
    return Counter(failed["_error_type"].to_pylist())


def _preview(bars: "Table") -> object:
    """The newest minutes of one ticker, with its close as a line of blocks."""
    ticker = "AAPL"
    found = bars.scan(f"ticker = '{ticker}'").to_arrow().sort_by("window_start").to_pylist()
    if not found:
        raise HeadwaterError(f"gold.fct_stock_bars_1m has no bar of {ticker}", "run: dbt build")
    line = sparkline([float(bar["close"]) for bar in found[-100:]])
    return table(
        f"gold.fct_stock_bars_1m, {ticker}: the last {len(line)} minutes\n{line}",
        ["minute (UTC)", "open", "high", "low", "close", "trades"],
        [
            (
                f"{bar['window_start']:%Y-%m-%d %H:%M}",
                *(float(bar[name]) for name in ("open", "high", "low", "close")),
                bar["trades"],
            )
            for bar in found[-6:]
        ],
    )


def sparkline(values: list[float]) -> str:
    blocks = "▁▂▃▄▅▆▇█"
    low, high = min(values), max(values)
    step = (high - low) / (len(blocks) - 1) or 1
    return "".join(blocks[int((value - low) / step)] for value in values)
