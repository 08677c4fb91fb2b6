"""Everything that must be right before the first record flows, each with its fix."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from headwater.local.jars import is_whole, jar_folder, needed_sets
from headwater.local.java import NEEDED_MODULE, find_java, which_java
from headwater.local.services import Service, port_holder, running_pid, services
from ingestion.catalog import open_catalog
from ingestion.errors import HeadwaterError
from ingestion.settings import Settings, java_home, unexported, worker_python
from ingestion.spark_home import CLASS_ARCHIVE, has_class_archive, pyspark_home

NEWEST_PYTHON = (3, 13)  # of those that this PySpark was tried with
MEMORY_GB = 4
DISK_GB = 3


@dataclass(frozen=True)
class Finding:
    check: str
    ok: bool
    found: str
    fix: str = ""


def examine(settings: Settings) -> list[Finding]:
    checks: list[Callable[[Settings], Finding]] = [
        _python,
        _worker_python,
        _java,
        _java_home,
        _memory,
        _disk,
        _jars,
        _quick_starts,
        _catalog,
        _dbt,
    ]
    findings = [check(settings) for check in checks]
    for service in services(settings):
        findings.append(_port(settings, service))
        findings.append(_service(settings, service))
    return findings


def _python(_: Settings) -> Finding:
    version = sys.version_info[:2]
    return Finding(
        "Python",
        (3, 11) <= version <= NEWEST_PYTHON,
        f"{sys.version.split()[0]} at {sys.executable}",
        "use Python 3.11 to 3.13: make PYTHON=python3.11 demo",
    )


def _worker_python(_: Settings) -> Finding:
    """Spark's workers take PYSPARK_PYTHON; Headwater sets it, other launchers may not."""
    set_to = worker_python()
    same = set_to is None or Path(set_to).resolve() == Path(sys.executable).resolve()
    return Finding(
        "Spark workers' Python",
        same,
        f"PYSPARK_PYTHON={set_to}" if set_to else f"this interpreter, PySpark at {pyspark_home()}",
        f"unset PYSPARK_PYTHON, or set it to {sys.executable}",
    )


def _java(_: Settings) -> Finding:
    try:
        java = find_java()
    except HeadwaterError as error:
        return Finding("Java", False, error.message, error.hint)
    return Finding("Java", True, f"Java {java.version} at {java.command}, with {NEEDED_MODULE}")


def _java_home(_: Settings) -> Finding:
    home, on_path = java_home(), which_java()
    if home is None:
        return Finding("JAVA_HOME", True, "not set; the PATH decides")
    agrees = on_path is None or on_path.resolve() == (home / "bin" / "java").resolve()
    return Finding(
        "JAVA_HOME",
        agrees,
        f"{home}, and `java` is {on_path}",
        "unset JAVA_HOME, or put its bin folder first on the PATH: two Javas are in play",
    )


def _memory(_: Settings) -> Finding:
    total = psutil.virtual_memory().total / 2**30
    return Finding(
        "Memory",
        total >= MEMORY_GB,
        f"{total:.1f} GB",
        f"{MEMORY_GB} GB are needed for a broker, a Thrift server and ingestion; "
        "lower HEADWATER_SPARK_DRIVER_MEMORY to 1g on a small machine",
    )


def _disk(settings: Settings) -> Finding:
    folder = next(one for one in (settings.home, *settings.home.parents) if one.exists())
    free = shutil.disk_usage(folder).free / 2**30
    return Finding(
        "Disk",
        free >= DISK_GB,
        f"{free:.1f} GB free at {folder}",
        f"free {DISK_GB} GB there, or set HEADWATER_HOME to another disk",
    )


def _jars(settings: Settings) -> Finding:
    missing = [one for one in needed_sets(settings) if not is_whole(jar_folder(settings, one))]
    found = f"missing or damaged: {', '.join(missing)}" if missing else "all there"
    return Finding(
        "Jars", not missing, f"{found} ({settings.cache / 'jars'})", "run: headwater jars"
    )


def _quick_starts(_: Settings) -> Finding:
    found = str(CLASS_ARCHIVE) if has_class_archive() else "none; `headwater jars` prepares them"
    return Finding("Quick starts of Spark", True, found)


def _catalog(settings: Settings) -> Finding:
    where = settings.catalog_uri or str(settings.catalog_db)
    if settings.catalog_type == "embedded" and not settings.catalog_db.exists():
        return Finding("Catalog", True, f"none yet; `headwater up` makes it at {where}")
    try:
        names = open_catalog(settings).list_namespaces()
    except HeadwaterError as error:
        return Finding("Catalog", False, error.message, error.hint)
    return Finding("Catalog", True, f"{where}: {', '.join('.'.join(name) for name in names)}")


def _dbt(_: Settings) -> Finding:
    """dbt reads the environment only, never `.env`."""
    hidden = [name for name in unexported() if name.startswith("HEADWATER_THRIFT_")]
    return Finding(
        "dbt's profile",
        not hidden,
        f"does not see {', '.join(hidden)} from .env" if hidden else "sees the same settings",
        "export .env in the shell that runs dbt: set -a; . ./.env; set +a",
    )


def _port(settings: Settings, service: Service) -> Finding:
    check = f"Port {service.port}"
    if service.external:
        return Finding(check, True, f"not ours: {service.external} is set")
    if running_pid(settings, service):
        return Finding(check, True, f"held by our {service.title}")
    holder = port_holder(service.port)
    return Finding(
        check,
        holder is None,
        f"taken by {holder}" if holder else f"free for the {service.title}",
        f"stop that process, or set {service.port_setting} to a free port",
    )


def _service(settings: Settings, service: Service) -> Finding:
    if not service.external and not running_pid(settings, service):
        return Finding(service.title, True, "not started; `headwater up` starts it")
    problem = service.problem(settings)
    fix = f"check {service.external}" if service.external else "headwater down, then headwater up"
    return Finding(service.title, problem is None, problem or "answers", fix)
