"""The process from which Spark forks its Python workers: with our code loaded, none loads it again.

Spark starts it by `spark.python.daemon.module`.
"""

from pyspark.daemon import manager

import ingestion.landing  # noqa: F401 - what the workers need

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]
