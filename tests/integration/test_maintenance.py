"""Table care and retention on real tables: what goes, what stays, and who may write meanwhile."""

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from headwater import maintain
from headwater.dbt import parsed_project, run_dbt
from headwater.rows.backfill import backfill
from headwater.rows.verify import committed_records, verify
from ingestion import ledger
from ingestion.catalog import open_catalog
from ingestion.errors import HeadwaterError
from ingestion.kafka import Range, end_offsets
from ingestion.ledger import newest_marked, read_position
from ingestion.offsets import Offsets
from ingestion.settings import Settings
from ingestion.stream import Maintenance, Retention, Stream
from ingestion.table import ensure_table
from tests.conftest import DBT, HEADWATER, ROOT, run
from tests.integration.lab import copy_project
from tests.integration.outside import (
    VALUE,
    expire,
    land,
    meanwhile,
    read_table,
    send,
    supervised,
    verified,
    wait_for,
)

DAY = timedelta(days=1)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A dbt project of its own, with our macros, as the project of this process."""
    copy_project(tmp_path)
    for layer in ("silver", "gold"):
        (tmp_path / "models" / layer).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWATER_STREAMS", str(ROOT / "ingestion" / "streams"))
    monkeypatch.setenv("DBT_TARGET_PATH", str(tmp_path / "target"))
    monkeypatch.setenv("DBT_LOG_PATH", str(tmp_path / "logs"))
    parsed_project.cache_clear()
    yield tmp_path
    parsed_project.cache_clear()


def load(settings: Settings, name: str) -> Table:
    return open_catalog(settings).load_table(name)


def snapshot_ids(settings: Settings, name: str) -> set[int]:
    return {one.snapshot_id for one in load(settings, name).snapshots()}


def age(settings: Settings, name: str, days: int) -> None:
    """As if all of it had happened so many days ago: its commits and its files."""
    table = load(settings, name)
    file = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(file.read_text())
    entries = [metadata[key] for key in ("snapshots", "snapshot-log", "metadata-log")]
    for one in (entry for part in entries for entry in part):
        one["timestamp-ms"] -= days * 86_400_000
    metadata["last-updated-ms"] -= days * 86_400_000
    file.write_text(json.dumps(metadata))
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of it
    for path in folder(table).rglob("*"):
        os.utime(path, (time.time() - days * 86_400,) * 2)


def folder(table: Table) -> Path:
    return Path(table.location().removeprefix("file://"))


def files_by_day(settings: Settings, name: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in load(settings, name).inspect.files().to_pylist():
        metrics = row["readable_metrics"]["event_time"]
        day = f"{metrics['lower_bound']:%Y-%m-%d}"
        found[day] = found.get(day, 0) + 1
    return found


BARS = """
{{{{ config(
    materialized='incremental', unique_key='day', contract={{'enforced': false}}
) }}}}
select day, count(*) as events
from {{{{ iceberg.rows_to_recompute(ref('{silver}'), {{'day': iceberg.date('event_time')}}) }}}}
group by day
"""


def test_silver_and_gold_are_cared_for_as_declared(
    spark: SparkSession, settings: Settings, stack: dict[str, str], project: Path
) -> None:
    """Retention, compaction, expiry and orphans, with what gold has read of silver."""
    key = uuid4().hex[:8]
    silver, gold = f"silver.events_{key}", f"gold.bars_{key}"
    policy = {"sort_by": ["n"], "time_travel_days": 5, "keep_snapshots": 2}
    meta = {"iceberg_maintenance": policy, "retention": {"column": "event_time", "days": 30}}
    (project / f"models/silver/events_{key}.sql").write_text(
        f"{{{{ config(materialized='incremental', meta={json.dumps(meta)}) }}}}\nselect 1 as n\n"
    )
    (project / f"models/gold/bars_{key}.sql").write_text(BARS.format(silver=f"events_{key}"))
    days = [datetime.now(UTC).date() - back * DAY for back in (40, 3, 0)]
    old, closed, today = (day.isoformat() for day in days)
    spark.sql(
        f"create table lake.{silver} (n int, event_time timestamp) using iceberg partitioned by "
        "(days(event_time)) tblproperties ('write.distribution-mode' = 'none')"
    )

    def insert(day: str, *numbers: int, files: int = 1) -> None:
        noon = f"timestamp '{day} 12:00:00+00:00'"
        spark.sql(
            f"insert into lake.{silver} select /*+ repartition({files}) */ n, {noon} "
            f"from (select explode(array({', '.join(map(str, numbers))})) as n)"
        )

    def bars() -> dict[str, int]:
        rows = read_table(settings, gold).to_pylist()
        return {row["day"].isoformat(): row["events"] for row in rows}

    insert(old, 1, 2)
    insert(closed, *range(12, 0, -1), files=6)
    insert(today, *range(9), files=4)
    age(settings, silver, 10)
    insert(today, 1)
    run_dbt(settings, "run", "--select", f"bars_{key}")
    assert bars() == {old: 2, closed: 12, today: 10}
    last_read = load(settings, silver).current_snapshot()
    assert last_read is not None
    for name in (silver, gold):
        age(settings, name, 10)
    insert(today, 2)
    promised = load(settings, silver).current_snapshot()
    assert promised is not None
    for name in (silver, gold):
        age(settings, name, 10)
    insert(today, 3)
    stray = folder(load(settings, silver)) / "data" / "stray.parquet"
    stray.write_bytes(b"of a writer that died")
    os.utime(stray, (0, 0))

    # A dry run says it all and changes nothing, whoever is asked.
    before = load(settings, silver).metadata_location
    would = maintain.care(settings, silver, dry_run=True)
    for words in (
        f"would remove rows with event_time before {datetime.now(UTC).date() - 30 * DAY}",
        "would compact 6 files",
        "would expire 3 snapshots",
        "would remove 1 orphan file",
    ):
        assert words in would.done
    assert would.before == would.after
    env = {**stack, "DBT_TARGET_PATH": str(project / "t"), "DBT_LOG_PATH": str(project / "l")}
    plain = run(
        DBT, "run-operation", "iceberg_maintenance", "--profiles-dir", "profiles",
        "--args", f"{{table: {silver}, dry_run: true}}", env=env, cwd=project,
    )  # fmt: skip
    assert would.done in plain.stdout, plain.stdout
    assert load(settings, silver).metadata_location == before
    assert stray.exists()

    # The command does it.
    done = run(
        HEADWATER, "maintain", "--table", silver, "--table", gold,
        env={**env, "COLUMNS": "300"}, cwd=project,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compacted 6 files into 1" in done.stdout
    assert "expired 3 snapshots" in done.stdout
    assert not stray.exists()
    assert files_by_day(settings, silver) == {closed: 1, today: 7}
    (compacted,) = (
        spark.sql(f"select collect_list(n) from lake.{silver} where event_time < '{today}'").first()
        or ()
    )
    assert compacted == sorted(compacted)
    assert len(compacted) == 12
    # What gold has read stays, though its time is over, and what was current five days ago.
    assert {last_read.snapshot_id, promised.snapshot_id} < snapshot_ids(settings, silver)
    as_it_was = spark.sql(f"select n from lake.{silver} version as of {promised.snapshot_id}")
    assert as_it_was.count() == 2 + 12 + 11
    assert len(snapshot_ids(settings, gold)) == 1

    # A second time there is nothing to do, and nothing is done.
    before = load(settings, silver).metadata_location
    assert maintain.care(settings, silver, dry_run=False).done == "nothing to do"
    assert maintain.care(settings, gold, dry_run=False).done == "nothing to do"
    assert load(settings, silver).metadata_location == before

    # Gold goes on from there. The bar of the day that silver no longer has stays as it is.
    insert(closed, 100)
    run_dbt(settings, "run", "--select", f"bars_{key}")
    assert "so all of it is recomputed" not in (project / "logs" / "dbt.log").read_text()
    assert bars() == {old: 2, closed: 13, today: 12}
    spark.sql(f"drop table lake.{silver} purge")
    spark.sql(f"drop table lake.{gold} purge")


def test_a_model_takes_no_rows_that_its_retention_would_remove(
    spark: SparkSession, settings: Settings, project: Path
) -> None:
    key = uuid4().hex[:8]
    today = datetime.now(UTC).date()
    times = [
        f"{today - back * DAY} {at}" for back, at in ((31, "23:59"), (30, "00:00"), (0, "1:00"))
    ]
    rows = ", ".join([*(f"(timestamp '{one}:00+00:00')" for one in times), "(null)"])
    query = f"select seen_at from values {rows} as t(seen_at)"
    meta = {"retention": {"column": "seen_at", "days": 30}}
    expected = {f"kept_{key}": 3, f"merged_{key}": 3, f"all_{key}": 4}
    for name, kind, declared in zip(
        expected, ("table", "incremental", "table"), (meta, meta, {}), strict=True
    ):
        (project / f"models/silver/{name}.sql").write_text(
            f"{{{{ config(materialized='{kind}', unique_key='seen_at', "
            f"meta={json.dumps(declared)}) }}}}\n{query}\n"
        )
    for _ in range(2):  # the second run merges
        run_dbt(settings, "run")
        found = {name: read_table(settings, f"silver.{name}").num_rows for name in expected}
        assert found == expected
    for name in expected:
        spark.sql(f"drop table lake.silver.{name} purge")


def test_a_policy_with_an_unknown_key_names_table_and_key(
    spark: SparkSession, settings: Settings, project: Path
) -> None:
    name = f"wrong_{uuid4().hex[:8]}"
    (project / f"models/silver/{name}.sql").write_text(
        "{{ config(materialized='table', meta={'iceberg_maintenance': {'min_file': 3}}) }}\n"
        "select 1 as n\n"
    )
    spark.sql(f"create table lake.silver.{name} (n int) using iceberg")
    with pytest.raises(HeadwaterError) as caught:
        maintain.cared_tables(settings, [])
    assert f"silver.{name}: min_file is not a key of iceberg_maintenance" in caught.value.message
    spark.sql(f"drop table lake.silver.{name} purge")


@pytest.mark.usefixtures("project")
def test_retention_of_a_stream_moves_no_position_and_nothing_comes_back(
    spark: SparkSession,
    settings: Settings,
    stream: Stream,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = stream.model_copy(update={"retention": Retention(days=2)})
    topic = stream.topics[0]
    send(settings, topic, *[VALUE] * 40, partitions=2)
    with monkeypatch.context() as patch:
        long_ago = datetime.now(UTC) - 5 * DAY
        patch.setattr(ledger, "next_stamp", lambda newest: max(long_ago, newest + DAY / 86_400))
        land(settings, stream)
    before = read_position(load(settings, stream.table)).offsets
    assert "would remove rows" in maintain.care(settings, stream.table, dry_run=True).done
    assert read_table(settings, stream.table).num_rows == 40

    assert "removed rows" in maintain.care(settings, stream.table, dry_run=False).done
    assert read_table(settings, stream.table).num_rows == 0
    assert read_position(load(settings, stream.table)).offsets == before
    expire(spark, stream)  # someone else takes the last mark away
    assert newest_marked(load(settings, stream.table)) is None
    assert read_position(load(settings, stream.table)).offsets == before

    send(settings, topic, *[VALUE] * 20)
    assert land(settings, stream).progress.rows == 20
    assert maintain.care(settings, stream.table, dry_run=False).done == "nothing to do"
    found = verify(settings, stream, load(settings, stream.table), lambda *_: None)
    assert found.is_exact
    assert sum(one.retired for one in found.partitions) == 40
    assert sum(one.checked for one in found.partitions) == 20
    begin = Offsets(dict.fromkeys(before, 0))
    end = read_position(load(settings, stream.table)).offsets
    added, retired = backfill(settings, stream, begin, end, lambda *_: None)
    assert (added.rows, retired) == (0, 40)


def test_a_table_that_fails_does_not_stop_the_others(
    spark: SparkSession, stack: dict[str, str], settings: Settings, project: Path
) -> None:
    key = uuid4().hex[:8]
    names = [f"bronze.broken_{key}", f"bronze.whole_{key}"]
    for name in names:
        spark.sql(f"create table lake.{name} using iceberg as select 1 as n")
    for manifest in (folder(load(settings, names[0])) / "metadata").glob("*.avro"):
        manifest.rename(manifest.with_suffix(".away"))
    done = run(HEADWATER, "maintain", "--table", names[0], "--table", names[1],
               env=stack, cwd=project)  # fmt: skip
    assert done.returncode == 1
    assert f"✗ {names[0]}: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "\tat " not in done.stderr
    assert names[1] in done.stdout
    missing = run(HEADWATER, "maintain", "--table", "bronze.nothing", env=stack, cwd=project)
    assert missing.returncode == 1
    assert "there is no table bronze.nothing to maintain" in missing.stderr
    for name in names:
        spark.sql(f"drop table lake.{name}")


@pytest.mark.slow
@pytest.mark.usefixtures("project")
def test_after_500_small_commits_care_under_load_loses_and_doubles_nothing(
    spark: SparkSession, settings: Settings, stream: Stream
) -> None:
    policy = Maintenance(time_travel_days=3, keep_snapshots=5)
    stream = stream.model_copy(update={"maintenance": policy})
    topic = stream.topics[0]
    send(settings, topic, *[VALUE] * 1000, partitions=1)
    commit_one_by_one(settings, stream, commits=500)
    age(settings, stream.table, 5)
    assert verified(settings, stream) == 1000
    old = snapshot_ids(settings, stream.table)
    assert len(old) == 500
    position = read_position(load(settings, stream.table))

    with supervised(spark, settings, stream) as watched:
        with meanwhile(lambda: send(settings, topic, VALUE), every=0.2):
            wait_for(lambda: read_position(load(settings, stream.table)) != position)
            young = snapshot_ids(settings, stream.table) - old
            first = maintain.care(settings, stream.table, dry_run=False)
            second = maintain.care(settings, stream.table, dry_run=False)
        watched.wait_until_drained()
        assert watched.told("restart") == watched.told("failed") == []
    assert "compacted 500 files into 1" in first.done
    assert "compacted" not in second.done
    assert first.before.snapshots > 50 > second.after.snapshots
    table = load(settings, stream.table)
    ids = snapshot_ids(settings, stream.table)
    assert young <= ids  # the promise
    assert position.snapshot_id in ids  # was current three days ago
    marked = newest_marked(table)
    assert marked is not None
    assert marked.snapshot_id in ids
    assert verified(settings, stream) > 1000
    assert read_position(table).offsets[topic, 0] == table.scan().count()


def commit_one_by_one(settings: Settings, stream: Stream, commits: int) -> None:
    """Snapshots as the stream makes them, of a few days ago, without the cost of Spark."""
    table = ensure_table(settings, stream)
    (topic,) = stream.topics
    records = [
        {
            "_kafka_topic": topic,
            "_kafka_partition": 0,
            "_kafka_offset": record.offset(),
            "_kafka_timestamp": datetime.fromtimestamp(record.timestamp()[1] / 1000, UTC),
            "_kafka_value": record.value(),
        }
        for record in committed_records(
            settings, Range(topic, 0, 0, end_offsets(settings, {topic: [0]})[topic, 0])
        )
    ]
    size = len(records) // commits
    began = datetime.now(UTC) - 4 * DAY
    began = began.replace(hour=1)
    for start in range(0, len(records), 50 * size):
        with table.transaction() as transaction:
            for first in range(start, start + 50 * size, size):
                part = records[first : first + size]
                stamp = began + timedelta(seconds=first)
                rows = [{**row, "_ingested_at": stamp} for row in part]
                end = Offsets({(topic, 0): part[-1]["_kafka_offset"] + 1})
                marks = {ledger.OFFSETS: end.to_text(), ledger.STAMP: stamp.isoformat()}
                transaction.append(
                    pa.Table.from_pylist(rows, schema=table.schema().as_arrow()),
                    snapshot_properties=marks,
                )
