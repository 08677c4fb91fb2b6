"""The history of a bronze table, thinned by the commits that make it.

Each commit writes the list of all snapshots again, and one every ten seconds makes 60,480 a week.
So every commit of the last hours stays, and of the time before that the last commit of each hour.
What a commit removed goes with it, in one update of the metadata.

Who follows a table from snapshot to snapshot stops at the holes that this leaves:
- the ledger looks for the newest snapshot with offsets, which is the one that thins the others;
- models read bronze by `_ingested_at` (macros/incremental/arrived_since_last_run.sql) and know no
  snapshot of it. Those that follow a table's snapshots (changed_rows) read silver and gold, which
  are not thinned, and compute everything again where the snapshot that they read last is gone;
- Iceberg's own incremental readers, and its writers that check for conflicts since they began, have
  `every_commit_hours` to keep up.
Parents are not linked across a hole: an incremental reader would skip what lay in it and not know.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise

from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

HISTORY = "headwater.history"  # the table property that holds the settings below

HOUR = 3_600_000  # milliseconds
MOST_AT_ONCE = 100  # bounds the commit that begins to thin a long history


@dataclass(frozen=True)
class History:
    """How much of it stays. Tags and branches, and what maintenance has to expire, stay besides."""

    every_commit_hours: int = 1  # so long every commit, then the last of each hour
    time_travel_days: int = 7  # up to this age
    keep_snapshots: int = 10  # and the newest, however old

    @classmethod
    def of(cls, table: Table) -> "History":
        return cls(**json.loads(table.properties.get(HISTORY, "{}")))

    def to_json(self) -> str:
        return json.dumps(vars(self))


def outdated(metadata: TableMetadata, history: History, now: int) -> list[Snapshot]:
    """The snapshots that may go when another is committed, oldest first. `now` is in milliseconds.

    Nobody may lose a data file by that: whatever such a snapshot refers to, a later one of the main
    branch refers to as well, or the one before a commit that removed files, which stays.
    """
    if metadata.properties.get("gc.enabled", "true").lower() == "false":
        return []
    snapshots = _in_order(metadata)
    needed = _needed(metadata, snapshots) | set(_ids(snapshots[-history.keep_snapshots :]))
    hour_of_next = {each.parent_snapshot_id: each.timestamp_ms // HOUR for each in snapshots}
    dense = now - history.every_commit_hours * HOUR
    oldest = now - history.time_travel_days * 24 * HOUR

    def may_go(snapshot: Snapshot, later: Snapshot) -> bool:
        hour = snapshot.timestamp_ms // HOUR
        return (
            snapshot.snapshot_id not in needed
            and snapshot.timestamp_ms < dense
            and (hour_of_next.get(snapshot.snapshot_id) == hour or later.timestamp_ms < oldest)
        )

    old = [snapshot for snapshot, later in pairwise(snapshots) if may_go(snapshot, later)]
    return old[:MOST_AT_ONCE]


def files_of(table: Table, removed: Iterable[Snapshot]) -> list[str]:
    """The manifest lists of snapshots to remove, and the manifests that only they refer to.

    A branch drops a manifest once and for all, and the snapshots at which branches part are kept.
    So those just before and behind the removed ones tell.
    """
    gone = set(_ids(removed))
    in_order = _in_order(table.metadata)
    runs = [list(run) for _, run in groupby(in_order, lambda each: each.snapshot_id in gone)]
    paths = []
    for before, run, behind in zip([[], *runs], runs, [*runs[1:], []], strict=False):
        if run[0].snapshot_id in gone:
            kept = _manifests(table.io, [*before[-1:], *behind[:1]])
            paths += [snapshot.manifest_list for snapshot in run]
            paths += _manifests(table.io, run) - kept
    return paths


def _needed(metadata: TableMetadata, snapshots: list[Snapshot]) -> set[int | None]:
    """What maintenance must find to delete the files that a commit has removed, and all else that
    somebody named.
    """
    removals = [
        snapshot
        for snapshot in snapshots
        if not snapshot.summary or snapshot.summary.operation != Operation.APPEND
    ]
    return {
        *(ref.snapshot_id for ref in metadata.refs.values()),
        *_ids(removals),
        *(snapshot.parent_snapshot_id for snapshot in removals),
        *_ids(_beside(metadata, snapshots)),
    }


def _beside(metadata: TableMetadata, snapshots: list[Snapshot]) -> list[Snapshot]:
    """The snapshots that branches or a rollback may have left beside the main branch.

    On a branch that is alone, each snapshot follows its parent. Where others lie between the two,
    some of them are not of the main branch. Both ends count as well: they stay, and tell it.
    """
    places = {snapshot.snapshot_id: place for place, snapshot in enumerate(snapshots)}
    head = places.get(metadata.current_snapshot_id or -1, len(snapshots))
    beside = snapshots[head + 1 :]
    for place, snapshot in enumerate(snapshots):
        parent = places.get(snapshot.parent_snapshot_id or -1, place - 1)
        if parent != place - 1:
            beside += snapshots[parent : place + 1]
    return beside


def _in_order(metadata: TableMetadata) -> list[Snapshot]:
    return sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)


def _ids(snapshots: Iterable[Snapshot]) -> list[int]:
    return [snapshot.snapshot_id for snapshot in snapshots]


def _manifests(io: FileIO, snapshots: Iterable[Snapshot]) -> set[str]:
    return {manifest.manifest_path for snapshot in snapshots for manifest in snapshot.manifests(io)}
