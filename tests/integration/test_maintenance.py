"""Table care and retention on real tables: what goes, what stays, and who may write meanwhile."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from headwater import maintain
from headwater.catalog import open_catalog
from headwater.dbt import parsed_project, run_dbt, run_operation
from headwater.errors import HeadwaterError
from headwater.settings import Settings
from ingestion import ledger
from ingestion.backfill import backfill
from ingestion.bronze import ensure_table
from ingestion.ledger import newest_marked, read_position
from ingestion.stream import Maintenance, Retention, Stream
from ingestion.verify import verify
from tests.conftest import DBT, HEADWATER, ROOT, run
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
def project(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A dbt project of its own, with our macros, as the project of this process."""
    for name in ("macros", "profiles"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "dbt_project.yml", tmp_path)
    for layer in ("silver", "gold"):
        (tmp_path / "models" / layer).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
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
    materialized='incremental', incremental_strategy='merge', unique_key='day',
    contract={{'enforced': false}}
) }}}}
with touched as (
    select distinct cast(event_time as date) as day from ({{{{ changed_rows(ref('{silver}')) }}}})
)
select touched.day, count(*) as events
from {{{{ ref('{silver}') }}}} as events
inner join touched on cast(events.event_time as date) = touched.day
group by touched.day
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
    (compacted,) = spark.sql(
        f"select collect_list(n) from lake.{silver} where event_time < '{today}'"
    ).first() or ()
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
