"""A command under watch: CPU seconds and memory of its whole process tree, and its output."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import psutil

from headwater.local.services import log_tail
from ingestion.settings import Settings

HEADWATER = Path(sys.executable).with_name("headwater")
SAMPLE_SECONDS = 0.5  # adding up the memory of a large process takes milliseconds
STOP_SECONDS = 60
LONGEST_SECONDS = 3600


class RunError(Exception):
    """A process that is watched did not do what it was started for."""


class Sample(NamedTuple):
    """What a process tree has used up to a moment, and its memory then."""

    seconds: float = 0.0  # since the start
    cpu: float = 0.0
    mb: float = 0.0  # PSS: memory that processes share counts once


@dataclass
class Seen:
    """CPU seconds of a process when it was last seen."""

    parent: int
    own: float = 0.0
    reaped: float = 0.0  # of its children that have ended and were waited for
    ended: bool = False


class Watched:
    """A process and its descendants, sampled twice a second until the process ends."""

    def __init__(
        self, command: list[str], log: Path, folder: Path | None = None, **environment: str
    ) -> None:
        self.log = log
        self.name = " ".join([Path(command[0]).name, *command[1:3]])
        self.samples: list[Sample] = []
        self._seen: dict[int, Seen] = {}
        self._processes: dict[int, psutil.Process] = {}
        self._turn = threading.Lock()
        self._began = time.monotonic()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._root = self._process.pid
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._watcher.is_alive()

    @property
    def used(self) -> Sample:
        """CPU and wall seconds so far, or of the whole run once it has ended."""
        if self.running:
            self._sample()
        return self.samples[-1]

    def wait(self, timeout: float = LONGEST_SECONDS) -> None:
        """Wait for a successful end."""
        self._watcher.join(timeout)
        if self.running:
            raise RunError(f"{self.name} did not end within {timeout:.0f} s")
        if self._process.returncode != 0:
            raise RunError(f"{self.name} failed:\n{log_tail(self.log)}")

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> None:
        """Wait until the condition holds, which must be before the process ends."""
        end = time.monotonic() + timeout
        while not condition():
            if not self.running:
                raise RunError(f"{self.name} ended too early:\n{log_tail(self.log)}")
            if time.monotonic() > end:
                raise RunError(f"{self.name} did not get there within {timeout:.0f} s")
            time.sleep(0.1)

    def wait_for_output(self, text: str, timeout: float = 120) -> Sample:
        """Wait until the process has written this; returns what it had used by then."""
        self.wait_until(lambda: text in self.log.read_text(errors="replace"), timeout)
        return self.used

    def stop(self) -> None:
        """End the process, if it still runs."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.running:
                with suppress(ProcessLookupError):
                    os.kill(self._root, number)
                self._watcher.join(STOP_SECONDS)

    def _watch(self) -> None:
        # Not Popen.wait, since only wait4 tells what the process and its children have used.
        while not (ended := os.wait4(self._root, os.WNOHANG))[0]:
            self._sample()
            time.sleep(SAMPLE_SECONDS)
        _, status, usage = ended
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._settle(usage)

    def _sample(self) -> None:
        with self._turn:
            self._look()
            mb = sum(map(_pss, self._processes.values())) / 2**20
            self.samples.append(Sample(time.monotonic() - self._began, self._cpu(), mb))

    def _look(self) -> None:
        """Read the CPU times of every process of the tree, orphans of it included."""
        with suppress(psutil.Error):
            root = psutil.Process(self._root)
            for process in (root, *root.children(recursive=True)):
                if process.pid not in self._processes:
                    self._seen[process.pid] = Seen(process.ppid())
                    self._processes[process.pid] = process
        for pid, process in list(self._processes.items()):
            seen = self._seen[pid]
            try:
                times = process.cpu_times()
            except psutil.Error:
                seen.ended = True
                del self._processes[pid]
                continue
            seen.own = times.user + times.system
            seen.reaped = times.children_user + times.children_system

    def _settle(self, usage: resource.struct_rusage) -> None:
        """Take over the kernel's own figures of the process that has ended."""
        with self._turn:
            seen = self._seen.setdefault(self._root, Seen(os.getpid()))
            seen.reaped = usage.ru_utime + usage.ru_stime - seen.own
            for other in self._seen.values():
                other.ended = True
            self.samples.append(Sample(time.monotonic() - self._began, self._cpu()))

    def _cpu(self) -> float:
        """Of all processes, plus what the samples have missed of those that ended."""
        known: dict[int, float] = defaultdict(float)  # of ended children, by parent
        for seen in self._seen.values():
            if seen.ended:
                known[seen.parent] += seen.own + seen.reaped
        own = sum(seen.own for seen in self._seen.values())
        return own + sum(max(0.0, seen.reaped - known[pid]) for pid, seen in self._seen.items())


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def watch_headwater(
    settings: Settings,
    *arguments: str,
    checkout: Path | None = None,
    module: str | None = None,
    **environment: str,
) -> Watched:
    """A `headwater` command with these settings, of this checkout or of another one.

    `module` is run in the place of `headwater`.
    """
    command = [str(checkout / ".venv" / "bin" / "headwater" if checkout else HEADWATER)]
    if module is not None:
        command = [sys.executable, "-m", module]
    settings.logs.mkdir(parents=True, exist_ok=True)
    return Watched(
        [*command, *arguments],
        settings.logs / f"benchmark-{arguments[0]}.log",
        folder=checkout,
        HEADWATER_HOME=str(settings.home),
        HEADWATER_KAFKA_BOOTSTRAP_SERVERS=settings.bootstrap_servers,
        HEADWATER_STREAMS=str(settings.streams),
        **environment,
    )
