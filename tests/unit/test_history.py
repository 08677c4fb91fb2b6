"""A long history is thinned by the commits that make it, and nobody loses anything by that."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlparse

import pytest
from pyiceberg.catalog import Catalog as AnyCatalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from ingestion import history as history_module
from ingestion.errors import StreamFileError
from ingestion.history import HISTORY, History
from ingestion.ledger import Ledger, data_files, read_position
from ingestion.stream import Stream
from ingestion.stream_file import load_stream
from ingestion.table import MAINTENANCE, table_properties
from tests.unit.bronze import (
    NAME,
    Catalog,
    clock,
    compact,
    files,
    known_manifest_files,
    land,
    landed,
    make_table,
    manifest_files,
    open_catalog,
    rows,
    upto,
)

# A full hour, ahead of the real clock: a table's time goes forward only.
START = (datetime.now(UTC) + timedelta(days=1)).replace(minute=0, second=0, microsecond=0)
DAY = History(every_commit_hours=1, time_travel_days=1, keep_snapshots=1)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return prepared(tmp_path, DAY)


def prepared(folder: Path, history: History, **properties: str) -> Catalog:
    catalog = open_catalog(folder)
    make_table(catalog, **{HISTORY: history.to_json()}, **properties)
    return catalog


@contextmanager
def at(minutes: float) -> Iterator[None]:
    """So many minutes after the start."""
    with clock(START + timedelta(minutes=minutes) - datetime.now(UTC)):
        yield


def land_at(catalog: Catalog, *minutes: float) -> Ledger:
    ledger = Ledger(catalog, NAME)
    for minute in minutes:
        with at(minute):
            land(ledger, 1)
    return ledger


def minutes_of(table: Table) -> list[int]:
    """When its snapshots were made, in whole minutes after the start."""
    begin = START.timestamp() * 1000
    return [int((one.timestamp_ms - begin) // 60_000) for one in table.snapshots()]


def loaded(catalog: AnyCatalog) -> Table:
    return catalog.load_table(NAME)


def live_files(table: Table, snapshot: Snapshot) -> set[str]:
    return {
        entry.data_file.file_path
        for manifest in snapshot.manifests(table.io)
        if manifest.content == ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(table.io)
    }


def reachable(table: Table) -> set[str]:
    """The data files that maintenance can find, as it must before it can delete them."""
    return {path for one in table.snapshots() for path in live_files(table, one)}


def check_manifest_files(ledger: Ledger) -> None:
    """Those of the table's snapshots are there, and those that were removed just now."""
    waiting = {path for _, paths in ledger._leftovers for path in paths}
    known = known_manifest_files(ledger.table)
    assert not waiting & known
    assert manifest_files(ledger.table) == known | waiting
    with at(100_000):  # much later
        land(ledger, 1)
    assert not waiting & manifest_files(ledger.table)


# --- what stays -----------------------------------------------------------------------------------


def test_each_commit_of_the_last_hour_stays_then_one_an_hour_for_a_day(catalog: Catalog) -> None:
    step, end = 20, 26 * 60
    ledger = land_at(catalog, *range(0, end + 1, step))
    table = loaded(catalog)
    hourly = [hour * 60 + 40 for hour in range(1, 25)]  # the last commit of each
    assert minutes_of(table) == [*hourly, *range(25 * 60, end + 1, step)]
    assert landed(catalog) == upto(end // step + 1)
    for place in (0, 5, 20):  # each can be read as it was
        snapshot = table.snapshots()[place]
        count = minutes_of(table)[place] // step + 1
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == count
    assert read_position(table) == Ledger(catalog, NAME).position
    assert read_position(table).offsets["t", 0] == end // step + 1
    check_manifest_files(ledger)


def test_a_long_history_is_thinned_in_pieces(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_at(catalog, *range(10))  # minute by minute: all of them are young
    monkeypatch.setattr(history_module, "MOST_AT_ONCE", 3)
    ledger = land_at(catalog, 300)
    assert len(ledger.table.snapshots()) == 11 - 3
    with at(300.5):  # not again within the same minute
        land(ledger, 1)
    assert len(ledger.table.snapshots()) == 12 - 3
    for number in range(5):
        with at(302 + 2 * number):
            land(ledger, 1)
    assert minutes_of(ledger.table) == [9, 300, 300, 302, 304, 306, 308, 310]
    check_manifest_files(ledger)


def test_a_rare_commit_has_a_history(tmp_path: Path) -> None:
    catalog = prepared(tmp_path, History(1, 1, keep_snapshots=3))
    days = [day * 24 * 60 for day in range(6)]
    assert (
        minutes_of(land_at(catalog, *days).table) == days[-4:]
    )  # the fourth was current a day ago


def test_a_table_whose_files_belong_to_others_keeps_all(tmp_path: Path) -> None:
    catalog = prepared(tmp_path, DAY, **{"gc.enabled": "false"})
    assert len(land_at(catalog, 0, 1, 2, 300, 302).table.snapshots()) == 5


def test_tags_and_branches_keep_their_snapshots(catalog: Catalog) -> None:
    ledger = land_at(catalog, 0, 1, 2, 3, 4)
    ids = [one.snapshot_id for one in ledger.table.snapshots()]
    change = loaded(catalog).manage_snapshots()
    change.create_tag(ids[1], "audited").create_branch(ids[2], "try").commit()
    ledger = land_at(catalog, 300, 3000)
    assert {"audited", "try"} < ledger.table.refs().keys()
    assert minutes_of(ledger.table) == [1, 2, 300, 3000]
    check_manifest_files(ledger)


def test_a_tag_that_is_set_meanwhile_stays(catalog: Catalog, tmp_path: Path) -> None:
    ledger = land_at(catalog, 0, 1, 2)
    first = ledger.table.snapshots()[0].snapshot_id
    other = open_catalog(tmp_path)
    ledger.catalog.before = loaded(other).manage_snapshots().create_tag(first, "new").commit  # type: ignore[attr-defined]
    with at(300):
        land(ledger, 1)
    assert "new" in loaded(catalog).refs()
    assert loaded(catalog).snapshot_by_id(first)
    assert landed(catalog) == upto(4)


def test_a_file_that_is_gone_already_is_no_obstacle(catalog: Catalog) -> None:
    ledger = land_at(catalog, 0, 1, 2)
    ledger.table.io.delete(ledger.table.snapshots()[1].manifest_list)
    assert minutes_of(land_at(catalog, 300).table) == [2, 300]
    assert landed(catalog) == upto(4)


def test_a_lost_answer_is_settled_though_snapshots_went_with_the_commit(catalog: Catalog) -> None:
    ledger = land_at(catalog, 0, 1, 2)

    def lose() -> None:
        raise ConnectionError("lost")

    catalog.after = lose
    ledger.catalog = catalog
    with at(300):
        land(ledger, 1)
    assert minutes_of(ledger.table) == [2, 300]
    assert landed(catalog) == upto(4)


# --- nothing leaks --------------------------------------------------------------------------------


def test_files_that_a_commit_removed_can_be_found_by_maintenance(catalog: Catalog) -> None:
    ledger = land_at(catalog, 0, 1, 2)
    old = reachable(ledger.table)
    with at(3):
        compact(catalog)
    ledger.refresh()
    with at(4):
        stamp = ledger.next_stamp()
        added = files(ledger.table, rows(0, 3, stamp))
        ledger.commit(ledger.position.offsets, stamp, added, data_files(ledger.table))
    compacted = reachable(ledger.table)
    ledger = land_at(catalog, 5, 6, 300, 3000)
    # The snapshots before the two, and these themselves.
    assert minutes_of(ledger.table) == [2, 3, 4, 300, 3000]
    assert old < compacted < reachable(ledger.table)
    assert landed(catalog) == upto(7)


@pytest.mark.parametrize("later", [(5, 6, 300, 3000), (3000,)])
def test_what_a_rollback_has_left_behind_can_be_found_by_maintenance(
    catalog: Catalog, later: tuple[int, ...]
) -> None:
    ledger = land_at(catalog, 0, 1, 2, 3)
    first = ledger.table.snapshots()[0].snapshot_id
    with at(4):
        loaded(catalog).manage_snapshots().rollback_to_snapshot(first).commit()
    rolled_back = reachable(loaded(catalog))
    ledger = land_at(catalog, *later)
    # 0 and the first of the later ones tell that those in between are not of the main branch.
    assert minutes_of(ledger.table) == [0, 1, 2, 3, *(one for one in later if one != 6)]
    assert rolled_back < reachable(ledger.table)
    assert landed(catalog) == upto(1 + len(later))


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_no_data_file_leaks_and_every_snapshot_can_be_read(
    catalog: Catalog, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311
    ledger, known, minute = Ledger(catalog, NAME), set[str](), 0.0

    def commit() -> None:
        ledger.refresh()
        land(ledger, 1)

    def replace() -> None:
        ledger.refresh()
        if old := data_files(ledger.table)[-1:]:
            stamp = ledger.next_stamp()
            new = files(ledger.table, rows(0, 1, stamp, partition=7))
            ledger.commit(ledger.position.offsets, stamp, new, old)

    def roll_back() -> None:
        table = loaded(catalog)
        chosen = chance.choice(table.snapshots()).snapshot_id
        table.manage_snapshots().set_current_snapshot(snapshot_id=chosen).commit()

    def branch() -> None:
        table = loaded(catalog)
        chosen = chance.choice(table.snapshots()).snapshot_id
        name = f"b{chosen}"
        table.manage_snapshots().create_branch(chosen, name).commit()
        table.append(rows(0, 1, datetime.now(UTC), partition=9), branch=name)

    def merge() -> None:
        compact(catalog)

    others: list[Callable[[], None]] = [replace, merge, roll_back, branch]
    for _ in range(70):
        minute += chance.choice([1, 1, 1, 5, 20, 70, 500])
        happens = chance.choice(others) if chance.random() < 0.1 and known else commit
        with at(minute):
            happens()
        known |= live_files(table := loaded(catalog), table.snapshots()[-1])
    table = loaded(catalog)
    assert len(table.snapshots()) < 60
    assert reachable(table) == known
    assert known_manifest_files(table) <= manifest_files(table)
    for manifest_file in known_manifest_files(table):
        assert Path(urlparse(manifest_file).path).exists()


# --- settings -------------------------------------------------------------------------------------


def stream(folder: Path, *lines: str) -> Stream:
    file = folder / "words.yml"
    base = ["topic: words", "description: Words.", "value: {format: text}"]
    columns = ["columns:", "  word: {type: string, description: A word.}"]
    file.write_text("\n".join([*base, *columns, *lines]))
    return load_stream(file)


@pytest.mark.parametrize(
    ("lines", "history"),
    [
        ([], History()),
        (["table: {every_commit_hours: 168}"], History(every_commit_hours=168)),
        (
            ["table: {every_commit_hours: 6}", "maintenance: {time_travel_days: 3}"],
            History(every_commit_hours=6, time_travel_days=3),
        ),
        (["maintenance: {keep_snapshots: 99}"], History(keep_snapshots=99)),
    ],
)
def test_a_stream_file_says_how_much_stays(
    tmp_path: Path, lines: list[str], history: History
) -> None:
    properties = table_properties(stream(tmp_path, *lines))
    catalog = open_catalog(tmp_path)
    assert History.of(make_table(catalog, **{HISTORY: properties[HISTORY]})) == history
    assert "every_commit_hours" not in properties[MAINTENANCE]  # maintenance does not know it


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("table: {every_commit_hours: 0}", "greater than or equal to 1"),
        ("table: {every_commit_hours: 1.5}", "every_commit_hours"),
        (
            "table: {every_commit_hours: 169}",
            "169 hours are more than maintenance.time_travel_days",
        ),
        (
            "table: {properties: {write.metadata.metrics.column._kafka_offset: none}}",
            "its position",
        ),
        (
            "table: {properties: {write.metadata.metrics.column._ingested_at: counts}}",
            "its position",
        ),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(StreamFileError, match=problem):
        stream(tmp_path, line)


# --- the embedded catalog -------------------------------------------------------------------------


def test_the_metadata_file_says_what_pyiceberg_would_write(catalog: Catalog) -> None:
    ledger = land_at(catalog, *range(5), 300)
    with loaded(catalog).transaction() as transaction:
        transaction.set_properties({"comment": 'said "snapshots":[] and äöü'})
    table = loaded(catalog)
    file = table.io.new_input(table.metadata_location)
    with file.open() as stored:
        assert stored.read().decode() == table.metadata.model_dump_json()
    assert FromInputFile.table_metadata(file) == table.metadata
    ledger.refresh()
    assert ledger.table.metadata == table.metadata


def test_a_table_made_again_is_not_taken_for_the_one_that_was_read(catalog: Catalog) -> None:
    table = land_at(catalog, 0).table
    catalog.drop_table(NAME)
    again = make_table(catalog)
    assert loaded(catalog).metadata == again.metadata != table.metadata
