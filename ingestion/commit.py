"""Commit what tasks have landed to the bronze table, and count it."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ingestion.catalog import open_catalog
from ingestion.decode import check_stream
from ingestion.files import TableFiles
from ingestion.kafka import ensure_topic
from ingestion.landing import Landed, Plan
from ingestion.ledger import Ledger
from ingestion.offsets import Offsets
from ingestion.settings import Settings
from ingestion.stream import Stream
from ingestion.table import ensure_table


@dataclass
class Progress:
    """What the runs of a stream in this process have done so far."""

    read: int = 0  # offsets read, including batches that were not committed
    rows: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    undeclared: set[str] = field(default_factory=set)  # fields that the stream does not declare
    commits: int = 0
    last_commit: datetime | None = None
    last_rows: int = 0
    last_seconds: float = 0.0
    batch_seconds: float = 0.0
    commit_seconds: float = 0.0  # of these, after the data files were written
    bytes: int = 0
    files: int = 0


class Committer:
    """Commits to the table of one stream, and counts what was committed."""

    def __init__(
        self, settings: Settings, stream: Stream, progress: Progress | None = None
    ) -> None:
        self.stream = stream
        self.progress = progress or Progress()
        check_stream(stream)
        if stream.forward:
            ensure_topic(settings, stream.forward.topic)
        ensure_table(settings, stream)
        self.ledger = Ledger(open_catalog(settings), stream.table)
        self.plan = Plan(settings, stream, TableFiles.of(self.ledger.table))

    @property
    def position(self) -> Offsets:
        return self.ledger.position.offsets

    def commit(self, landed: Sequence[Landed], end: Offsets, stamp: datetime, began: float) -> None:
        """Commit these files at once; `end` is the stream's new position."""
        written = time.monotonic()
        files = [file for part in landed for file in part.files]
        self.ledger.commit(end, stamp, files)
        done = self.progress
        now = time.monotonic()
        done.commit_seconds += now - written
        done.last_seconds = now - began
        done.batch_seconds += done.last_seconds
        done.last_rows = sum(part.rows for part in landed)
        done.rows += done.last_rows
        for part in landed:
            done.errors.update(part.errors)
            done.undeclared |= part.undeclared
        done.commits += 1
        done.last_commit = stamp
        done.bytes += sum(file.file_size_in_bytes for file in files)
        done.files += len(files)
