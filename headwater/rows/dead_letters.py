"""Failed rows that no replay has resolved: how many, why, and what they look like. No JVM."""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyiceberg.table import Table

from ingestion.errors import DESERIALIZATION, ERASED

# A message is `words: name, name; words: name (detail, detail); values: {...}`.
DETAIL = re.compile(r" \([^()]*(\([^()]*\))?[^()]*\)")


SAMPLE = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_key", "_kafka_value")
SAMPLE_ERROR = ("_ingested_at", "_error_type", "_error_message")


@dataclass(frozen=True)
class DeadLetters:
    counts: Counter[tuple[str, str]]  # (error type, reason) -> rows; a row may have many reasons
    samples: list[dict[str, Any]]


def dead_letters(
    table: Table, types: list[str], since: datetime | None, samples: int
) -> DeadLetters:
    """Counts by type and reason, and some rows of each type, the newest commits first."""
    wanted = f"_error_type is not null and _error_type <> '{ERASED}' and _resolved_at is null"
    if types:
        wanted += f" and _error_type in ({', '.join(map(repr, types))})"
    if since is not None:
        wanted += f" and _ingested_at >= '{since.isoformat()}'"
    counts: Counter[tuple[str, str]] = Counter()
    reader = table.scan(wanted, selected_fields=("_error_type", "_error_message"))
    for batch in reader.to_arrow_batch_reader():
        for row in batch.to_pylist():
            for reason in reasons(row["_error_type"], row["_error_message"]):
                counts[row["_error_type"], reason] += 1
    return DeadLetters(counts, _samples(table, wanted, samples) if samples and counts else [])


def reasons(kind: str, message: str) -> list[str]:
    """What a message complains of, one by one: the rules, the columns, or the bytes."""
    if kind == DESERIALIZATION:
        return [message]
    found = []
    for clause in message.split("; values: ")[0].split("; "):
        words, _, listed = clause.partition(": ")
        found += [f"{words}: {name}" for name in DETAIL.sub("", listed).split(", ")]
    return found


def _samples(table: Table, wanted: str, most: int) -> list[dict[str, Any]]:
    kept: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for batch in table.scan(wanted, selected_fields=SAMPLE + SAMPLE_ERROR).to_arrow_batch_reader():
        for row in batch.to_pylist():
            rows = kept[row["_error_type"]]
            rows.append(row)
            rows.sort(key=lambda one: one["_ingested_at"], reverse=True)
            del rows[most:]
    return [row for kind in sorted(kept) for row in kept[kind]]
