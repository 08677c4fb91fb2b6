"""`headwater ingest` as a user runs it: from the command line, through crashes and stops."""

import json
import shutil
import signal
import subprocess
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from demo.generators import Shares
from demo.produce import produce
from headwater.local.class_archive import ensure_class_archive
from ingestion.catalog import open_catalog
from ingestion.ledger import data_files
from ingestion.settings import Settings
from ingestion.spark_home import CLASS_ARCHIVE
from ingestion.stream_file import load_streams
from tests.conftest import HEADWATER, ROOT, free_port, run
from tests.integration.outside import (
    assert_table_is_topic,
    behind,
    is_whole,
    kill_tree,
    locked_catalog,
    make_again,
    read_table,
    send,
    start_ingest,
    verified,
    wait_for,
)

SHARES = Shares(bad=0.05, late=0.05, duplicates=0.05)


def commits(settings: Settings) -> int:
    catalog = open_catalog(settings)
    if not catalog.table_exists("bronze.stocks"):
        return 0
    return len(catalog.load_table("bronze.stocks").snapshots())


def test_once_lands_exactly_what_the_generator_made(
    stack: dict[str, str], settings: Settings
) -> None:
    made = produce(settings, "stocks", 20_000, None, 11, SHARES, lambda _: None)
    before = _errors(settings)
    done = run(HEADWATER, "ingest", "stocks", "--once", env=stack)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_table_is_topic(settings, "bronze.stocks", "stocks-in")
    errors = {kind: count for kind, count in made.items() if kind.endswith("_error")}
    assert _errors(settings) - before == errors
    assert "bronze.stocks" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def _errors(settings: Settings) -> Counter[str]:
    if not commits(settings):
        return Counter()
    types = read_table(settings, "bronze.stocks", "_error_type")["_error_type"].to_pylist()
    return Counter(kind for kind in types if kind)


def test_killed_in_mid_batch_killed_before_the_commit_then_stopped(
    stack: dict[str, str], settings: Settings
) -> None:
    """Three lives of one stream. Checkpoints are lost each time."""
    (stream,) = load_streams(["stocks"])
    checkpoints = settings.home / "checkpoints" / "stocks"
    produce(settings, "stocks", 50_000, None, 12, SHARES, lambda _: None)
    ingest = start_ingest(stack)
    # The batch is planned and under way once Spark has written its end offsets.
    wait_for(lambda: any(checkpoints.glob("*/offsets/0")))
    kill_tree(ingest)
    shutil.rmtree(checkpoints)

    ingest = start_ingest(stack)
    wait_for(lambda: behind(settings, stream) == 0)
    table = open_catalog(settings).load_table(stream.table)
    folder = Path(table.location().removeprefix("file://")) / "data"
    before = set(folder.rglob("*.parquet"))
    # The writer has its files, and waits to commit them: the catalog is locked.
    with locked_catalog(settings):
        produce(settings, "stocks", 20_000, None, 14, SHARES, lambda _: None)
        wait_for(lambda: any(map(is_whole, set(folder.rglob("*.parquet")) - before)))
        kill_tree(ingest)
    shutil.rmtree(checkpoints)
    table = open_catalog(settings).load_table(stream.table)
    committed = {Path(file.file_path.removeprefix("file://")) for file in data_files(table)}
    assert not committed & (set(folder.rglob("*.parquet")) - before)

    ingest = start_ingest(stack, HEADWATER_LOG_FORMAT="json")
    wait_for(lambda: behind(settings, stream) == 0)
    assert_stops_cleanly(settings, ingest, signal.SIGTERM)
    assert_table_is_topic(settings, stream.table, "stocks-in")
    verified(settings, stream)


def assert_stops_cleanly(
    settings: Settings, ingest: subprocess.Popen[str], number: signal.Signals
) -> None:
    """The batch under way is committed, and a summary says so."""
    ingest.send_signal(number)
    output, _ = ingest.communicate(timeout=90)
    assert ingest.returncode == 0, output
    summary = json.loads(output.strip().splitlines()[-1])
    assert (summary["event"], summary["stream"]) == ("summary", "stocks")
    assert summary["rows"] >= 1
    assert not list((settings.home / "checkpoints" / "stocks").glob("*/offsets"))


@pytest.mark.slow  # what SIGTERM does is in the test above
def test_ctrl_c_lets_the_batch_commit_and_ends_with_a_summary(
    stack: dict[str, str], settings: Settings
) -> None:
    before = commits(settings)
    ingest = start_ingest(stack, HEADWATER_LOG_FORMAT="json")
    wait_for(lambda: any((settings.home / "checkpoints" / "stocks").glob("*/metadata")))
    produce(settings, "stocks", 1_000, None, 15, SHARES, lambda _: None)
    wait_for(lambda: commits(settings) > before)
    assert_stops_cleanly(settings, ingest, signal.SIGINT)


WORDS = """\
description: Words.
topic: {name}
value: {{format: text}}
columns:
  line: {{type: string, description: One line.}}
rules:
  not_empty: line <> ''
batch: {{min_records: 1, max_seconds: 1}}
"""


def test_two_streams_in_one_process_seen_from_outside(
    stack: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    """Events as JSON, metrics, the Spark UI, `stop` for one, a failure of the other."""
    ensure_class_archive()
    first, second = (f"words_{uuid4().hex[:8]}" for _ in range(2))
    for name in (first, second):
        (tmp_path / f"{name}.yml").write_text(WORDS.format(name=name))
        send(settings, name, *[b"word"] * 20, b"")
    port = free_port()
    env = {**stack, "HEADWATER_STREAMS": str(tmp_path), "HEADWATER_METRICS_PORT": str(port)}
    ingest = start_ingest(env, first, second, HEADWATER_LOG_FORMAT="json")
    events: list[dict[str, Any]] = []

    def listen() -> None:
        for line in ingest.stdout or ():
            events.append(json.loads(line))  # every line is one object

    listening = threading.Thread(target=listen)
    listening.start()

    def told(event: str, stream: str | None = None) -> list[dict[str, Any]]:
        return [e for e in events if e["event"] == event and stream in (None, e.get("stream"))]

    try:
        wait_for(lambda: bool(told("commit", first) and told("commit", second)))
        (start,) = told("start")
        assert start["metrics"] == f"http://127.0.0.1:{port}/metrics"
        assert "headwater ingest" in requests.get(f"{start['spark_ui']}/jobs/", timeout=10).text
        assert_quick_start(ingest)
        wait_for(lambda: metrics(port)["headwater_lag_records", first] == 0)
        seen = metrics(port)
        assert seen["headwater_records_read_total", second] == 21
        assert seen["headwater_records_written_total", second] == 21
        assert seen["headwater_records_failed_total", second, "validation_error"] == 1
        assert seen["headwater_records_failed_total", second, "schema_error"] == 0
        assert seen["headwater_batch_seconds_count", second] == len(told("commit", second)) == 1
        took = seen["headwater_batch_seconds_sum", second]
        assert 0 < seen["headwater_commit_seconds_sum", second] < took
        assert seen["headwater_rows_per_second", second] == pytest.approx(21 / took)
        assert 0 < seen["headwater_seconds_since_last_commit", second] < 120
        assert seen["headwater_stream_running", second] == 1
        added = open_catalog(settings).load_table(f"bronze.{second}").inspect.files()
        assert seen["headwater_commit_files_sum", second] == len(added)
        assert seen["headwater_commit_bytes_sum", second] == sum(
            added["file_size_in_bytes"].to_pylist()
        )

        stopped = run(HEADWATER, "stop", first, env=env)
        assert stopped.returncode == 0, stopped.stderr
        assert f"with pid {ingest.pid}" in stopped.stdout
        assert told("stopped", first)
        assert "not running" in run(HEADWATER, "stop", first, env=env).stdout
        send(settings, second, b"the other one goes on")
        wait_for(lambda: len(told("commit", second)) == 2)
        assert metrics(port)["headwater_stream_running", first] == 0

        make_again(settings, second)
        send(settings, second, *[b"word"] * 50)
        assert ingest.wait(60) == 1
    finally:
        ingest.kill()
        listening.join()
    (failed,) = told("failed", second)
    assert "was deleted and created again" in failed["message"]
    states = {one["stream"]: one["state"] for one in told("summary")}
    assert states == {first: "stopped", second: "failed"}
    (error,) = told("error")
    assert failed["message"].endswith(error["message"])


def assert_quick_start(ingest: subprocess.Popen[str]) -> None:
    """Java maps the class archive, and Python finds no zip that it would have to compile."""
    java, zips = [], []
    for process in psutil.Process(ingest.pid).children(recursive=True):
        with suppress(psutil.Error):  # planning processes come and go
            if process.name() == "java":
                java.append({one.path for one in process.memory_maps()})
            elif "ingestion.worker" in process.cmdline():
                zips.append(Path(process.environ()["PYTHONPATH"].split(":")[0]))
    assert [str(CLASS_ARCHIVE) in files for files in java] == [True]
    assert {(one.name, one.exists()) for one in zips} == {("pyspark.zip", False)}


def metrics(port: int) -> dict[tuple[str, ...], float]:
    text = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_missing_topic_is_named_with_the_next_step(
    home: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    """An empty state folder on the running broker: the stream's table is elsewhere."""
    env = {**home, "HEADWATER_KAFKA_BOOTSTRAP_SERVERS": settings.bootstrap_servers}
    streams = ROOT / "ingestion" / "streams"
    done = run(HEADWATER, "ingest", "nothere", "--once", env=env)
    assert done.returncode == 2
    assert "there is no stream 'nothere'" in done.stderr
    assert str(streams) in done.stderr
    assert not tmp_path.joinpath("state").exists()
