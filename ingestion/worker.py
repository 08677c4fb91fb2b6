"""The process from which Spark forks its Python workers: with our code loaded, none loads it again.

Spark starts it by `spark.python.daemon.module`.
"""

import gc

from pyspark.daemon import manager

import ingestion.landing  # noqa: F401 - what the workers need


def main() -> None:
    gc.freeze()  # what is loaded stays, so no collection in a worker looks at it
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
