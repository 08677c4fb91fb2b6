"""Headwater itself: a cold `headwater ingest --once`, with everything that the stream declares."""

from pathlib import Path

import ingestion
from benchmarks.measure import watch_headwater
from benchmarks.peers.case import Case, Landed
from demo.generators import GENERATORS
from ingestion.catalog import open_catalog
from ingestion.settings import Settings

STARTED = '"event": "start"'  # Spark is there, the stream begins


TYPED_ONLY = "benchmarks.peers.typed_only"


def land(
    case: Case, folder: Path, checkout: Path | None = None, module: str | None = None
) -> Landed:
    """Run this checkout, or another one that has its own .venv."""
    settings = own_settings(case.broker, folder, case.stream, case.topic, checkout)
    with watch_headwater(
        settings,
        *("ingest", case.stream, "--once"),
        checkout=checkout,
        module=module,
        HEADWATER_LOG_FORMAT="json",
    ) as watched:
        start_up = watched.wait_for_output(STARTED)
        watched.wait()
    table = open_catalog(settings).load_table(f"bronze.{case.stream}")
    columns = ("_kafka_partition", "_kafka_offset")
    return Landed(table, *columns, start_up, watched.used, watched.samples)


def own_settings(
    broker: Settings, folder: Path, stream: str, topic: str, checkout: Path | None = None
) -> Settings:
    """Tables in this folder, and the stream file as it stands, but for its topic and forwarding."""
    code = checkout / "ingestion" if checkout else Path(ingestion.__file__).parent
    text = (code / "streams" / f"{stream}.yml").read_text().split("\nforward:")[0] + "\n"
    text = text.replace(f"topic: {GENERATORS[stream].topic}\n", f"topic: {topic}\n")
    text = text.replace("../schemas", str(code / "schemas"))
    streams = folder / "streams"
    streams.mkdir(parents=True)
    (streams / f"{stream}.yml").write_text(text)
    bootstrap = broker.bootstrap_servers
    return broker.model_copy(
        update={"home": folder, "streams": streams, "kafka_bootstrap_servers": bootstrap}
    )
