"""Which Java runs Spark and Kafka, and whether it can."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ingestion.errors import HeadwaterError
from ingestion.settings import java_home

OLDEST = 17
# Spark's launcher asks for it; runtimes trimmed with jlink often lack it.
NEEDED_MODULE = "jdk.incubator.vector"
INSTALL_HINT = f"install a full JDK {OLDEST} or newer, or point JAVA_HOME at one"


@dataclass(frozen=True)
class Java:
    command: Path
    version: int
    modules: frozenset[str]


@cache
def find_java() -> Java:
    """The Java that Spark's launcher would take: JAVA_HOME first, then the PATH."""
    home = java_home()
    if home and not (home / "bin" / "java").exists():
        raise HeadwaterError(f"JAVA_HOME is {home}, but there is no bin/java in it", INSTALL_HINT)
    command = home / "bin" / "java" if home else which_java()
    if command is None:
        raise HeadwaterError(
            "no Java found: neither JAVA_HOME nor the PATH names one", INSTALL_HINT
        )
    version = _run(command, "-version")
    match = re.search(r'version "(\d+)(?:\.(\d+))?', version)
    if not match:
        raise HeadwaterError(f"{command} -version said {version[:200]!r}", INSTALL_HINT)
    major = int(match[2] or 0) if match[1] == "1" else int(match[1])
    if major < OLDEST:
        raise HeadwaterError(f"{command} is Java {major}; Spark 4 needs {OLDEST}", INSTALL_HINT)
    modules = frozenset(
        line.split("@")[0] for line in _run(command, "--list-modules").splitlines() if line
    )
    if NEEDED_MODULE not in modules:
        raise HeadwaterError(
            f"{command} lacks the module {NEEDED_MODULE}, which Spark's launcher asks for",
            INSTALL_HINT,
        )
    return Java(command, major, modules)


def which_java() -> Path | None:
    found = shutil.which("java")
    return Path(found) if found else None


def _run(command: Path, argument: str) -> str:
    try:
        done = subprocess.run(
            [str(command), argument], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError as error:
        raise HeadwaterError(f"{command} does not run: {error.strerror}", INSTALL_HINT) from error
    return done.stdout + done.stderr
