"""What a small wave costs when history grows: part of `make bench`.

Three lakes hold 1, 10 and 100 times DAYS days of all four streams, with the same records a day,
landed day by day. Then the same small waves come to each in turn, and each is built with `dbt
build` without tests, one model after the other, so that the CPU seconds of dbt and of the Thrift
server belong to one model. Spark and Iceberg tell how many data files each statement has read, or
looked keys up in, and the catalog how many the tables have that it read from. The benchmark keeps
its own state and removes it.
"""

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

import ingestion
from benchmarks import results
from benchmarks.measure import watch_headwater
from benchmarks.scans import REPORTING, Scans
from demo.generators import GENERATORS, Shares, spread_clock
from demo.produce import send
from headwater.console import console
from headwater.dbt import run_dbt
from headwater.local.services import borrowed_stack, wait_ready
from ingestion.catalog import open_catalog
from ingestion.kafka import admin, ensure_topic
from ingestion.settings import Settings

DAYS = int(os.environ.get("DAYS", "2"))
SCALES = [int(scale) for scale in os.environ.get("SCALES", "1 10 100").split()]
WARM_UP, MEASURED = 1, 2  # waves
A_DAY = {"stocks": 2000, "health": 1000, "sensors": 1000, "traffic": 1000}  # records
WAVE = 500  # records of each stream
WAVE_SPAN = timedelta(hours=1)
MEASURABLE = 0.05  # CPU s; exposures take none
SHARES = Shares(bad=0.01, late=0.02, duplicates=0.02)
BUILD = ("build", "--threads", "1", "--exclude-resource-type", "test", "unit_test")
WHOLE = "the whole build"


@dataclass
class Lake:
    """One pipeline with its history, and what its builds took."""

    scale: int
    settings: Settings
    cpu: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    files: dict[str, tuple[int, int]] = field(default_factory=dict)  # by model: read, and there

    def fill(self, now: datetime) -> None:
        days = DAYS * self.scale
        for stream, rows in A_DAY.items():
            keep_forever(self.settings, GENERATORS[stream].topic)
            self._send(stream, rows * days, now, timedelta(days=days), seed=1)
        self._land()
        run_dbt(self.settings, *BUILD)

    def wave(self, number: int, now: datetime) -> None:
        for stream in A_DAY:
            self._send(stream, WAVE, now, WAVE_SPAN, seed=100 + number)
        self._land()

    def build(self) -> None:
        """Build; add to each model's CPU seconds what it took, and note the files that it read."""
        scans = Scans(self.settings)
        thrift, this = psutil.Process(scans.pid), psutil.Process()
        began: dict[str, float] = {}
        looking = 0.0  # what it takes to ask for files is no part of the build

        def used() -> float:
            return sum(one.cpu_times().user + one.cpu_times().system for one in (thrift, this))

        def heard(event: Any) -> None:
            nonlocal looking
            if event.info.name == "NodeStart":
                began[event.data.node_info.node_name] = used()
            elif event.info.name == "NodeFinished":
                name, ended = event.data.node_info.node_name, used()
                self.cpu[name].append(ended - began[name])
                self.files[name] = self._files_read(scans.new())
                looking += used() - ended

        before = used()
        run_dbt(self.settings, *BUILD, heard=heard)
        self.cpu[WHOLE].append(used() - before - looking)

    def _files_read(self, scans: Iterable[tuple[str, int]]) -> tuple[int, int]:
        """How many data files were read, and how many the tables have that were read."""
        catalog = open_catalog(self.settings)
        read = there = 0
        for name, files in scans:
            read += files
            snapshot = catalog.load_table(name).current_snapshot()
            if snapshot and snapshot.summary:
                there += int(snapshot.summary["total-data-files"] or 0)
        return read, there

    def _send(self, stream: str, rows: int, end: datetime, span: timedelta, seed: int) -> None:
        generator = GENERATORS[stream]
        clock = spread_clock(rows, end, span)
        records = (
            record._replace(timestamp=int(clock(index).timestamp() * 1000))
            for index, record in enumerate(generator.records(rows, seed, SHARES, clock))
        )
        send(self.settings, generator.topic, records, None, lambda _: None)

    def _land(self) -> None:
        watch_headwater(self.settings, "ingest", "--once").wait()


def day_by_day(folder: Path) -> None:
    """The stream files, with batches of one day each."""
    for file in (Path(ingestion.__file__).parent / "streams").glob("*.yml"):
        batch = f"\nbatch:\n  max_records: {A_DAY[file.stem]}\n"
        text = file.read_text().replace("../schemas", str(file.parents[1] / "schemas"))
        (folder / file.name).write_text(text + batch)


def keep_forever(settings: Settings, topic: str) -> None:
    """Kafka would delete what is older than a week by its own time."""
    ensure_topic(settings, topic)
    entry = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    for done in admin(settings).incremental_alter_configs([resource]).values():
        done.result(30)


def report(lakes: list[Lake]) -> None:
    first, last = lakes[0], lakes[-1]
    costs = {name: [median(lake.cpu[name][-MEASURED:]) for lake in lakes] for name in first.cpu}
    rows = []
    for name in sorted(costs, key=lambda one: -costs[one][0]):
        if costs[name][0] < MEASURABLE:
            continue
        read = [lake.files.get(name) for lake in lakes]
        rows.append(
            (
                name,
                *costs[name],
                costs[name][-1] / costs[name][0],
                *(f"{one[0]} of {one[1]}" if one and one[1] else "" for one in read),
            )
        )
    columns = ["", *(f"CPU s, {lake.scale}x" for lake in lakes), f"{last.scale}x / {first.scale}x"]
    columns += [f"files, {lake.scale}x" for lake in lakes]
    title = f"The same wave of {WAVE} records a stream, with {DAYS} days of history and more"
    results.report(title, columns, rows)


def main() -> None:
    with ExitStack() as opened:
        home = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        os.environ.update(REPORTING)
        os.environ["DBT_TARGET_PATH"] = str(home / "target")
        os.environ["DBT_LOG_PATH"] = str(home / "logs")
        streams = home / "streams"
        streams.mkdir()
        day_by_day(streams)
        lakes = []
        for number, scale in enumerate(SCALES):
            settings = Settings(
                home=home / f"{scale}x",
                streams=streams,
                kafka_port=29195 + number,
                thrift_port=29205 + number,
            )
            launched = opened.enter_context(borrowed_stack(settings, lambda _: None))
            wait_ready(settings, launched, lambda _: None)
            lakes.append(Lake(scale, settings))
        began = datetime.now(UTC)
        for lake in lakes:
            started = time.monotonic()
            lake.fill(began)
            console.print(f"{lake.scale}x: history is in, {time.monotonic() - started:.0f} s")
        for number in range(WARM_UP + MEASURED):
            now = datetime.now(UTC)
            for lake in lakes:
                lake.wave(number, now)
                lake.build()
            totals = ", ".join(f"{lake.scale}x {lake.cpu[WHOLE][-1]:.1f}" for lake in lakes)
            console.print(f"wave {number + 1}, CPU s: {totals}")
        report(lakes)


if __name__ == "__main__":
    main()
