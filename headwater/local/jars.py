"""Jars, resolved once by the Ivy inside PySpark, from pins, into folders that never change.

A folder appears under its final name only when it is whole: Ivy writes beside it, and one rename
publishes it. The name holds a digest of the pins, so another set of versions is another folder.
"""

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from xml.sax.saxutils import quoteattr

from headwater.console import advance_to, progress_bar
from headwater.local.java import find_java
from ingestion.errors import HeadwaterError
from ingestion.settings import Settings, child_environment
from ingestion.spark_home import pyspark_home

PINS = Path(__file__).with_name("jars.toml")
MANIFEST = "manifest.json"

Report = Callable[[int, int], None]


def needed_sets(settings: Settings) -> list[str]:
    """The jar sets that these settings call for."""
    return spark_sets(settings) + (["kafka"] if settings.kafka_bootstrap_servers is None else [])


def spark_sets(settings: Settings) -> list[str]:
    """Those of a Spark process that reads and writes tables."""
    return ["spark", "s3"] if settings.warehouse_location.startswith("s3") else ["spark"]


def jar_folder(settings: Settings, name: str) -> Path:
    digest = hashlib.sha256(json.dumps(_pins(name), sort_keys=True).encode()).hexdigest()[:12]
    return settings.cache / "jars" / f"{name}-{digest}"


def is_whole(folder: Path) -> bool:
    """Every jar that was resolved is there, with its size."""
    try:
        sizes: dict[str, int] = json.loads((folder / MANIFEST).read_text())
        return all((folder / jar).stat().st_size == size for jar, size in sizes.items())
    except (OSError, ValueError):
        return False


def ensure_jars(settings: Settings, names: Iterable[str]) -> list[Path]:
    """The folders of these jar sets; what is missing is fetched now, with a progress bar."""
    names = list(names)
    missing = [name for name in names if not is_whole(jar_folder(settings, name))]
    if missing:
        find_java()
        with progress_bar() as bar, ThreadPoolExecutor(len(missing)) as pool:
            running = []
            for name in missing:
                task = bar.add_task(f"Fetching the {name} jars, once", total=None)
                report = partial(advance_to, bar, task)
                running.append(pool.submit(resolve, settings, name, report))
            for future in running:
                future.result()
    return [jar_folder(settings, name) for name in names]


def classpath(folders: Iterable[Path]) -> str:
    return ":".join(f"{folder}/*" for folder in folders)


def resolve(settings: Settings, name: str, report: Report) -> None:
    """Fetch one jar set into its folder."""
    final = jar_folder(settings, name)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=final.parent) as work:
            made = Path(work) / "made"
            _run_ivy(settings, name, Path(work), made, report)
            sizes = {jar.name: jar.stat().st_size for jar in sorted(made.iterdir())}
            (made / MANIFEST).write_text(json.dumps(sizes, indent=1))
            _publish(made, final)
    except OSError as error:
        raise HeadwaterError(
            f"the {name} jars could not be written to {final.parent}: {error.strerror}",
            "free some space or make it writable, or name another folder in HEADWATER_CACHE",
        ) from error


def _publish(made: Path, final: Path) -> None:
    if final.exists() and not is_whole(final):
        # Damaged from outside. Processes that run from it keep the files they have open.
        shutil.rmtree(final)
    try:
        made.rename(final)
    except OSError:
        if not is_whole(final):  # otherwise another process was faster, with the same result
            raise


def _run_ivy(settings: Settings, name: str, work: Path, made: Path, report: Report) -> None:
    root = f" root={quoteattr(settings.maven_mirror)}" if settings.maven_mirror else ""
    (work / "settings.xml").write_text(
        '<ivysettings><settings defaultResolver="maven"/><resolvers>'
        f'<ibiblio name="maven" m2compatible="true"{root}/></resolvers></ivysettings>'
    )
    (work / "ivy.xml").write_text(_ivy_module(name))
    ivy = next((pyspark_home() / "jars").glob("ivy-*.jar"))
    command = [str(find_java().command), "-jar", str(ivy), "-settings", str(work / "settings.xml")]
    command += ["-ivy", str(work / "ivy.xml"), "-cache", str(work / "cache"), "-confs", "default"]
    command += ["-retrieve", f"{made}/[artifact]-[revision].[ext]"]
    found = fetched = 0
    output: list[str] = []
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=child_environment(),
    ) as ivy_process:
        for line in ivy_process.stdout or ():
            output.append(line.rstrip())
            found += line.startswith("\tfound ")
            fetched += "[SUCCESSFUL ]" in line
            report(fetched, found)
    log = settings.logs / f"jars-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("\n".join(output))
    if ivy_process.returncode != 0 or not made.is_dir() or fetched < len(_pins(name)["jars"]):
        raise HeadwaterError(
            f"the {name} jars could not be fetched: {_first_problem(output)}",
            f"check the network, or name a mirror in HEADWATER_MAVEN_MIRROR; full log: {log}",
        )


def _ivy_module(name: str) -> str:
    pins = _pins(name)
    wanted = [coordinate.split(":") for coordinate in pins["jars"]]
    lines = [
        f"<dependency org={quoteattr(org)} name={quoteattr(jar)} rev={quoteattr(version)}"
        ' conf="default"/>'
        for org, jar, version in wanted
    ]
    lines += [f"<exclude org={quoteattr(org)}/>" for org in pins.get("exclude", [])]
    return (
        '<ivy-module version="2.0"><info organisation="headwater" module="jars"/>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def _first_problem(output: list[str]) -> str:
    for line in output:
        if re.search(r"SERVER ERROR|not found|FAILED|Host .* not found|No space|Exception", line):
            return re.sub(r"\s+", " ", line).strip(": \t")
    return "Ivy gave no reason"


def _pins(name: str) -> dict[str, list[str]]:
    pins: dict[str, dict[str, list[str]]] = tomllib.loads(PINS.read_text())
    return pins[name]
