"""What people see of running streams: a live line each, an event a line, a table at the end."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.live import Live
from rich.text import Text

from headwater.console import Events, cell, console, say, table
from ingestion.background import repeated
from ingestion.supervise import Supervised

LAG_SECONDS = 5.0


@contextmanager
def watching(streams: list[Supervised], events: Events, live: bool) -> Iterator[Callable[[], None]]:
    """Gives a function that shows how the streams do now: call it again and again."""
    began = time.monotonic()
    reported = dict.fromkeys((stream.stream.name for stream in streams), 0)

    def look() -> None:
        if live:
            screen.update(Text("\n".join(_line(stream, began) for stream in streams)))
            return
        for stream in streams:
            commits = stream.progress.commits
            if stream.run and commits > reported[stream.stream.name]:
                reported[stream.stream.name] = commits
                stream.lag = stream.run.lag
                events.emit("commit", _line(stream, began), **_numbers(stream, began))

    with (
        # Aside, and not waited for: a broker that is away holds nobody up.
        repeated(lambda: _ask_for_lag(streams), LAG_SECONDS, join_seconds=0),
        Live(console=console, refresh_per_second=4, transient=True) as screen,
    ):
        yield look


def _ask_for_lag(streams: list[Supervised]) -> None:
    for one in streams:
        if one.run is not None:
            one.lag = one.run.lag


def _line(one: Supervised, began: float) -> str:
    numbers = _numbers(one, began)
    state = "" if one.state == Supervised.RUNNING else f" ({one.state})"
    return (
        f"{one.stream.name}{state}: {cell(numbers['rows'])} rows, "
        f"{numbers['rows_per_second']:,.0f} rows/s, "
        f"lag {cell(numbers['lag'])}, {cell(numbers['errors'])} errors, "
        f"last commit {cell(numbers['last_commit'])}"
    )


def _numbers(one: Supervised, began: float) -> dict[str, Any]:
    done = one.progress
    return {
        "stream": one.stream.name,
        "state": one.state,
        "rows": done.rows,
        "rows_per_second": done.rows / max(time.monotonic() - began, 1e-9),
        "lag": one.lag,
        "errors": sum(done.errors.values()),
        "undeclared": sorted(done.undeclared),
        "commits": done.commits,
        "restarts": one.restarts,
        "last_commit": done.last_commit,
    }


def summary(streams: list[Supervised], events: Events, seconds: float) -> None:
    """What the streams did in this process."""
    if events.as_json:
        began = time.monotonic() - seconds
        for one in streams:
            events.emit("summary", "", **_numbers(one, began), by_type=one.progress.errors)
        return
    columns = ["table", "rows", "of these errors", "commits", "restarts", "state", "seconds"]
    rows = [
        (
            one.stream.table,
            one.progress.rows,
            ", ".join(f"{kind} {n:,}" for kind, n in one.progress.errors.items() if n) or "none",
            one.progress.commits,
            one.restarts,
            one.state,
            seconds,
        )
        for one in streams
    ]
    console.print(table("Landed", columns, rows))
    for one in streams:
        if one.progress.undeclared:
            names = ", ".join(sorted(one.progress.undeclared)[:5])
            say(
                f"records of {one.stream.name} have fields that {one.stream.file.name} does not "
                f"declare, such as {names}; `_kafka_value` has them"
            )
