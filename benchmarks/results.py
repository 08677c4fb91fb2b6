"""Tables of results, on the console and in RESULTS.md."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import psutil

from headwater.console import cell, console, table
from headwater.local.java import find_java

RESULTS = Path(__file__).with_name("RESULTS.md")
WIDTH = 150
INTRODUCTION = """# Results of the benchmarks

Written by `make bench`; each run replaces its own section. Compare figures of one section only:
another machine, or the same one under other load, gives others.
"""


def median_and_spread(values: Sequence[float], decimals: int = 1) -> str:
    """The median, with the smallest and the largest value where they differ."""
    shown = [f"{value:,.{decimals}f}" for value in (median(values), min(values), max(values))]
    return shown[0] if shown[1] == shown[2] else f"{shown[0]} ({shown[1]} to {shown[2]})"


def report(
    name: str, columns: Sequence[str], rows: Sequence[Sequence[object]], notes: str = ""
) -> None:
    """Print a table and put it into RESULTS.md as the section of this name."""
    console.width = max(console.width, WIDTH)
    console.print(table(name, list(columns), [tuple(row) for row in rows]))
    write_section(name, "\n\n".join(filter(None, (markdown_table(columns, rows), notes))))


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    numeric = [all(_is_number(row[index]) for row in rows) for index in range(len(columns))]
    lines = [columns, ["--:" if right else "---" for right in numeric]]
    lines += [[cell(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_section(name: str, markdown: str) -> None:
    """Replace the section of this name in RESULTS.md, or add it; the others stay."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    section = f"{begin}\n## {name}\n\n{_circumstances()}\n\n{markdown.strip()}\n{end}"
    text = RESULTS.read_text() if RESULTS.exists() else INTRODUCTION
    old = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if old.search(text):
        text = old.sub(lambda _: section, text)
    else:
        text = f"{text.rstrip()}\n\n{section}\n"
    RESULTS.write_text(text)


def _circumstances() -> str:
    module = Path(sys.argv[0]).stem
    arguments = [Path(word).name if word.startswith("/") else word or "''" for word in sys.argv[1:]]
    command = " ".join(["python -m", f"benchmarks.{module}", *arguments])
    gigabytes = psutil.virtual_memory().total / 2**30
    python = ".".join(map(str, sys.version_info[:3]))
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, commit {_commit()}, `{command}`, {os.cpu_count()} cores, "
        f"{gigabytes:.0f} GB of memory, Python {python}, Java {find_java().version}."
    )


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    folder = RESULTS.parent
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    return done.stdout.strip() or "unknown"


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return bool(re.match(r"\d", value))
    return isinstance(value, int | float) and not isinstance(value, bool)
