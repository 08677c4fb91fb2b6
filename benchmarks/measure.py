"""A command under watch: its CPU seconds, its memory, and what it says."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from ingestion.settings import Settings

HEADWATER = Path(sys.executable).with_name("headwater")


class Watched:
    """A `headwater` command with its JVM, sampled ten times a second."""

    def __init__(self, settings: Settings, *arguments: str, **extra: str) -> None:
        environment = {
            **os.environ,
            "HEADWATER_HOME": str(settings.home),
            "HEADWATER_KAFKA_PORT": str(settings.kafka_port),
            "HEADWATER_STREAMS": str(settings.streams),
            **extra,
        }
        self.began = time.monotonic()
        self.seconds = 0.0
        self.samples: list[tuple[float, float]] = []  # (seconds since the start, MB)
        self.process = subprocess.Popen(
            [str(HEADWATER), *arguments], env=environment, stdout=subprocess.DEVNULL
        )
        self._cpu: dict[int, float] = {}
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    @property
    def cpu(self) -> float:
        return sum(self._cpu.values())

    @property
    def peak_mb(self) -> float:
        return max((mb for _, mb in self.samples), default=0.0)

    @property
    def java(self) -> psutil.Process | None:
        found = psutil.Process(self.process.pid).children(recursive=True)
        return next((one for one in found if one.name() == "java"), None)

    def wait(self) -> None:
        if self.process.wait() != 0:
            raise SystemExit("ingestion failed")
        self._watcher.join()

    def _watch(self) -> None:
        root = psutil.Process(self.process.pid)
        while self.process.poll() is None:
            memory = 0
            try:
                for one in (root, *root.children(recursive=True)):
                    times = one.cpu_times()
                    self._cpu[one.pid] = times.user + times.system
                    memory += one.memory_info().rss
            except psutil.Error:
                pass
            self.seconds = time.monotonic() - self.began
            self.samples.append((self.seconds, memory / 2**20))
            time.sleep(0.1)
