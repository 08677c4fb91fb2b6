"""Failed records are seen, mended and replayed, exactly once, also while the stream runs."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headwater.rows.backfill import backfill
from headwater.rows.dead_letters import dead_letters, reasons
from headwater.rows.replay import Replayed, replay
from ingestion import lease
from ingestion.catalog import open_catalog
from ingestion.errors import ERROR_TYPES, HeadwaterError, TableMovedError
from ingestion.lease import Board, hold, turn
from ingestion.ledger import Ledger, read_position
from ingestion.offsets import Offsets
from ingestion.run import Run
from ingestion.settings import Settings
from ingestion.stream import Stream
from ingestion.stream_file import load_stream
from tests.conftest import HEADWATER, run
from tests.integration.outside import (
    assert_table_is_topic,
    behind,
    drop,
    land,
    meanwhile,
    read_table,
    row_count,
    send,
    start_ingest,
    verified,
    wait_for,
)

FILE = """\
description: Counts.
topic: {name}
value: {{format: json}}
batch: {{min_records: 1, max_seconds: 1}}
columns:
  n: {{type: int, description: A number.}}
  half: {{type: int, description: Its half., expression: {expression}}}
rules:
  n_is_small: n < {most}
"""


@pytest.fixture
def folder(tmp_path: Path, settings: Settings) -> Iterator[Path]:
    yield tmp_path
    for file in tmp_path.glob("*.yml"):
        drop(settings, f"bronze.{file.stem}")


@pytest.fixture
def name() -> str:
    return f"d_{uuid4().hex[:8]}"


def write(folder: Path, name: str, most: int = 10, expression: str = "n // 2") -> Stream:
    file = folder / f"{name}.yml"
    file.write_text(FILE.format(name=name, most=most, expression=expression))
    return load_stream(file)


def records(*numbers: int) -> list[bytes]:
    return [f'{{"n": {number}}}'.encode() for number in numbers]


def rows(settings: Settings, stream: Stream) -> dict[bytes, dict[str, Any]]:
    return {row["_kafka_value"]: row for row in read_table(settings, stream.table).to_pylist()}


def snapshots(settings: Settings, stream: Stream) -> int:
    return len(open_catalog(settings).load_table(stream.table).snapshots())


def test_a_mended_rule_and_a_replay_move_exactly_the_right_rows_once(
    settings: Settings, folder: Path, name: str
) -> None:
    stream = write(folder, name)
    send(settings, name, *records(1, 2, 50, 60, 500), b"broken", b'{"n": "x"}')
    land(settings, stream)
    before = rows(settings, stream)
    position = read_position(open_catalog(settings).load_table(stream.table))

    mended = write(folder, name, most=100)
    assert replay(settings, mended, [], None) == Replayed(failed=5, resolved=2, changed=0)
    after = rows(settings, mended)
    for value in records(50, 60):
        row = after[value]
        assert (row["n"], row["half"]) == (before[value]["n"], before[value]["n"] // 2)
        assert row["_error_type"] == "validation_error"  # kept for the record
        assert row["_resolved_at"] == row["_ingested_at"] > position.newest_stamp
    for value in (*records(1, 2, 500), b"broken", b'{"n": "x"}'):
        assert after[value] == before[value]
    assert_table_is_topic(settings, stream.table, name)

    commits = snapshots(settings, stream)
    assert replay(settings, mended, [], None) == Replayed(failed=3, resolved=0, changed=0)
    assert snapshots(settings, stream) == commits
    table = open_catalog(settings).load_table(stream.table)
    assert read_position(table).offsets == position.offsets
    assert list(table.refs()) == ["main"]
    send(settings, name, *records(3))
    assert land(settings, mended).progress.rows == 1  # the stream goes on from there


def test_names_may_be_words_of_sql(settings: Settings, tmp_path: Path, name: str) -> None:
    """A stream `select` with a column `table`: landed, decoded again, backfilled."""
    file = tmp_path / "select.yml"
    half = "'\"table\" // 2'"
    text = FILE.format(name=name, most=10, expression=half).replace("  n:", "  table:")
    file.write_text(text.replace("n < 10", "'\"table\" < 10'"))
    send(settings, name, b'{"table": 1}', b'{"table": 50}', partitions=1)
    land(settings, load_stream(file))
    file.write_text(file.read_text().replace("< 10", "< 100"))
    mended = load_stream(file)
    assert replay(settings, mended, [], None) == Replayed(1, 1, 0)
    open_catalog(settings).load_table("bronze.select").delete("_kafka_offset = 0")
    first, last = (Offsets({(name, 0): offset}) for offset in (0, 2))
    added, _ = backfill(settings, mended, first, last, lambda *_: None)
    assert added.rows == 1
    assert verified(settings, mended) == 2
    drop(settings, "bronze.select")


def test_what_fails_for_another_reason_keeps_the_newest_one(
    settings: Settings, folder: Path, name: str
) -> None:
    send(settings, name, *records(50, 60))
    land(settings, write(folder, name))
    stricter = write(folder, name, expression="case when n < 55 then n // 2 end", most=5)
    assert replay(settings, stricter, [], None) == Replayed(2, 0, 1)
    after = rows(settings, stricter)
    assert after[records(60)[0]]["_error_type"] == "transformation_error"
    assert after[records(60)[0]]["_resolved_at"] is None
    assert after[records(50)[0]]["_error_type"] == "validation_error"


def test_a_replay_fills_columns_that_the_mended_file_adds(
    settings: Settings, folder: Path, name: str
) -> None:
    send(settings, name, *records(1, 50), headers=[("h", b"1")])
    land(settings, write(folder, name))
    file = write(folder, name, most=100).file
    twice = "  twice: {type: bigint, description: Twice it., expression: n * 2}\nrules:"
    file.write_text(file.read_text().replace("rules:", twice) + "headers: true\n")
    assert replay(settings, load_stream(file), [], None).resolved == 1
    after = rows(settings, load_stream(file))
    assert after[records(50)[0]]["twice"] == 100
    assert after[records(1)[0]]["twice"] is None


def test_a_replay_of_one_type_or_of_late_rows_leaves_the_others(
    settings: Settings, folder: Path, name: str
) -> None:
    send(settings, name, *records(50))
    land(settings, write(folder, name))
    mended = write(folder, name, most=100)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert replay(settings, mended, ["schema_error"], None).failed == 0
    assert replay(settings, mended, [], tomorrow).failed == 0
    assert replay(settings, mended, ["validation_error"], None).resolved == 1


def test_a_replay_that_was_overtaken_changes_nothing(
    settings: Settings,
    folder: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send(settings, name, *records(50))
    land(settings, write(folder, name))
    mended = write(folder, name, most=100)
    commit = Ledger.commit

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(Ledger, "commit", commit)
        send(settings, name, *records(1))
        land(settings, mended)  # a writer that asked nobody
        return commit(*arguments)

    monkeypatch.setattr(Ledger, "commit", overtaken)
    with pytest.raises(TableMovedError):
        replay(settings, mended, [], None)
    table = open_catalog(settings).load_table(mended.table)
    assert list(table.refs()) == ["main"]
    assert rows(settings, mended)[records(50)[0]]["_resolved_at"] is None
    assert_table_is_topic(settings, mended.table, name)


# --- taking turns --------------------------------------------------------------------------------


@pytest.mark.slow  # the parts of it are quick tests below
def test_a_replay_takes_its_turn_while_the_stream_runs(
    stack: dict[str, str], settings: Settings, folder: Path, name: str
) -> None:
    """Two processes: `ingest` under load, and `replay` beside it."""
    stream = write(folder, name)
    env = {**stack, "HEADWATER_STREAMS": str(folder)}
    send(settings, name, *records(1, 50, 60))
    ingest = start_ingest(env, name)
    try:
        wait_for(lambda: Board(settings, name).claims().lease is not None)
        wait_for(lambda: row_count(settings, stream) >= 3)
        with meanwhile(lambda: send(settings, name, *records(2)), every=0.5):
            second = run(HEADWATER, "ingest", name, "--once", env=env)
            assert second.returncode == 1
            assert f"with pid {ingest.pid} on " in second.stderr
            write(folder, name, most=100)
            replayed = run(HEADWATER, "replay", name, env={**env, "COLUMNS": "200"})
            assert replayed.returncode == 0, replayed.stdout + replayed.stderr
            assert "good now" in replayed.stdout
            resolved = row_count(settings, stream)
            wait_for(lambda: row_count(settings, stream) > resolved + 5)  # the stream went on
            assert ingest.poll() is None
        wait_for(lambda: behind(settings, stream) == 0)
    finally:
        ingest.terminate()
        output, _ = ingest.communicate(timeout=90)
    assert ingest.returncode == 0, output
    assert Board(settings, name).claims().lease is None
    verified(settings, stream)
    found = [row for row in read_table(settings, stream.table).to_pylist() if row["_resolved_at"]]
    assert sorted(row["n"] for row in found) == [50, 60]


def test_a_lease_names_its_holder_and_ends_with_a_dead_one(
    settings: Settings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hold(settings, name, "ingest"):
        with pytest.raises(HeadwaterError) as caught, hold(settings, name, "ingest"):
            pass
        assert "`headwater ingest` with pid" in caught.value.message
    board = Board(settings, name)
    assert board.claims().lease is None
    # A holder on another machine cannot be looked at: its lease must run out.
    claim = lease._claim("ingest")
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1.0)
    board.put_lease(lease.replace(claim, host="elsewhere"))
    assert board.claims().lease is not None
    wait_for(lambda: board.claims().lease is None, seconds=5)
    # One on this machine whose process is gone holds nothing.
    monkeypatch.setattr(lease, "LEASE_SECONDS", 60.0)
    board.put_lease(lease.replace(claim, started=claim.started - 100))
    assert board.claims().lease is None


def test_a_lease_given_back_early_stays_given_back(
    settings: Settings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of one stream that was stopped while others of its process go on."""
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.3)  # so that it would be renewed at every look
    monkeypatch.setattr(lease, "LOOK_SECONDS", 0.05)
    with hold(settings, name, "ingest") as held:
        held.release()
        monkeypatch.setattr(lease, "LEASE_SECONDS", 60.0)
        time.sleep(0.5)
        held._renewed = 0.0
        time.sleep(0.5)
        assert Board(settings, name).claims().lease is None


class Lender:
    def __init__(self) -> None:
        self.events: list[str] = []

    def pause(self) -> None:
        self.events.append("paused")

    def resume(self) -> None:
        self.events.append("resumed")


def test_a_turn_is_lent_and_given_back(settings: Settings, name: str) -> None:
    lender = Lender()
    with hold(settings, name, "ingest") as held:
        held.lender = lender
        with turn(settings, name, "replay"):
            assert lender.events == ["paused"]
        wait_for(lambda: lender.events == ["paused", "resumed"], seconds=10)
    with turn(settings, name, "replay"):  # nobody there: alone
        assert (found := Board(settings, name).claims().lease) is not None
        assert found.purpose == "replay"


def test_a_stream_whose_position_moved_during_a_turn_stops(
    spark: Any, settings: Settings, folder: Path, name: str
) -> None:
    stream = write(folder, name)
    send(settings, name, *records(1))
    stale = Run(spark, settings, stream)
    stale.pause()
    land(settings, stream)
    with pytest.raises(TableMovedError):
        stale.resume()
    stale.stop()


# --- what people see -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("deserialization_error", "value: not valid JSON", ["value: not valid JSON"]),
        (
            "schema_error",
            "missing: a, b; of another type: c (string, not decimal(18,6)), d (number, not string)",
            ["missing: a", "missing: b", "of another type: c", "of another type: d"],
        ),
        ("transformation_error", 'not computed: n; values: {"a":"x; y: z"}', ["not computed: n"]),
        (
            "validation_error",
            'rules not met: r, s; values: {"a":1}',
            ["rules not met: r", "rules not met: s"],
        ),
    ],
)
def test_a_message_is_counted_by_what_it_complains_of(
    kind: str, message: str, expected: list[str]
) -> None:
    assert reasons(kind, message) == expected


def test_errors_counts_by_type_and_rule_and_shows_samples(
    settings: Settings, stack: dict[str, str], folder: Path, name: str
) -> None:
    stream = write(folder, name, expression="case when n < 55 then n // 2 end")
    send(settings, name, *records(1, 50, 51, 60), b"\xff\x00bro", b'{"n": "x"}', b'{"m": 1}')
    land(settings, stream)
    found = dead_letters(open_catalog(settings).load_table(stream.table), [], None, samples=1)
    assert found.counts == {
        ("validation_error", "rules not met: n_is_small"): 2,
        ("transformation_error", "not computed: half"): 1,
        ("deserialization_error", "value: not valid UTF-8"): 1,
        ("schema_error", "of another type: n"): 1,
        ("schema_error", "missing: n"): 1,
    }
    assert [row["_error_type"] for row in found.samples] == sorted(ERROR_TYPES)
    env = {**stack, "HEADWATER_STREAMS": str(folder), "COLUMNS": "200"}
    done = run(HEADWATER, "errors", name, env=env)
    assert done.returncode == 0, done.stderr
    for words in ("n_is_small", "not computed: half", r"b'\xff\x00bro'", '{"n": "x"}', "replay"):
        assert words in done.stdout
    only = run(HEADWATER, "errors", name, "--type", "schema_error", "--samples", "0", env=env)
    assert "n_is_small" not in only.stdout
    assert "missing: n" in only.stdout
    none = run(HEADWATER, "errors", name, "--since", "2100-01-01", env=env)
    assert "No failed records." in none.stdout
