"""What people see: one console, tables, progress bars, events of long-running work."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from ingestion.errors import HeadwaterError

console = Console(highlight=False, emoji=False)
if not console.is_terminal:  # a file or a pipe: wide enough for the tables
    console.width = max(console.width, 110)
stderr = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def show_error(error: HeadwaterError, as_json: bool = False) -> None:
    if as_json:
        fields = {"event": "error", "message": error.message, "hint": error.hint}
        line = json.dumps({"time": datetime.now(UTC).isoformat(), **fields})
        stderr.print(line, markup=False)
        return
    for line in error.message.splitlines():
        stderr.print(f"[red]✗[/] {escape(line)}")
    if error.hint:
        stderr.print(f"  → {escape(error.hint)}")


def escape(text: str) -> str:
    """Text that came from outside, safe from rich's markup."""
    return text.replace("[", r"\[")


def say(text: str) -> None:
    console.print(f"  {escape(text)}")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table whose numbers are grouped in thousands and stand on the right."""
    made = Table(
        title=title, title_justify="left", title_style="bold", header_style="dim", box=SIMPLE_HEAD
    )
    for index, name in enumerate(columns):
        numeric = any(isinstance(row[index], int | float) for row in rows)
        made.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(cell(value) for value in row))
    return made


def cell(value: object) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.2f}"
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        case _:
            return escape(str(value))


@contextmanager
def progress_bar() -> Iterator[Progress]:
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as bar:
        yield bar


def advance_to(bar: Progress, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)


class Events:
    """One line an event: for people, or as a JSON object for machines."""

    def __init__(self, log_format: str) -> None:
        self.as_json = log_format == "json"

    def emit(self, event: str, text: str, **fields: Any) -> None:
        """`text` is the human line, if any; the fields are what a machine reads instead."""
        now = datetime.now(UTC)
        if self.as_json:
            line = json.dumps({"time": now.isoformat(), "event": event, **fields}, default=str)
            console.print(line, soft_wrap=True, markup=False)
        elif text:
            console.print(f"[dim]{now:%H:%M:%S}[/] {escape(text)}", soft_wrap=True)
