"""How Spark processes are configured and started. Ingestion needs no jar of its own."""

import logging
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ingestion.errors import HeadwaterError
from ingestion.settings import LOOPBACK, Settings
from ingestion.spark_home import (
    CLASS_ARCHIVE,
    has_class_archive,
    home_without_zip,
    pyspark_home,
)

# Ingestion asks little of the JVM: no record passes it.
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUIET_ARCHIVE = "-Xlog:cds*=off"  # Java starts without an archive that does not fit, and says so
STOP_SECONDS = 30
WORKER = "ingestion.worker"  # the module of which Spark makes its Python workers


def spark_properties(settings: Settings, log: Path, jvm_options: str) -> dict[str, str]:
    """The Spark configuration that ingestion and the Thrift server share."""
    log4j = Path(__file__).with_name("log4j2-spark.properties")
    properties = {
        "spark.master": settings.spark_master,
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.driver.extraJavaOptions": f"{jvm_options} "
        f'-Dlog4j2.configurationFile="{log4j}" -Dheadwater.log="{log}"',
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(settings.home / "spark-warehouse"),
        "spark.ui.showConsoleProgress": "false",
    }
    if settings.spark_master.startswith("local"):
        properties |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return properties


def spark_environment(settings: Settings) -> dict[str, str]:
    """Variables of a Spark process: our PySpark and our interpreter, whatever the shell says."""
    environment = {
        "SPARK_HOME": str(pyspark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "ARROW_DEFAULT_MEMORY_POOL": "system",  # 80 MB less in each worker
    }
    if settings.spark_master.startswith("local"):
        environment["SPARK_HOME"] = str(home_without_zip())
        environment["SPARK_LOCAL_IP"] = LOOPBACK  # the Spark UI binds to it as well
    return environment


def write_properties(folder: Path, properties: dict[str, str]) -> Path:
    """Spark reads its configuration from a file: arguments would show in the process list."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "spark.properties"
    file.write_text("".join(f"{key} {value}\n" for key, value in properties.items()))
    return file


def spark_session(
    settings: Settings, name: str, more: dict[str, str] | None = None, java: str | None = None
) -> SparkSession:
    """The Spark session of this process. Ingestion needs no jar: only its tasks touch data."""
    if java is None and has_class_archive():
        java = f"-XX:SharedArchiveFile={CLASS_ARCHIVE} {QUIET_ARCHIVE}"
    log = settings.logs / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    properties = spark_properties(settings, log, f"{SMALL} {java or ''}") | (more or {})
    # An idle stream asks Kafka for news four times a second instead of a hundred times.
    properties["spark.sql.streaming.pollingDelay"] = "250ms"
    properties["spark.python.daemon.module"] = WORKER
    properties["spark.app.name"] = f"headwater {name}"
    # What PySpark's own libraries have to say in Python belongs in the same log.
    logging.basicConfig(filename=log, level=logging.WARNING)
    file = write_properties(settings.home / name, properties)
    os.environ.update(spark_environment(settings))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {shlex.quote(str(file))} pyspark-shell"

    try:
        with _stderr_to(log):
            return SparkSession.builder.getOrCreate()
    except (PySparkException, OSError) as error:
        raise HeadwaterError(
            f"Spark did not start: {str(error).splitlines()[0]}",
            f"run `headwater doctor`; Spark's log: {log}",
        ) from error


def is_gone() -> bool:
    """Whether Spark's process has ended by itself."""
    process = getattr(SparkContext._gateway, "proc", None)
    return process is not None and process.poll() is not None


def stop_session(session: SparkSession, seconds: float = STOP_SECONDS) -> None:
    """Stop Spark and wait for the end of its process, so that nothing outlives this one."""
    gateway = SparkContext._gateway
    with suppress(Py4JError, OSError):  # the JVM may be gone already
        session.stop()
    process = getattr(gateway, "proc", None)
    if gateway is not None and process is not None:
        process.stdin.close()  # at which the JVM ends
        process.wait(seconds)
        gateway.shutdown_callback_server()  # its thread would hold on to Python's objects
        SparkContext._gateway = SparkContext._jvm = None


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """The JVM inherits stderr when it starts; what it says there belongs in its log."""
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
