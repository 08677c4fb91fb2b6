"""What people see of running streams: a live line each, an event a line, a table at the end."""

import time
from collections.abc import Callable
from typing import Any

from rich.live import Live
from rich.text import Text

from headwater.console import Events, cell, console, say, table
from ingestion.background import repeated
from ingestion.supervise import LOOK_SECONDS, Supervised, Supervisor

LAG_SECONDS = 5.0


def watch(supervisor: Supervisor, events: Events, stop: Callable[[], bool], live: bool) -> None:
    """Look after the streams and show how they do, until none is active or a stop is asked for."""
    began = time.monotonic()
    reported = dict.fromkeys((one.stream.name for one in supervisor.streams), 0)
    with (
        # Aside, and not waited for: a broker that is away holds nobody up.
        repeated(lambda: _ask_for_lag(supervisor.streams), LAG_SECONDS, join_seconds=0),
        Live(console=console, refresh_per_second=4, transient=True) as screen,
    ):
        while not stop() and supervisor.is_active:
            supervisor.step()
            if live:
                screen.update(Text("\n".join(_line(one, began) for one in supervisor.streams)))
            for one in supervisor.streams:
                if not live and one.run and one.progress.commits > reported[one.stream.name]:
                    reported[one.stream.name] = one.progress.commits
                    one.lag = one.run.lag
                    events.emit("commit", _line(one, began), **_numbers(one, began))
            time.sleep(LOOK_SECONDS)


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
        "undeclared": done.undeclared,
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
            names = ", ".join(sorted(one.progress.undeclared_names)[:5])
            say(
                f"{one.progress.undeclared:,} records of {one.stream.name} have fields that "
                f"{one.stream.file.name} does not declare, such as {names}; `_kafka_value` has them"
            )
