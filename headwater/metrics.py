"""What Prometheus sees of the streams of a process, on a loopback port."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from headwater.local.services import port_holder
from ingestion.errors import ERROR_TYPES, HeadwaterError
from ingestion.settings import LOOPBACK, Settings
from ingestion.supervise import Supervised


class Streams(Collector):
    """Reads the progress of the streams when someone asks; nothing is counted twice."""

    def __init__(self, streams: Sequence[Supervised]) -> None:
        self._streams = streams

    def collect(self) -> Iterator[Metric]:
        label = ["stream"]
        read = CounterMetricFamily(
            "headwater_records_read", "Offsets read from Kafka, committed or not.", labels=label
        )
        written = CounterMetricFamily(
            "headwater_records_written", "Rows committed, good and bad.", labels=label
        )
        failed = CounterMetricFamily(
            "headwater_records_failed", "Error rows committed, by type.", labels=["stream", "type"]
        )
        batch = SummaryMetricFamily(
            "headwater_batch_seconds", "From the start of a batch to its commit.", labels=label
        )
        commit = SummaryMetricFamily(
            "headwater_commit_seconds", "Of a batch, after its files were written.", labels=label
        )
        size = SummaryMetricFamily(
            "headwater_commit_bytes", "Data that commits added.", labels=label
        )
        files = SummaryMetricFamily(
            "headwater_commit_files", "Data files that commits added.", labels=label
        )
        lag = GaugeMetricFamily(
            "headwater_lag_records", "Offsets in Kafka that are not in the table.", labels=label
        )
        speed = GaugeMetricFamily(
            "headwater_rows_per_second", "Rows a second in the last batch.", labels=label
        )
        age = GaugeMetricFamily(
            "headwater_seconds_since_last_commit", "By the table's newest stamp.", labels=label
        )
        running = GaugeMetricFamily(
            "headwater_stream_running", "1 while the stream runs, 0 otherwise.", labels=label
        )
        restarts = CounterMetricFamily(
            "headwater_restarts", "Restarts after a failure.", labels=label
        )
        for one in self._streams:
            name, done = [one.stream.name], one.progress
            read.add_metric(name, done.read)
            written.add_metric(name, done.rows)
            for kind in ERROR_TYPES:
                failed.add_metric([*name, kind], done.errors[kind])
            batch.add_metric(name, done.commits, done.batch_seconds)
            commit.add_metric(name, done.commits, done.commit_seconds)
            size.add_metric(name, done.commits, done.bytes)
            files.add_metric(name, done.commits, done.files)
            if one.lag is not None:
                lag.add_metric(name, one.lag)
            if done.commits:
                speed.add_metric(name, done.last_rows / max(done.last_seconds, 1e-9))
            if one.last_commit is not None:
                age.add_metric(name, (datetime.now(UTC) - one.last_commit).total_seconds())
            running.add_metric(name, one.state == Supervised.RUNNING)
            restarts.add_metric(name, one.restarts)
        yield from (read, written, failed, batch, commit, size, files)
        yield from (lag, speed, age, running, restarts)


@contextmanager
def served(settings: Settings, streams: Sequence[Supervised]) -> Iterator[str]:
    """Metrics over HTTP while the block runs. Yields their address, or why there are none."""
    registry = CollectorRegistry()
    registry.register(Streams(streams))
    port = settings.metrics_port
    try:
        server, thread = start_http_server(port, LOOPBACK, registry)
    except OSError as error:
        taken = f"port {port} is taken by {port_holder(port) or error.strerror}"
        if "metrics_port" in settings.model_fields_set:
            raise HeadwaterError(
                f"there can be no metrics: {taken}",
                "set HEADWATER_METRICS_PORT to a free port",
            ) from error
        # A second `headwater ingest` on one machine is nothing unusual.
        yield f"none: {taken}; HEADWATER_METRICS_PORT names another"
        return
    try:
        yield f"http://{LOOPBACK}:{port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
