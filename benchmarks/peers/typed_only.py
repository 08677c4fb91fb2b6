"""`headwater` with the workers of `typed_only_worker`."""

from headwater.cli import main
from ingestion import spark

spark.WORKER = "benchmarks.peers.typed_only_worker"

if __name__ == "__main__":
    main()
