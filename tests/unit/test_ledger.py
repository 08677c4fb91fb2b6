"""The table says where its stream stands, and refuses a writer who has not seen all of it."""

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier

import pytest
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.types import StringType

from ingestion.errors import HeadwaterError, TableMovedError
from ingestion.ledger import (
    COMMIT_ID,
    EPOCH,
    OFFSETS,
    STAMP,
    Ledger,
    data_files,
    newest_marked,
    next_stamp,
    position_of_rows,
    read_position,
)
from ingestion.manifests import FAN_IN
from ingestion.offsets import Offsets
from ingestion.origin import GAPS, RETIRED, START_OFFSETS
from tests.unit.bronze import (
    NAME,
    Catalog,
    clock,
    compact,
    expire,
    files,
    known_manifest_files,
    land,
    landed,
    make_table,
    manifest_files,
    offsets,
    open_catalog,
    rows,
    upto,
)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = open_catalog(tmp_path)
    make_table(catalog)
    return catalog


@pytest.fixture
def ledger(catalog: Catalog) -> Ledger:
    return Ledger(catalog, NAME)


def fail(error: Exception) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def rollback(catalog: Catalog, snapshot_id: int | None) -> None:
    assert snapshot_id is not None
    catalog.load_table(NAME).manage_snapshots().rollback_to_snapshot(snapshot_id).commit()


# --- the position -------------------------------------------------------------------------------


def test_an_empty_table_stands_where_its_stream_begins(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path)
    table = make_table(catalog, **{START_OFFSETS: offsets(7).to_json()})
    assert read_position(table).offsets == offsets(7)
    assert read_position(table).newest_stamp == EPOCH


def test_a_commit_moves_the_position_and_another_process_reads_the_same(
    catalog: Catalog, ledger: Ledger
) -> None:
    land(ledger)
    stamp = ledger.next_stamp()
    snapshot = ledger.commit(offsets(25), stamp, files(ledger.table, rows(10, 25, stamp)))
    assert (ledger.position.offsets, ledger.position.newest_stamp) == (offsets(25), stamp)
    assert ledger.position.snapshot_id == snapshot.snapshot_id
    assert read_position(catalog.load_table(NAME)) == ledger.position
    assert ledger.table.current_snapshot() == catalog.load_table(NAME).current_snapshot()
    assert landed(catalog) == upto(25)
    assert snapshot.summary is not None
    assert snapshot.summary["total-records"] == "25"
    assert snapshot.summary["total-data-files"] == "2"


def test_offsets_move_without_rows(catalog: Catalog, ledger: Ledger) -> None:
    """A batch may hold nothing but the control records of transactions."""
    ledger.commit(offsets(5), ledger.next_stamp(), ())
    land(ledger)
    ledger.commit(offsets(20), ledger.next_stamp(), ())
    assert read_position(catalog.load_table(NAME)).offsets == offsets(20)
    assert landed(catalog) == [(0, offset) for offset in range(5, 15)]


def test_rows_and_marks_give_the_same_position(catalog: Catalog, ledger: Ledger) -> None:
    for partition in (0, 1, 1):
        land(ledger, 10, partition)
    known = ledger.position.offsets, ledger.position.newest_stamp
    assert position_of_rows(ledger.table) == known == (offsets(10, 20), known[1])
    # Compaction mixes the partitions in one file, so that its bounds say nothing any more.
    compact(catalog)
    table = catalog.load_table(NAME)
    assert len(data_files(table)) == 1
    assert position_of_rows(table) == known


def test_files_without_bounds_are_read(catalog: Catalog, ledger: Ledger) -> None:
    """A stream file cannot switch the bounds off, but SQL can."""
    for partition in (0, 1):
        land(ledger, 10, partition)
    known = ledger.position.offsets, ledger.position.newest_stamp
    for metrics in ("counts", "none"):
        names = ["_kafka_offset", "_ingested_at"]
        with catalog.load_table(NAME).transaction() as transaction:
            transaction.set_properties(
                {f"write.metadata.metrics.column.{name}": metrics for name in names}
            )
        compact(catalog)
        assert position_of_rows(catalog.load_table(NAME)) == known


def test_without_any_mark_the_rows_decide(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path)
    make_table(catalog, **{START_OFFSETS: offsets(0, 3).to_json()})
    land(Ledger(catalog, NAME), 20)
    compact(catalog)
    expire(catalog)
    assert newest_marked(catalog.load_table(NAME)) is None
    ledger = Ledger(catalog, NAME)
    assert ledger.position.offsets == offsets(20, 3)
    land(ledger)
    assert landed(catalog) == upto(30)


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_position_is_behind_what_retention_removed_and_behind_accepted_gaps(
    catalog: Catalog, ledger: Ledger, is_marked: bool
) -> None:
    land(ledger)
    if not is_marked:
        compact(catalog)
        expire(catalog)
    table = catalog.load_table(NAME)
    gap = '[{"topic": "t", "partition": 1, "first": 4, "end": 9}]'
    with table.transaction() as transaction:
        transaction.set_properties({RETIRED: '{"t": {"0": 15, "1": 4}}', GAPS: gap})
    assert read_position(table).offsets == offsets(15, 9)


# --- one writer ---------------------------------------------------------------------------------


def test_a_writer_that_was_overtaken_is_refused(catalog: Catalog, ledger: Ledger) -> None:
    land(ledger)
    zombie = Ledger(catalog, NAME)
    land(ledger)
    for _ in range(2):  # it does not take up the other's position by itself
        with pytest.raises(TableMovedError):
            land(zombie)
    assert landed(catalog) == upto(20)
    zombie.refresh()
    land(zombie)
    assert landed(catalog) == upto(30)


def test_a_writer_that_is_overtaken_right_after_its_commit_is_refused(
    catalog: Catalog, ledger: Ledger
) -> None:
    """It must not take the other's commit for its own and then write the same records again."""
    catalog.after = lambda: land(Ledger(catalog, NAME))
    land(ledger)
    assert ledger.position.offsets == offsets(10)
    with pytest.raises(TableMovedError):
        land(ledger)
    assert landed(catalog) == upto(20)


def test_two_first_writers_cannot_both_win(catalog: Catalog, ledger: Ledger) -> None:
    late = Ledger(catalog, NAME)
    land(ledger)
    with pytest.raises(TableMovedError):
        land(late)
    assert landed(catalog) == upto(10)


def test_of_writers_that_commit_at_once_one_wins_each_time(catalog: Catalog) -> None:
    for turn in range(5):
        ledgers = [Ledger(catalog, NAME) for _ in range(4)]
        together = Barrier(len(ledgers))

        def race(ledger: Ledger, together: Barrier = together) -> bool:
            stamp = ledger.next_stamp()
            first = ledger.position.offsets.get(("t", 0), 0)
            added = files(ledger.table, rows(first, first + 10, stamp))
            together.wait()
            try:
                ledger.commit(offsets(first + 10), stamp, added)
            except TableMovedError:
                return False
            return True

        with ThreadPoolExecutor(len(ledgers)) as pool:
            assert sum(pool.map(race, ledgers)) == 1
        assert landed(catalog) == upto(10 * (turn + 1))


def test_a_table_that_was_dropped_takes_no_rows(catalog: Catalog, ledger: Ledger) -> None:
    land(ledger)
    catalog.drop_table(NAME)
    with pytest.raises(TableMovedError, match="dropped"):
        land(ledger)


@pytest.mark.parametrize("had_rows", [True, False])
def test_a_table_that_was_dropped_and_made_again_is_filled_from_the_start(
    catalog: Catalog, ledger: Ledger, had_rows: bool
) -> None:
    """What the sleeper held is not all that the new table needs: its rows would hide a loss."""
    if had_rows:
        land(ledger)
    catalog.drop_table(NAME)
    make_table(catalog)
    with pytest.raises(TableMovedError, match="made again"):
        land(ledger)
    assert landed(catalog) == []
    again = Ledger(catalog, NAME)
    land(again)
    assert landed(catalog) == upto(10)


def test_a_stamp_that_is_not_newer_is_refused(catalog: Catalog, ledger: Ledger) -> None:
    land(ledger)
    stamp = ledger.position.newest_stamp
    for bad in (stamp, stamp - timedelta(seconds=1)):
        with pytest.raises(ValueError, match="is not after"):
            ledger.commit(offsets(20), bad, files(ledger.table, rows(10, 20, bad)))
    assert landed(catalog) == upto(10)


def test_each_commit_has_one_stamp_and_stamps_grow(ledger: Ledger) -> None:
    for _ in range(3):
        land(ledger)
    marks = [one.summary for one in ledger.table.snapshots() if one.summary]
    stamps = [str(one[STAMP]) for one in marks]
    assert stamps == sorted(set(stamps))
    assert len({one[COMMIT_ID] for one in marks}) == 3
    later = datetime.now(UTC) + timedelta(hours=1)
    assert next_stamp(later) > later


# --- what others may do meanwhile ---------------------------------------------------------------


def test_a_compaction_in_between_is_no_conflict(catalog: Catalog, ledger: Ledger) -> None:
    for _ in range(3):
        land(ledger)
    compact(catalog)
    land(ledger)
    assert ledger.position.offsets == offsets(40)
    catalog.before = lambda: compact(catalog)  # while the commit is under way
    land(ledger)
    assert landed(catalog) == upto(50)
    assert read_position(catalog.load_table(NAME)) == ledger.position


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_refused_attempt_leaves_no_manifests(
    catalog: Catalog, ledger: Ledger, gives_up: bool
) -> None:
    land(ledger)
    if gives_up:
        catalog.before = lambda: land(Ledger(catalog, NAME))
        with pytest.raises(TableMovedError):
            land(ledger)
    else:
        catalog.before = lambda: compact(catalog)
        land(ledger)
    table = catalog.load_table(NAME)
    assert manifest_files(table) == known_manifest_files(table)


def test_a_commit_on_another_branch_in_between_is_no_conflict(
    catalog: Catalog, ledger: Ledger
) -> None:
    """It takes the next sequence number, and the main branch has not moved."""
    land(ledger)
    table = catalog.load_table(NAME)
    current = table.metadata.current_snapshot_id
    assert current is not None
    table.manage_snapshots().create_branch(current, "audit").commit()

    def audit() -> None:
        table = catalog.load_table(NAME)
        table.append(rows(0, 5, datetime.now(UTC), partition=9), branch="audit")

    catalog.before = audit
    land(ledger)
    assert landed(catalog) == upto(20)


def test_the_rules_of_the_main_branch_stay(catalog: Catalog, ledger: Ledger) -> None:
    land(ledger)
    table = catalog.load_table(NAME)
    rules = table.metadata.refs["main"].model_copy(update={"min_snapshots_to_keep": 7})
    with table.transaction() as transaction:
        updates, _ = transaction._set_ref_snapshot(
            rules.snapshot_id, "main", "branch", min_snapshots_to_keep=7
        )
        transaction._apply(updates)
    ledger.refresh()
    land(ledger)
    assert ledger.table.metadata.refs["main"].min_snapshots_to_keep == 7


def test_a_rollback_in_between_is_refused_and_the_next_run_reads_again(
    catalog: Catalog, ledger: Ledger
) -> None:
    land(ledger)
    first = ledger.position
    land(ledger)
    rollback(catalog, first.snapshot_id)
    with pytest.raises(TableMovedError):
        land(ledger)
    assert landed(catalog) == upto(10)
    again = Ledger(catalog, NAME)
    assert again.position == first
    land(again)
    assert landed(catalog) == upto(20)


def test_a_rollback_of_maintenance_alone_is_no_conflict(catalog: Catalog, ledger: Ledger) -> None:
    land(ledger)
    compact(catalog)
    rollback(catalog, ledger.position.snapshot_id)
    land(ledger)
    assert landed(catalog) == upto(20)


def test_marks_that_expire_in_between_are_no_conflict(catalog: Catalog, ledger: Ledger) -> None:
    land(ledger)
    land(ledger)
    compact(catalog)
    expire(catalog)
    land(ledger)
    assert landed(catalog) == upto(30)


def test_a_writer_that_was_overtaken_is_refused_though_the_marks_have_expired(
    catalog: Catalog, ledger: Ledger
) -> None:
    land(ledger)
    land(Ledger(catalog, NAME))
    compact(catalog)
    expire(catalog)
    with pytest.raises(TableMovedError):
        land(ledger)
    assert landed(catalog) == upto(20)


def test_a_new_column_in_between_is_no_conflict(catalog: Catalog, ledger: Ledger) -> None:
    land(ledger)
    with catalog.load_table(NAME).update_schema() as update:
        update.add_column("more", StringType())
    land(ledger)
    assert landed(catalog) == upto(20)
    assert "more" in ledger.table.schema().column_names


# --- commits that replace files -----------------------------------------------------------------


def test_files_are_replaced_in_one_snapshot(catalog: Catalog, ledger: Ledger) -> None:
    for _ in range(3):
        land(ledger)
    old, stamp = data_files(ledger.table)[1:2], ledger.next_stamp()
    kept = {file.file_path for file in data_files(ledger.table)} - {old[0].file_path}
    new = files(ledger.table, rows(10, 20, stamp))
    snapshot = ledger.commit(ledger.position.offsets, stamp, new, old)
    assert landed(catalog) == upto(30)
    assert {file.file_path for file in data_files(ledger.table)} == kept | {new[0].file_path}
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "overwrite"
    assert snapshot.summary["deleted-records"] == snapshot.summary["added-records"] == "10"
    assert snapshot.summary["total-records"] == "30"
    assert [
        entry.data_file.file_path
        for manifest in snapshot.manifests(ledger.table.io)
        for entry in manifest.fetch_manifest_entry(ledger.table.io, discard_deleted=False)
        if entry.status == ManifestEntryStatus.DELETED and entry.snapshot_id == snapshot.snapshot_id
    ] == [old[0].file_path]
    land(ledger)
    assert landed(catalog) == upto(40)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_files_that_compaction_has_taken_are_not_replaced(
    catalog: Catalog, ledger: Ledger, when: str
) -> None:
    land(ledger)
    old, stamp = data_files(ledger.table), ledger.next_stamp()
    if when == "before":
        compact(catalog)
    else:
        catalog.before = lambda: compact(catalog)
    new = files(ledger.table, rows(0, 10, stamp))
    with pytest.raises(TableMovedError, match="gone"):
        ledger.commit(ledger.position.offsets, stamp, new, old)
    assert landed(catalog) == upto(10)


# --- answers that never come --------------------------------------------------------------------


def test_a_commit_whose_answer_was_lost_counts_once(catalog: Catalog, ledger: Ledger) -> None:
    for error in (ConnectionError("lost"), sqlite3.OperationalError("database is locked")):
        catalog.after = fail(error)
        land(ledger)
        assert read_position(catalog.load_table(NAME)) == ledger.position
    assert landed(catalog) == upto(20)
    assert len(catalog.load_table(NAME).snapshots()) == 2


def test_a_lost_answer_is_settled_though_others_have_committed_since(
    catalog: Catalog, ledger: Ledger
) -> None:
    def overtake_and_fail() -> None:
        land(Ledger(catalog, NAME))
        raise ConnectionError("lost")

    catalog.after = overtake_and_fail
    land(ledger)
    assert ledger.position.offsets == offsets(10)
    with pytest.raises(TableMovedError):
        land(ledger)
    assert landed(catalog) == upto(20)


def test_a_commit_that_did_not_arrive_goes_up_and_may_be_made_again(
    catalog: Catalog, ledger: Ledger
) -> None:
    catalog.before = fail(ConnectionError("refused"))
    before = ledger.position
    with pytest.raises(ConnectionError):
        land(ledger)
    assert landed(catalog) == []
    assert ledger.position == before
    land(ledger)
    assert landed(catalog) == upto(10)


def test_a_lock_of_the_catalog_is_waited_for(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = Ledger(open_catalog(tmp_path, timeout=0.05), NAME)
    other = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    other.execute("begin immediate")
    waits: list[float] = []

    def release(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            other.execute("rollback")

    monkeypatch.setattr("ingestion.ledger.time.sleep", release)
    land(impatient)
    assert waits == [0.001, 0.002]
    assert landed(catalog) == upto(10)


def test_retries_have_an_end(catalog: Catalog, ledger: Ledger) -> None:
    land(ledger)
    tries = 0

    def again() -> None:
        nonlocal tries
        tries += 1
        compact(catalog)
        catalog.before = again

    catalog.before = again
    with pytest.raises(HeadwaterError, match="took no commit"):
        land(ledger)
    assert tries == 5  # one, and four retries
    assert landed(catalog) == upto(10)


# --- clocks -------------------------------------------------------------------------------------


def times_of(table: Table) -> list[list[int]]:
    """The ledger's snapshots; and what Java wants in order, each log up to the last update."""
    metadata = table.metadata
    logs = (
        [one.timestamp_ms for one in log] for log in (metadata.snapshot_log, metadata.metadata_log)
    )
    return [
        [one.timestamp_ms for one in metadata.snapshots if one.summary and one.summary[OFFSETS]],
        *([*log, metadata.last_updated_ms] for log in logs),
    ]


def test_a_clock_that_steps_back_holds_up_nothing(catalog: Catalog, ledger: Ledger) -> None:
    def change() -> None:
        land(ledger)
        compact(catalog)
        with catalog.load_table(NAME).transaction() as transaction:
            transaction.set_properties({"comment": str(ledger.position.snapshot_id)})
        land(ledger)

    change()
    for minutes in (-2, 3, -60):  # also at a failover to another host, and back
        with clock(timedelta(minutes=minutes)):
            change()
            with catalog.load_table(NAME).update_schema() as update:
                update.add_column(f"more{minutes + 100}", StringType())
            rollback(catalog, ledger.position.snapshot_id)
        for times in times_of(catalog.load_table(NAME)):
            assert times == sorted(times)
    assert landed(catalog) == upto(80)
    stamps = catalog.load_table(NAME).scan().to_arrow()["_ingested_at"].unique()
    assert len(stamps) == 8


# --- small metadata -----------------------------------------------------------------------------


def test_manifests_are_merged_and_their_entries_keep_their_past(
    catalog: Catalog, ledger: Ledger
) -> None:
    for _ in range(FAN_IN * 3):
        land(ledger, 1)
    table = catalog.load_table(NAME)
    snapshots = table.snapshots()
    longest = max(len(one.manifests(table.io)) for one in snapshots)
    assert longest <= FAN_IN + 3
    # A changelog scan asks each snapshot for the files that it added.
    for snapshot in snapshots:
        entries = [
            (entry.status, manifest.added_snapshot_id == snapshot.snapshot_id)
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io)
            if entry.snapshot_id == snapshot.snapshot_id
        ]
        assert entries == [(ManifestEntryStatus.ADDED, True)]
    # And each file says for ever which snapshot that was.
    current = snapshots[-1]
    known = {
        (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number)
        for manifest in current.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    }
    assert known == {
        (one.snapshot_id, one.sequence_number, one.sequence_number) for one in snapshots
    }
    assert landed(catalog) == upto(FAN_IN * 3)
    assert manifest_files(table) == known_manifest_files(table)


def test_large_manifests_are_left_alone(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path)
    make_table(catalog, **{"commit.manifest.target-size-bytes": "100"})
    ledger = Ledger(catalog, NAME)
    for _ in range(FAN_IN + 2):
        land(ledger, 1)
    assert len(ledger.table.inspect.manifests()) == FAN_IN + 2


def test_old_metadata_files_go(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path)
    make_table(catalog, **{"write.metadata.previous-versions-max": "3"})
    ledger = Ledger(catalog, NAME)
    for _ in range(8):
        land(ledger, 1)
    assert len(list(tmp_path.rglob("*.metadata.json"))) == 3 + 1


def test_offsets_of_a_thousand_partitions_are_short(catalog: Catalog, ledger: Ledger) -> None:
    # Digits as random as they come: powers of a primitive root.
    end = Offsets({("topic", one): 10**9 + pow(5, one, 8_999_999_963) for one in range(1_000)})
    ledger.commit(end, ledger.next_stamp(), ())
    marked = newest_marked(catalog.load_table(NAME))
    assert marked is not None
    assert marked.summary is not None
    assert len(marked.summary[OFFSETS] or "") < 10_000
    assert read_position(catalog.load_table(NAME)).offsets == end


def test_few_offsets_can_be_read_by_people() -> None:
    text = Offsets({("t", 0): 7, ("t", 2): 1}).to_text()
    assert text == '{"t":[7,null,1]}'
    assert Offsets.from_text(text) == Offsets.from_text('{"t": {"0": 7, "2": 1}}')
    assert Offsets.from_text(None) == Offsets()
