"""Several streams in one process: each is kept running, or stopped with its reason.

A stream that fails is started again from its table, with a new checkpoint, after a pause that grows
with each failure in a row. A failure that cannot pass by itself, or too many in a row, stops that
stream and no other. Every restart is reported.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from ingestion.commit import Progress
from ingestion.errors import HeadwaterError, TakenOverError
from ingestion.lease import Lease
from ingestion.run import Run, reason
from ingestion.settings import Settings
from ingestion.stream import Stream

LOOK_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 60.0

Emit = Callable[..., None]  # (event, text for people, **fields for machines)


@dataclass(frozen=True)
class Patience:
    """How often a stream may fail in a row, and the pause after the first time; it doubles."""

    restarts: int
    pause_seconds: float

    def pause(self, failures: int) -> float:
        return min(self.pause_seconds * 2.0 ** (failures - 1), LONGEST_PAUSE_SECONDS)


class Supervised:
    """One stream under supervision. Its state is one of the words below."""

    WAITING, RUNNING, DONE, STOPPED, FAILED = "waiting", "running", "done", "stopped", "failed"

    def __init__(self, stream: Stream, lease: Lease) -> None:
        self.stream = stream
        self.lease = lease
        self.progress = Progress()
        self.state = self.WAITING
        self.reason: HeadwaterError | None = None
        self.restarts = 0
        self.run: Run | None = None
        self.lag: int | None = None
        self.failures = 0  # in a row, without a commit in between
        self.due = 0.0
        self.commits_before = 0

    @property
    def is_active(self) -> bool:
        return self.state in (self.WAITING, self.RUNNING)

    @property
    def last_commit(self) -> datetime | None:
        """By the table, also before the first commit of this process."""
        return self.run.last_commit if self.run else None


class Supervisor:
    """Keeps streams running until they end, fail for good, or are asked to stop."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        streams: list[Supervised],
        once: bool,
        accept_gaps: bool,
        emit: Emit,
    ) -> None:
        self.streams = streams
        self._spark = spark
        self._settings = settings
        self._once = once
        self._accept_gaps = accept_gaps
        self._emit = emit
        # A bounded run ends at its first failure: who started it sees that, and may start it again.
        restarts = 0 if once else settings.restarts
        self._patience = Patience(restarts, settings.restart_pause_seconds)

    @property
    def is_active(self) -> bool:
        return any(kept.is_active for kept in self.streams)

    def run(self, stop: Callable[[], bool], look: Callable[[], None]) -> None:
        """Look after the streams until none is active or a stop is asked for.

        `look` is called in between, for whoever shows how they do.
        """
        try:
            while not stop() and self.is_active:
                self.step()
                look()
                time.sleep(LOOK_SECONDS)
        finally:
            self.stop()
            look()

    def step(self) -> None:
        """Look after each stream once."""
        for kept in self.streams:
            if kept.is_active and kept.lease.stop_asked:
                self._end(kept, Supervised.STOPPED)
                self._tell(kept, "stopped", "stopped, as asked by `headwater stop`")
            elif kept.state == Supervised.WAITING and time.monotonic() >= kept.due:
                self._start(kept)
            elif kept.state == Supervised.RUNNING:
                self._look(kept)

    def stop(self) -> None:
        """Let the batches under way commit, and end."""
        for kept in self.streams:
            if kept.is_active:
                self._end(kept, Supervised.STOPPED)

    def _start(self, kept: Supervised) -> None:
        run = None
        try:
            # A gap that came after a restart was seen by nobody.
            accept = self._accept_gaps and not kept.restarts
            run = Run(self._spark, self._settings, kept.stream, kept.progress, accept)
            run.start(self._once)
        except Exception as error:  # whatever it is, the other streams go on
            if run is not None:
                run.stop()
            self._failed(kept, error)
            return
        for gap in run.gaps:
            self._tell(kept, "gap", f"goes on without {gap}, which Kafka has deleted")
        kept.run, kept.state = run, Supervised.RUNNING
        kept.commits_before = kept.progress.commits
        kept.lease.lender = run

    def _look(self, kept: Supervised) -> None:
        assert kept.run is not None  # noqa: S101
        if kept.progress.commits > kept.commits_before:
            kept.failures = 0
        if kept.run.is_running and kept.lease.taken_by is None:
            return
        kept.lease.lender = None
        kept.run.stop()
        failure = kept.run.failure if kept.run.failed else None
        if kept.lease.taken_by or failure:
            self._failed(kept, failure)
        else:
            self._end(kept, Supervised.DONE)

    def _failed(self, kept: Supervised, error: BaseException | None) -> None:
        why = self._why(kept, error)
        if not why.may_pass or kept.failures >= self._patience.restarts:
            kept.reason = why
            self._end(kept, Supervised.FAILED)
            tries = f" after {kept.failures} restarts" if kept.failures else ""
            self._tell(
                kept,
                "failed",
                f"stopped{tries}: {why.message}",
                aloud=self.is_active,  # the last one's reason is what the process ends with
                hint=why.hint,
            )
            return
        kept.failures += 1
        kept.restarts += 1
        pause = self._patience.pause(kept.failures)
        kept.due = time.monotonic() + pause
        kept.state = Supervised.WAITING
        self._tell(
            kept,
            "restart",
            f"restart {kept.failures} of {self._patience.restarts} in {pause:g} s, from the table: "
            f"{why.message}",
            reason=why.message,
            pause_seconds=pause,
        )

    def _why(self, kept: Supervised, error: BaseException | None) -> HeadwaterError:
        try:
            kept.lease.look()
        except Exception as unknown:  # the catalog is unreachable, so the lease cannot be checked
            error = error or unknown
        if kept.lease.taken_by is not None:
            why = reason(self._settings, kept.stream, error).message if error else "it was paused"
            return TakenOverError(
                f"stream {kept.stream.name} is written by {kept.lease.taken_by.who} now: {why}",
                "that process goes on from the table; there is nothing to do here",
            )
        assert error is not None  # noqa: S101
        return reason(self._settings, kept.stream, error)

    def _end(self, kept: Supervised, state: str) -> None:
        kept.lease.lender = None
        if kept.run is not None:
            kept.run.stop()
            if kept.reason is None and kept.run.failed and kept.run.failure:  # while it stopped
                kept.reason = reason(self._settings, kept.stream, kept.run.failure)
                state = Supervised.FAILED
        kept.state = state
        kept.lease.release()

    def _tell(
        self, kept: Supervised, event: str, text: str, aloud: bool = True, **fields: Any
    ) -> None:
        name = kept.stream.name
        self._emit(event, f"{name}: {text}" if aloud else "", stream=name, message=text, **fields)
