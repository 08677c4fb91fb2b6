"""PyFlink: Flink SQL from Kafka into an Iceberg table, in its own mini cluster.

Of each record it keeps the typed columns and where it came from, not its bytes.
"""

import json
import os
from pathlib import Path

from pyiceberg.table import StaticTable

from benchmarks.measure import Watched
from benchmarks.peers.case import PEER_HEAP, Case, Landed
from benchmarks.peers.install import peer_jars, peer_python
from ingestion.settings import Settings

NAME = "PyFlink 1.20.5, Iceberg 1.11.0"
PYTHON = "3.11"  # the newest that PyFlink 1.20 runs on
JOB = Path(__file__).with_name("flink_job.py")
READ = Path(__file__).with_name("flink_read.py")


def install(settings: Settings) -> None:
    peer_python(settings, "flink", PYTHON)
    for name in ("flink", "hadoop"):
        peer_jars(settings, "flink", name)


def land(case: Case, folder: Path) -> Landed:
    job = {
        "broker": case.broker.bootstrap_servers,
        "stream": case.stream,
        "topic": case.topic,
        "folder": str(folder),
        "parallelism": os.cpu_count(),
    }
    with _job(case.broker, JOB, job, folder) as watched:
        start_up = watched.wait_for_output("The job is submitted")
        watched.wait()
    metadata = folder / "warehouse" / "db" / case.stream / "metadata"
    version = (metadata / "version-hint.text").read_text().strip()
    table = StaticTable.from_metadata(str(metadata / f"v{version}.metadata.json"))
    columns = ("kafka_partition", "kafka_offset")
    return Landed(table, *columns, start_up, watched.used, watched.samples)


def read(settings: Settings, query: str, folder: Path) -> list[str]:
    """The one row that Flink gives for a query on the tables of Headwater, as text."""
    job = {
        "catalog": str(settings.catalog_db),
        "warehouse": settings.warehouse_location,
        "query": query,
    }
    with _job(settings, READ, job, folder) as watched:
        watched.wait()
    values: list[str] = json.loads(watched.log.read_text().splitlines()[-1])
    return values


def _job(settings: Settings, script: Path, job: dict[str, object], folder: Path) -> Watched:
    python = peer_python(settings, "flink", PYTHON)
    jars = sorted(map(str, peer_jars(settings, "flink", "flink").glob("*.jar")))
    return Watched(
        [str(python), str(script), json.dumps(job | {"jars": jars})],
        folder / "flink.log",
        folder=folder,
        HADOOP_CLASSPATH=f"{peer_jars(settings, 'flink', 'hadoop')}/*",
        JVM_ARGS=f"-Xmx{PEER_HEAP} -Djava.io.tmpdir={folder}",
    )
