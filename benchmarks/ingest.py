"""How much CPU and memory ingestion takes: `make bench`.

Produces a backlog of stock prices, drains it with a cold `headwater ingest --once`, once as the
stream stands, forwarding to another topic, and once without; prints rows a second, CPU seconds per
million rows and peak memory. The local stack must not be running elsewhere on the same ports; the
benchmark keeps its own state and removes it.
"""

import os
import tempfile
import time
from pathlib import Path

import ingestion
from benchmarks.measure import Watched
from demo.generators import Shares
from demo.produce import produce
from headwater.console import console, table
from headwater.local.services import borrowed_stack, wait_ready
from ingestion.settings import Settings

ROWS = int(os.environ.get("ROWS", "1000000"))
ROUNDS = 2


def without_forward(folder: Path) -> Path:
    """The stream file of stocks, but for its last section."""
    text = (Path(ingestion.__file__).parent / "streams" / "stocks.yml").read_text()
    folder.mkdir()
    (folder / "stocks.yml").write_text(text.split("\nforward:")[0] + "\n")
    return folder


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(home=Path(home), kafka_port=29192)
        with borrowed_stack(settings, lambda _: None, only=("kafka",)) as launched:
            wait_ready(settings, launched, lambda _: None)
            plain = settings.model_copy(update={"streams": without_forward(Path(home) / "streams")})
            for number in range(2 * ROUNDS):
                chosen = (plain, settings)[number % 2]
                began = time.monotonic()
                produce(settings, "stocks", ROWS, None, number, Shares(bad=0.01), lambda _: None)
                produced = time.monotonic() - began
                watched = Watched(chosen, "ingest", "stocks", "--once")
                watched.wait()
                rows.append(
                    (
                        "forwarded" if chosen is settings else "landed",
                        ROWS,
                        ROWS / produced,
                        watched.seconds,
                        ROWS / watched.seconds,
                        watched.cpu,
                        watched.cpu * 1e6 / ROWS,
                        watched.peak_mb,
                    )
                )
    columns = ["", "records", "produced/s", "wall s", "records/s", "CPU s"]
    columns += ["CPU s per million", "peak MB"]
    console.print(table("Drain a backlog with a cold `headwater ingest --once`", columns, rows))


if __name__ == "__main__":
    main()
