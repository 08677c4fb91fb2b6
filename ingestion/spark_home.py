"""Where PySpark is installed, and two things that make its processes start faster."""

import importlib.util
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from ingestion.errors import HeadwaterError

# Beside the installation, so that both go together. The class archive knows the jars by their path.
QUICK_STARTS = Path(sys.prefix) / "quick-starts"
CLASS_ARCHIVE = QUICK_STARTS / "ingest.jsa"  # which Java maps instead of reading the jars


@cache
def pyspark_home() -> Path:
    """Where PySpark is installed, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise HeadwaterError("PySpark is not installed here", "run: make setup")
    return Path(spec.origin).parent


def home_without_zip() -> Path:
    """A SPARK_HOME without `python/lib/pyspark.zip`.

    Spark puts that zip in front of its Python processes' path, and each of them would compile all
    of PySpark again. Without it they import the installed package.
    """
    try:
        QUICK_STARTS.mkdir(exist_ok=True)
        for name in ("bin", "jars"):
            with suppress(FileExistsError):
                (QUICK_STARTS / name).symlink_to(pyspark_home() / name)
    except OSError:  # this user may not write there: starts are slower
        return pyspark_home()
    return QUICK_STARTS


def has_class_archive() -> bool:
    """Whether there is one that was made after PySpark was installed."""
    try:
        made = CLASS_ARCHIVE.stat().st_mtime
    except FileNotFoundError:
        return False
    return made > (pyspark_home() / "jars").stat().st_mtime
