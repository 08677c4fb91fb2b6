"""Several streams in one process: each is kept running, or stopped with its reason.

A stream that fails is started again from its table, with a new checkpoint, after a pause that grows
with each failure in a row. What cannot pass by itself, or has failed too often, stops that stream
and no other. Every restart is told.
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
        return any(one.is_active for one in self.streams)

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
        for one in self.streams:
            if one.is_active and one.lease.stop_asked:
                self._end(one, Supervised.STOPPED)
                self._tell(one, "stopped", "stopped, as asked by `headwater stop`")
            elif one.state == Supervised.WAITING and time.monotonic() >= one.due:
                self._start(one)
            elif one.state == Supervised.RUNNING:
                self._look(one)

    def stop(self) -> None:
        """Let the batches under way commit, and end."""
        for one in self.streams:
            if one.is_active:
                self._end(one, Supervised.STOPPED)

    def _start(self, one: Supervised) -> None:
        run = None
        try:
            accept = self._accept_gaps and not one.restarts  # what was lost since, nobody has seen
            run = Run(self._spark, self._settings, one.stream, one.progress, accept)
            run.start(self._once)
        except Exception as error:  # whatever it is, the other streams go on
            if run is not None:
                run.stop()
            self._failed(one, error)
            return
        for gap in run.gaps:
            self._tell(one, "gap", f"goes on without {gap}, which Kafka has deleted")
        one.run, one.state = run, Supervised.RUNNING
        one.commits_before = one.progress.commits
        one.lease.lender = run

    def _look(self, one: Supervised) -> None:
        assert one.run is not None  # noqa: S101
        if one.progress.commits > one.commits_before:
            one.failures = 0
        if one.run.is_running and one.lease.taken_by is None:
            return
        one.lease.lender = None
        one.run.stop()
        failure = one.run.failure if one.run.failed else None
        if one.lease.taken_by or failure:
            self._failed(one, failure)
        else:
            self._end(one, Supervised.DONE)

    def _failed(self, one: Supervised, error: BaseException | None) -> None:
        why = self._why(one, error)
        if not why.may_pass or one.failures >= self._patience.restarts:
            one.reason = why
            self._end(one, Supervised.FAILED)
            tries = f" after {one.failures} restarts in vain" if one.failures else ""
            self._tell(
                one,
                "failed",
                f"stopped{tries}: {why.message}",
                aloud=self.is_active,  # the last one's reason is what the process ends with
                hint=why.hint,
            )
            return
        one.failures += 1
        one.restarts += 1
        pause = self._patience.pause(one.failures)
        one.due = time.monotonic() + pause
        one.state = Supervised.WAITING
        self._tell(
            one,
            "restart",
            f"restart {one.failures} of {self._patience.restarts} in {pause:g} s, from the table: "
            f"{why.message}",
            reason=why.message,
            pause_seconds=pause,
        )

    def _why(self, one: Supervised, error: BaseException | None) -> HeadwaterError:
        try:
            one.lease.look()
        except Exception as unknown:  # the catalog is away: the lease cannot be looked at
            error = error or unknown
        if one.lease.taken_by is not None:
            told = reason(self._settings, one.stream, error).message if error else "it was paused"
            return TakenOverError(
                f"stream {one.stream.name} is written by {one.lease.taken_by.who} now: {told}",
                "that one goes on from the table; there is nothing to do here",
            )
        assert error is not None  # noqa: S101
        return reason(self._settings, one.stream, error)

    def _end(self, one: Supervised, state: str) -> None:
        one.lease.lender = None
        if one.run is not None:
            one.run.stop()
            if one.reason is None and one.run.failed and one.run.failure:  # while it stopped
                one.reason = reason(self._settings, one.stream, one.run.failure)
                state = Supervised.FAILED
        one.state = state
        one.lease.release()

    def _tell(
        self, one: Supervised, event: str, text: str, aloud: bool = True, **fields: Any
    ) -> None:
        name = one.stream.name
        self._emit(event, f"{name}: {text}" if aloud else "", stream=name, message=text, **fields)
