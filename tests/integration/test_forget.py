"""`headwater forget`: someone's rows are gone from every layer and file, everyone else's stay."""

import io
import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse
from uuid import uuid4

import fastavro
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from headwater.dbt import parsed_project, run_dbt
from headwater.rows import forget as forget_module
from headwater.rows.backfill import backfill, bound
from headwater.rows.dead_letters import dead_letters
from headwater.rows.forget import Plan, Proof, forget, make_plan
from headwater.rows.replay import replay
from headwater.rows.verify import verify
from headwater.status import error_rows
from ingestion.catalog import open_catalog
from ingestion.errors import ERROR_TYPES, HeadwaterError, TableMovedError
from ingestion.ledger import Ledger, newest_marked, position_of_rows, read_position
from ingestion.settings import Settings
from ingestion.stream import Batch, Stream
from ingestion.stream_file import load_streams
from tests.conftest import HEADWATER, ROOT, clean_environment
from tests.integration.conftest import new_stream
from tests.integration.lab import copy_project
from tests.integration.outside import (
    behind,
    drop,
    land,
    meanwhile,
    read_table,
    send,
    supervised,
    verified,
    wait_for,
)

# Longer than the bounds that Iceberg keeps of a text, and so unusual that no schema has it.
WHO = "person-7f3a9c1e-forgotten"
OTHER = "person-7f3a9c1e-remembered"
WHERE = f"user_id = '{WHO}'"
KEPT = {"_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp", "_ingested_at"}


def plan_for(settings: Settings, stream: Stream, where: str) -> Plan:
    return make_plan(settings, stream, where, lambda *_: None)


def carry_out(settings: Settings, plan: Plan) -> Proof:
    return forget(settings, plan, lambda _: None, lambda *_: None)


def table_folder(settings: Settings, name: str) -> Path:
    return Path(unquote(urlparse(open_catalog(settings).load_table(name).location()).path))


def holders(folder: Path, text: str) -> list[str]:
    """Files and folders that hold the text, read whole: rows, manifests, metadata, names."""
    found = []
    for path in folder.rglob("*"):
        content = path.name
        if path.suffix == ".parquet":
            content += repr(pq.read_table(path).to_pylist())
        elif path.suffix == ".avro":
            with path.open("rb") as file:
                content += repr(list(fastavro.reader(file)))
        elif path.is_file():
            content += repr(path.read_bytes())
        if text in content:
            found.append(str(path.relative_to(folder)))
    return found


def by_place(settings: Settings, name: str) -> dict[tuple[int, int], dict[str, Any]]:
    rows = read_table(settings, name).to_pylist()
    return {(row["_kafka_partition"], row["_kafka_offset"]): row for row in rows}


# --- bronze ---------------------------------------------------------------------------------------


def sample(user: str, value: float = 70.0) -> bytes:
    record = {
        "sample_id": uuid4().hex, "user_id": user, "device_id": "watch", "data_type": "heartRate",
        "value": value, "unit": "bpm", "start_time": 1_767_600_000_000,
        "end_time": 1_767_600_060_000, "source_app": "app", "metadata": {"of": user},
    }  # fmt: skip
    schema = json.loads((ROOT / "ingestion" / "schemas" / "health.avsc").read_text())
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


@pytest.fixture
def health(settings: Settings) -> Iterator[Stream]:
    """The health stream with headers, in a table with a folder for each person."""
    name = f"forget_{uuid4().hex[:8]}"
    update = {"name": name, "topics": [name], "headers": True, "partition_by": ["user_id"]}
    made = load_streams(["health"])[0].model_copy(update=update)
    yield made
    drop(settings, made.table)


def fill(settings: Settings, stream: Stream) -> int:
    """Good, failed and broken records of three people, in two commits. Returns how many of one."""
    topic = stream.topics[0]
    for user in (WHO, OTHER, "someone"):
        values = [sample(user), sample(user), sample(user, value=999.0), sample(user)[:-3]]
        headers = [("user", user.encode())]
        send(settings, topic, *values, keys=[user.encode(), None] * 2, headers=headers)
    land(settings, stream)
    send(settings, topic, None, keys=[WHO.encode()])  # a tombstone names them in its key
    send(settings, topic, sample(WHO), sample("someone"), b"\xff\x00", partitions=4)
    land(settings, stream)
    return 6


def test_one_person_is_gone_and_everyone_else_is_as_before(
    settings: Settings, health: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = fill(settings, health)
    catalog, folder = open_catalog(settings), table_folder(settings, health.table)
    table = catalog.load_table(health.table)
    table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "audit").commit()
    before, position = by_place(settings, health.table), read_position(table)
    by_rows, errors = position_of_rows(table), error_rows(table)
    shutil.copytree(folder, tmp_path / "before")
    old_files = [one for one in (tmp_path / "before").rglob("*") if WHO in str(one)]
    assert len(holders(folder, WHO)) > 5  # the search of this test can find something

    plan = plan_for(settings, health, WHERE)
    assert plan.rows == plan.found[health.table].live_rows == count
    assert (plan.targets[0].snapshots, plan.targets[0].refs) == (1, ["audit"])

    # A crash before the commit leaves the table as it was, one before the tidying leaves history.
    def crash(*_: Any) -> Any:
        raise KeyboardInterrupt

    for module, name in ((Ledger, "commit"), (forget_module, "_tidy")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(module, name, crash)
            carry_out(settings, plan)
        assert holders(folder, WHO)
    again = plan_for(settings, health, WHERE)
    assert again.rows == 0
    assert not again.is_empty
    proof = carry_out(settings, again)
    assert proof.files == sum(one.is_file() for one in folder.rglob("*"))
    assert holders(folder, WHO) == []

    after = by_place(settings, health.table)
    erased = {place for place, row in after.items() if row["_error_type"] == "erased"}
    assert len(erased) == count
    assert {p: row for p, row in after.items() if p not in erased} == {
        p: row for p, row in before.items() if p not in erased
    }
    for place in erased:
        row = dict(after[place])
        assert row.pop("_error_message").startswith("erased on 20")
        assert {name for name, value in row.items() if value} - {"_error_type"} == KEPT - (
            {"_kafka_partition", "_kafka_offset"} - {n for n in KEPT if row[n]}
        )
        assert all(row[name] == before[place][name] for name in KEPT)

    table = catalog.load_table(health.table)
    assert len(table.snapshots()) == 1
    assert list(table.refs()) == ["main"]
    assert read_position(table).offsets == position.offsets
    assert newest_marked(table) is not None
    assert position_of_rows(table)[0] == by_rows[0]
    assert error_rows(table) == errors - 2  # theirs were a rule not met and a broken record
    assert set(ERROR_TYPES) >= {kind for kind, _ in dead_letters(table, [], None, 1).counts}
    found = verify(settings, health, table, lambda *_: None)
    assert found.is_exact
    assert sum(one.erased for one in found.partitions) == count

    # The stream goes on, and nothing brings them back.
    send(settings, health.topics[0], sample("someone"))
    assert land(settings, health).progress.rows == 1
    begin, end = (bound(settings, health, text, "") for text in ("earliest", "latest"))
    added, _ = backfill(settings, health, begin, end, lambda *_: None)
    assert added.rows == 0
    assert replay(settings, health, [], None).failed == errors - 2
    assert verified(settings, health) == len(before) - count + 1
    assert plan_for(settings, health, WHERE).is_empty

    # What someone puts back is found: a data file, its folder's name, a manifest, a torn file.
    data = next(one for one in old_files if one.suffix == ".parquet")
    planted = folder / "data" / data.name
    shutil.copy(data, planted)
    manifests = list((tmp_path / "before" / "metadata").glob("*-m0.avro"))
    shutil.copy(manifests[0], folder / "metadata" / "planted.avro")
    (folder / "data" / "torn.parquet").write_bytes(data.read_bytes()[:-20])
    os.utime(folder / "data" / "torn.parquet", (0, 0))  # else it may be being written
    hits = plan_for(settings, health, WHERE).found[health.table].hits
    names = {Path(one.file.path).name: one.what for one in hits}
    assert set(names) == {planted.name, "planted.avro", "torn.parquet"}
    assert "rows" in names[planted.name]
    carry_out(settings, plan_for(settings, health, WHERE))
    assert holders(folder, WHO) == []
    assert not planted.exists()


def test_it_takes_its_turn_while_the_stream_runs(spark: SparkSession, settings: Settings) -> None:
    batch = Batch(min_records=1, max_seconds=1)
    stream = new_stream().model_copy(update={"batch": batch})
    topic = stream.topics[0]

    def price(ticker: str) -> bytes:
        text = {"event_time": "2026-01-05T14:30:00", "ticker": ticker, "price": 1}
        return json.dumps(text).encode()

    send(settings, topic, *[price("GONE"), price("STAY")] * 10)
    with supervised(spark, settings, stream) as running:
        running.wait_until_drained()
        with meanwhile(lambda: send(settings, topic, price("STAY")), every=0.2):
            carry_out(settings, plan_for(settings, stream, "ticker = 'GONE'"))
        running.wait_until_drained()
        assert not running.told("restart")
    wait_for(lambda: behind(settings, stream) == 0)
    tickers = Counter(read_table(settings, stream.table, "ticker")["ticker"].to_pylist())
    assert (tickers["GONE"], tickers[None]) == (0, 10)
    assert tickers["STAY"] == verified(settings, stream) > 10
    drop(settings, stream.table)


def test_a_writer_that_asked_nobody_makes_it_refuse(
    settings: Settings, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = b'{"event_time": "2026-01-05T14:30:00", "ticker": "GONE", "price": 1}'
    send(settings, stream.topics[0], value)
    land(settings, stream)
    plan = plan_for(settings, stream, "ticker = 'GONE'")
    commit = Ledger.commit

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(Ledger, "commit", commit)
        send(settings, stream.topics[0], value)
        land(settings, stream)
        return commit(*arguments)

    monkeypatch.setattr(Ledger, "commit", overtaken)
    with pytest.raises(TableMovedError):
        carry_out(settings, plan)
    assert verified(settings, stream) == 2


# --- silver and gold ------------------------------------------------------------------------------

DAILY = """\
{{{{ config(materialized='table') }}}}
select cast(event_time as date) as day, count(*) as prices
from {{{{ ref('stg_{name}') }}}} group by 1
"""
LETTERS = """\
{{{{ config(materialized='table', meta={{'forget': 'rebuild'}}) }}}}
select
    _kafka_topic as kafka_topic, _kafka_partition as kafka_partition,
    _kafka_offset as kafka_offset, _kafka_value as raw_payload, _error_type as error_type,
    _error_message as error_message, ticker
from {{{{ source('bronze', '{name}') }}}}
where _error_type is not null and _error_type <> 'erased'
"""


@pytest.fixture
def project(
    spark: SparkSession, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The project's macros, and its models of stocks over a stream of the test's own."""
    copy_project(tmp_path)
    models = {}
    for layer, old, new in (
        ("silver", "stg_stocks__prices", f"stg_{stream.name}"),
        ("gold", "fct_stock_bars_1m", f"fct_{stream.name}"),
    ):
        text = (ROOT / "models" / layer / "stocks" / f"{old}.sql").read_text()
        text = text.replace("stg_stocks__prices", f"stg_{stream.name}")
        models[layer, new] = text.replace("'stocks'", f"'{stream.name}'")
    models["silver", f"letters_{stream.name}"] = LETTERS.format(name=stream.name)
    models["silver", f"day_{stream.name}"] = DAILY.format(name=stream.name)
    for (layer, name), text in models.items():
        file = tmp_path / "models" / layer / f"{name}.sql"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    # The models have no contracts here, which gold asks for.
    config = (tmp_path / "dbt_project.yml").read_text().replace("enforced: true", "enforced: false")
    (tmp_path / "dbt_project.yml").write_text(config)
    source = {
        "name": "bronze",
        "schema": "bronze",
        "config": {"loaded_at_field": "_ingested_at"},
        "tables": [{"name": stream.name}],
    }
    (tmp_path / "models" / "sources.yml").write_text(json.dumps({"sources": [source]}))
    monkeypatch.chdir(tmp_path)
    parsed_project.cache_clear()
    yield tmp_path
    parsed_project.cache_clear()
    for layer, name in models:
        spark.sql(f"drop table if exists lake.{layer}.{name} purge")


def content(settings: Settings, name: str) -> list[Any]:
    rows = read_table(settings, name).to_pylist()
    return sorted((row for row in rows if row.get("ticker") != "GONE"), key=repr)


@pytest.mark.usefixtures("project")
def test_silver_and_gold_forget_too_and_nothing_flows_back(
    spark: SparkSession, settings: Settings, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def price(ticker: str, price: float, minute: int) -> bytes:
        when = f"2026-01-05T14:{minute:02}:00"
        return json.dumps({"event_time": when, "ticker": ticker, "price": price}).encode()

    values = [price(one, 1 + minute, minute) for one in ("GONE", "STAY") for minute in range(20)]
    broken = price("GONE", 1, 0)[:-9]  # names them in its bytes only
    send(settings, stream.topics[0], *values, price("GONE", -1, 0), price("STAY", -1, 0), broken)
    land(settings, stream)
    run_dbt(settings, "run")
    silver, gold, letters, days = (
        f"silver.stg_{stream.name}", f"gold.fct_{stream.name}",
        f"silver.letters_{stream.name}", f"silver.day_{stream.name}",
    )  # fmt: skip
    before = {name: content(settings, name) for name in (silver, gold)}
    gone = spark.table(f"lake.{silver}").where("ticker = 'GONE'")
    copy = spark.createDataFrame(gone.collect(), gone.schema)

    plan = plan_for(settings, stream, "ticker = 'GONE'")
    assert {one.name: one.how for one in plan.targets} == {
        stream.table: "emptied", silver: "deleted", gold: "deleted", letters: "rebuilt",
        days: "rebuilt",
    }  # fmt: skip
    names = [one.name for one in plan.targets]
    assert names.index(stream.table) < names.index(silver) < names.index(gold)
    live = {name: one.live_rows for name, one in plan.found.items()}
    assert live == {stream.table: 22, silver: 20, gold: 20, letters: 2, days: 0}

    # A build that had read bronze before commits to silver after silver was done.
    tidy, late = forget_module._tidy, [copy]

    def overtaken(*arguments: Any) -> int:
        if late:
            late.pop().writeTo(f"lake.{silver}").append()
        return tidy(*arguments)

    monkeypatch.setattr(forget_module, "_tidy", overtaken)
    carry_out(settings, plan)
    for name in (stream.table, silver, gold, letters):
        assert holders(table_folder(settings, name) / "data", "GONE") == [], name
    assert {name: content(settings, name) for name in (silver, gold)} == before
    assert [row["prices"] for row in content(settings, days)] == [20]
    assert len(content(settings, letters)) == 1
    catalog = open_catalog(settings)
    assert {len(catalog.load_table(one.name).snapshots()) for one in plan.targets} == {1}

    send(settings, stream.topics[0], price("STAY", 5, 30))
    land(settings, stream)
    run_dbt(settings, "run")
    assert len(content(settings, gold)) == read_table(settings, gold).num_rows == 21
    assert [row for row in content(settings, gold) if row in before[gold]] == before[gold]
    assert read_table(settings, silver).num_rows == 21
    assert plan_for(settings, stream, "ticker = 'GONE'").is_empty

    # A young file that no snapshot knows may be a build's: it is named, and left alone.
    young = table_folder(settings, silver) / "data" / "young.parquet"
    pq.write_table(pq.read_table(next(young.parent.rglob("*.parquet"))), young)
    with pytest.raises(HeadwaterError) as caught:
        carry_out(settings, plan_for(settings, stream, "price = 5"))
    assert "young.parquet" in caught.value.message
    assert "run this again" in caught.value.hint
    os.utime(young, (0, 0))
    carry_out(settings, plan_for(settings, stream, "price = 5"))
    assert not young.exists()


# --- on the command line --------------------------------------------------------------------------


def command(env: dict[str, str], *arguments: str, stdin: str = "") -> Any:
    return subprocess.run(
        [HEADWATER, "forget", *arguments],
        input=stdin, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT,
        env={**clean_environment(), **env, "COLUMNS": "200"},
    )  # fmt: skip


@pytest.fixture
def lines(
    settings: Settings, stack: dict[str, str], tmp_path: Path
) -> Iterator[tuple[str, dict[str, str]]]:
    """A stream of lines of text, as the command line sees it."""
    name = f"lines_{uuid4().hex[:8]}"
    file = tmp_path / f"{name}.yml"
    file.write_text(
        f"description: d\ntopic: {name}\nvalue: {{format: text}}\n"
        "columns: {line: {type: string, description: d}}\n"
    )
    send(settings, name, WHO.encode(), b"another")
    (stream,) = load_streams([name], tmp_path)
    land(settings, stream)
    yield name, {**stack, "HEADWATER_STREAMS": str(tmp_path)}
    drop(settings, stream.table)


def test_without_a_terminal_it_shows_the_plan_and_changes_nothing(
    settings: Settings, lines: tuple[str, dict[str, str]]
) -> None:
    name, env = lines
    shown = command(env, name, "--where", "-", stdin=f"line = '{WHO}'\n")
    assert shown.returncode == 2
    assert f"bronze.{name}" in shown.stdout
    assert "say --yes" in shown.stderr
    every = command(env, name, "--where", "line >= 'a'", "--yes")
    assert every.returncode == 2
    assert "takes every row" in every.stderr
    assert "Traceback" not in shown.stderr + every.stderr
    assert len(open_catalog(settings).load_table(f"bronze.{name}").snapshots()) == 1


@pytest.mark.slow  # a Spark of its own; its parts are quick tests above
def test_the_command_forgets_and_proves_it(
    settings: Settings, lines: tuple[str, dict[str, str]]
) -> None:
    name, env = lines
    done = command(env, name, "--where", "-", "--yes", stdin=f"line = '{WHO}'")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rows emptied" in done.stdout
    assert "Nothing left: " in done.stdout
    assert holders(table_folder(settings, f"bronze.{name}"), WHO) == []
    assert not [file for file in settings.logs.iterdir() if WHO.encode() in file.read_bytes()]
    again = command(env, name, "--where", "-", "--yes", stdin=f"line = '{WHO}'")
    assert (again.returncode, "Nothing to forget" in again.stdout) == (0, True)
