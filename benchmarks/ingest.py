"""How much CPU and memory ingestion takes: `make bench`.

Produces a backlog of stock prices, drains it with a cold `headwater ingest --once`, once as the
stream stands, forwarding to another topic, and once without; prints rows a second, CPU seconds per
million rows and peak memory. The local stack must not be running elsewhere on the same ports; the
benchmark keeps its own state and removes it.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

import ingestion
from headwater.console import console, table
from headwater.generators import Shares
from headwater.produce import produce
from headwater.services import borrowed_stack, wait_ready
from headwater.settings import Settings

ROWS = int(os.environ.get("ROWS", "1000000"))
ROUNDS = 2


def without_forward(folder: Path) -> Path:
    """The stream file of stocks, but for its last section."""
    text = (Path(ingestion.__file__).parent / "streams" / "stocks.yml").read_text()
    folder.mkdir()
    (folder / "stocks.yml").write_text(text.split("\nforward:")[0] + "\n")
    return folder


def drain(settings: Settings) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and peak MB of one `headwater ingest --once`, JVM included."""
    environment = {
        **os.environ,
        "HEADWATER_HOME": str(settings.home),
        "HEADWATER_KAFKA_PORT": str(settings.kafka_port),
        "HEADWATER_STREAMS": str(settings.streams),
    }
    command = [str(Path(sys.executable).with_name("headwater")), "ingest", "stocks", "--once"]
    began = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    cpu: dict[int, float] = {}
    peak = 0.0

    def watch() -> None:
        nonlocal peak
        root = psutil.Process(process.pid)
        while process.poll() is None:
            memory = 0
            try:
                for one in (root, *root.children(recursive=True)):
                    times = one.cpu_times()
                    cpu[one.pid] = times.user + times.system
                    memory += one.memory_info().rss
            except psutil.Error:
                pass
            peak = max(peak, memory / 2**20)
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    if process.wait() != 0:
        raise SystemExit("ingestion failed")
    watcher.join()
    return time.monotonic() - began, sum(cpu.values()), peak


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
                wall, cpu, peak = drain(chosen)
                rows.append(
                    (
                        "forwarded" if chosen is settings else "landed",
                        ROWS,
                        ROWS / produced,
                        wall,
                        ROWS / wall,
                        cpu,
                        cpu * 1e6 / ROWS,
                        peak,
                    )
                )
    columns = ["", "records", "produced/s", "wall s", "records/s", "CPU s"]
    columns += ["CPU s per million", "peak MB"]
    console.print(table("Drain a backlog with a cold `headwater ingest --once`", columns, rows))


if __name__ == "__main__":
    main()
