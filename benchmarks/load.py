"""Memory under a large backlog, and lag under a steady load: part of `make bench`.

First a backlog of BACKLOG records is drained with a heap of 2 GiB: is memory flat, does the heap
hold? Then RATE records a second come for SECONDS seconds: does the lag grow? The verifier has the
last word on both. The benchmark keeps its own state and removes it.
"""

import os
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import mean

import requests
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.measure import HEADWATER, Watched
from demo.generators import Shares
from demo.produce import produce
from headwater.console import console, table
from headwater.local.services import borrowed_stack, wait_ready
from headwater.rows.verify import verify
from ingestion.catalog import open_catalog
from ingestion.settings import Settings
from ingestion.stream import load_streams

BACKLOG = int(os.environ.get("BACKLOG", "5000000"))
RATE = int(os.environ.get("RATE", "20000"))
SECONDS = int(os.environ.get("SECONDS", "300"))
METRICS_PORT = 29108
HEAP = "2g"


def drain(settings: Settings) -> None:
    began = time.monotonic()
    produce(settings, "stocks", BACKLOG, None, 1, Shares(bad=0.01), lambda _: None)
    console.print(f"Produced {BACKLOG:,} records in {time.monotonic() - began:.0f} s")
    watched = start(settings, "--once")
    heap: list[tuple[float, float, float]] = []  # (rows, used MB after the last collection, RSS MB)
    while watched.process.poll() is None:
        rows = metrics().get("headwater_records_written_total", 0)
        if (java := watched.java) and (used := old_generation_mb(java.pid)) is not None:
            heap.append((rows, used, watched.samples[-1][1]))
        time.sleep(2)
    watched.wait()
    steps = sorted({rows for rows, *_ in heap})
    shown = [
        (
            int(step),
            max(used for rows, used, _ in heap if rows == step),
            max(rss for rows, _, rss in heap if rows == step),
        )
        for step in steps
    ]
    columns = ["rows committed", "old generation, MB", "memory of all processes, MB"]
    console.print(table(f"Memory while a backlog is drained, heap {HEAP}", columns, shown))
    figures = [
        (BACKLOG, watched.seconds, BACKLOG / watched.seconds, watched.cpu * 1e6 / BACKLOG),
    ]
    console.print(
        table("Drained", ["records", "wall s", "records/s", "CPU s per million"], figures)
    )


def hold(settings: Settings) -> None:
    watched = start(settings)
    while "headwater_lag_records" not in metrics():
        time.sleep(1)
    cpu_before = watched.cpu
    producer = subprocess.Popen(
        [str(HEADWATER), "produce", "stocks", "--rows", str(RATE * SECONDS), "--rate", str(RATE)],
        env={
            **os.environ,
            "HEADWATER_HOME": str(settings.home),
            "HEADWATER_KAFKA_PORT": str(settings.kafka_port),
        },
        stdout=subprocess.DEVNULL,
    )
    began = time.monotonic()
    lags: list[tuple[float, float]] = []
    while producer.poll() is None:
        lags.append((time.monotonic() - began, metrics().get("headwater_lag_records", 0)))
        time.sleep(1)
    took = time.monotonic() - began
    cpu = watched.cpu - cpu_before
    minutes = int(took // 60) + 1
    rows = []
    for minute in range(minutes):
        inside = [lag for at, lag in lags if minute * 60 <= at < (minute + 1) * 60]
        memory = [mb for at, mb in watched.samples if minute * 60 <= at - (watched.seconds - took)]
        if inside:
            rows.append((minute + 1, mean(inside), max(inside), memory[0] if memory else 0.0))
    console.print(
        table(
            f"Lag under {RATE * SECONDS / took:,.0f} records a second",
            ["minute", "mean lag", "largest lag", "memory at its start, MB"],
            rows,
        )
    )
    console.print(f"CPU s per million records, after the start: {cpu * 1e6 / (RATE * SECONDS):.1f}")
    watched.process.terminate()
    watched.wait()


def start(settings: Settings, *arguments: str) -> Watched:
    return Watched(
        settings,
        "ingest",
        "stocks",
        *arguments,
        HEADWATER_METRICS_PORT=str(METRICS_PORT),
        HEADWATER_SPARK_DRIVER_MEMORY=HEAP,
    )


def metrics() -> dict[str, float]:
    with suppress(requests.RequestException):
        text = requests.get(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=5).text
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    return {}


def old_generation_mb(pid: int) -> float | None:
    """What has survived collections in a JVM, by the JDK's own jstat."""
    done = subprocess.run(
        ["jstat", "-gc", str(pid)],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if len(lines) < 2:
        return None
    found = dict(zip(lines[0].split(), lines[1].split(), strict=False))
    return float(found["OU"]) / 1024


def check(settings: Settings) -> None:
    (stream,) = load_streams(["stocks"])
    began = time.monotonic()
    bronze = open_catalog(settings).load_table(stream.table)
    found = verify(settings, stream, bronze, lambda *_: None)
    rows = sum(one.checked for one in found.partitions)
    took = time.monotonic() - began
    verdict = "each exactly once" if found.is_exact else "NOT EXACT"
    console.print(f"Verified {rows:,} records in {took:.0f} s: {verdict}")
    if not found.is_exact:
        raise SystemExit(1)


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(home=Path(home), kafka_port=29193)
        with borrowed_stack(settings, lambda _: None, only=("kafka",)) as launched:
            wait_ready(settings, launched, lambda _: None)
            drain(settings)
            check(settings)
            hold(settings)
            check(settings)


if __name__ == "__main__":
    main()
