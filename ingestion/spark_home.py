"""Where PySpark is installed, and two things that make its processes start faster."""

import importlib.util
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from ingestion.errors import HeadwaterError
from ingestion.settings import Settings


@cache
def pyspark_home() -> Path:
    """Where PySpark is installed, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise HeadwaterError("PySpark is not installed here", "run: make setup")
    return Path(spec.origin).parent


def home_without_zip(settings: Settings) -> Path:
    """A SPARK_HOME without `python/lib/pyspark.zip`.

    Spark puts that zip in front of its Python processes' path, and each of them would compile all
    of PySpark again. Without it they import the installed package.
    """
    home = _derived(settings)
    home.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars"):
        with suppress(FileExistsError):
            (home / name).symlink_to(pyspark_home() / name)
    return home


def class_archive(settings: Settings) -> Path:
    """The classes of ingestion's JVM in a file, which Java maps instead of reading the jars."""
    return _derived(settings) / "ingest.jsa"


def has_class_archive(settings: Settings) -> bool:
    """Whether there is one that was made after PySpark was installed."""
    file = class_archive(settings)
    return file.exists() and file.stat().st_mtime > (pyspark_home() / "jars").stat().st_mtime


def _derived(settings: Settings) -> Path:
    """A folder for this installation, whose paths the class archive holds."""
    return settings.cache / f"spark-{sha256(bytes(pyspark_home())).hexdigest()[:12]}"
