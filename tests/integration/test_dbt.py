"""The dbt project on a real Thrift server: what it builds, and what it leaves alone."""

import json
from collections import defaultdict
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from demo.generators import Shares
from demo.produce import produce
from headwater.rows.replay import replay
from ingestion.settings import Settings
from ingestion.stream_file import load_stream, load_streams
from tests.conftest import DBT, ROOT, run
from tests.integration.lab import Done, run_dbt
from tests.integration.outside import land, read_table, send

BARS = "gold.fct_stock_bars_1m"
PRICES = "silver.stg_stocks__prices"

Bars = dict[tuple[str, datetime], tuple[Any, ...]]


@pytest.fixture(scope="module")
def dbt_env(stack: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Plain dbt from the project's root; only its scratch folders are the test's own."""
    scratch = tmp_path_factory.mktemp("dbt")
    return {
        **stack,
        "DBT_TARGET_PATH": str(scratch / "target"),
        "DBT_LOG_PATH": str(scratch / "logs"),
    }


def dbt(env: dict[str, str], *arguments: str) -> Done:
    done = run_dbt(ROOT, env, *arguments)
    fine = ("success", "pass", "no-op")  # an exposure has nothing to run
    failed = [one for one in done.nodes.values() if not one.startswith(fine)]
    assert not failed
    return done


@pytest.fixture(scope="module")
def built(settings: Settings, dbt_env: dict[str, str]) -> dict[str, str]:
    """A first wave in every layer."""
    shares = Shares(bad=0.05, late=0.05, duplicates=0.1)
    for stream in load_streams():
        rows = 20_000 if stream.name == "stocks" else 500
        produce(settings, stream.name, rows, None, 21, shares, lambda _: None)
        land(settings, stream)
    done = run(DBT, "build", env=dbt_env, timeout=500)  # as people run it
    assert done.returncode == 0, done.stdout[-5000:]
    assert "ERROR=0" in done.stdout
    assert "WARN=0" in done.stdout
    return dbt_env


def bars(settings: Settings) -> Bars:
    return {
        (row["ticker"], row["window_start"]): (
            row["open"], row["high"], row["low"], row["close"], row["trades"],
            row["first_event_time"], row["last_event_time"],
        )
        for row in read_table(settings, BARS).to_pylist()
    }  # fmt: skip


def is_valid(row: dict[str, Any]) -> bool:
    is_good = row["_error_type"] is None or row["_resolved_at"] is not None
    return is_good and row["_kafka_value"] is not None


def bars_by_hand(settings: Settings) -> Bars:
    """The bars as the definition says, computed in plain Python from the bronze rows."""
    trades: dict[tuple[str, datetime, Decimal], tuple[Any, ...]] = {}
    for row in read_table(settings, "bronze.stocks").to_pylist():
        if not is_valid(row):
            continue
        order = (row["_kafka_offset"], row["_kafka_timestamp"], row["_kafka_partition"])
        key = (row["ticker"], row["event_time"], row["price"])
        trades[key] = max(order, trades.get(key, order))
    minutes = defaultdict(list)
    for (ticker, event_time, price), (offset, timestamp, partition) in trades.items():
        minute = event_time.replace(second=0, microsecond=0)
        minutes[ticker, minute].append((event_time, timestamp, partition, offset, price))
    result: Bars = {}
    for key, found in minutes.items():
        found.sort()
        prices = [trade[-1] for trade in found]
        result[key] = (
            prices[0], max(prices), min(prices), prices[-1], len(found), found[0][0], found[-1][0],
        )  # fmt: skip
    return result


@pytest.mark.usefixtures("built")
def test_the_bars_are_what_an_independent_computation_gives(settings: Settings) -> None:
    expected = bars_by_hand(settings)
    assert len(expected) > 1000
    assert bars(settings) == expected


def test_a_second_run_makes_no_commit(built: dict[str, str], settings: Settings) -> None:
    def snapshots() -> dict[str, list[int]]:
        from ingestion.catalog import open_catalog

        catalog = open_catalog(settings)
        names = [*catalog.list_tables("silver"), *catalog.list_tables("gold")]
        return {
            ".".join(name): [one.snapshot_id for one in catalog.load_table(name).snapshots()]
            for name in names
        }

    before = snapshots()
    assert len(before) > 20
    dbt(built, "run")
    assert snapshots() == before


def test_a_late_row_touches_its_minute_and_no_other(
    built: dict[str, str], settings: Settings
) -> None:
    before = bars(settings)
    key = next(iter(sorted(before)))
    late = {
        "ticker": key[0],
        "event_time": key[1].isoformat(),
        "price": 0.01,
    }
    duplicate = json.dumps({**late, "price": float(before[key][0])})
    send(settings, "stocks-in", json.dumps(late).encode(), duplicate.encode())
    land(settings, load_streams(["stocks"])[0])
    dbt(built, "run", "--select", "stg_stocks__prices+")
    after = bars(settings)
    assert after == bars_by_hand(settings)
    assert {one for one in after if after[one] != before.get(one)} == {key}
    assert after[key][2] == Decimal("0.01")
    added = read_table(settings, BARS).num_rows - len(before)
    assert added == 0


def test_a_replayed_record_flows_on_to_silver_and_gold(
    built: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    """It lacks its ticker, which the key has; the stream file learns to look there."""
    before = bars(settings)
    minute = max(window for _, window in before) + timedelta(days=1)
    value = json.dumps({"event_time": minute.isoformat(), "price": 7.5}).encode()
    send(settings, "stocks-in", value, keys=[b'{"ticker": "AAPL"}'])
    land(settings, load_streams(["stocks"])[0])
    dbt(built, "run", "--select", "stg_stocks__prices+")
    assert bars(settings) == before
    text = (ROOT / "ingestion" / "streams" / "stocks.yml").read_text()
    file = tmp_path / "stocks.yml"
    file.write_text(
        text.replace("value:\n", "key:\n  format: json\nvalue:\n").replace(
            "  ticker:\n", "  ticker:\n    from: [value.ticker, key.ticker]\n"
        )
    )
    mended = load_stream(file)
    done = replay(settings, mended, ["schema_error"], None)
    assert done.resolved >= 1
    assert replay(settings, mended, ["schema_error"], None).resolved == 0
    dbt(built, "run", "--select", "stg_stocks__prices+")
    after = bars(settings)
    assert after["AAPL", minute][3:5] == (Decimal("7.500000"), 1)
    assert after == bars_by_hand(settings)


@pytest.mark.usefixtures("built")
def test_of_equal_prices_the_newest_by_the_total_order_stands(settings: Settings) -> None:
    """Whichever run brought it, and in whatever order they came."""
    newest = {row["price_id"]: row for row in read_table(settings, PRICES).to_pylist()}
    expected = {}
    for row in read_table(settings, "bronze.stocks").to_pylist():
        if is_valid(row):
            key = (row["ticker"], row["event_time"], row["price"])
            order = (row["_kafka_offset"], row["_kafka_timestamp"], row["_kafka_partition"])
            expected[key] = max(order, expected.get(key, order))
    found = {
        (row["ticker"], row["event_time"], row["price"]): (
            row["_kafka_offset"], row["_kafka_timestamp"], row["_kafka_partition"],
        )
        for row in newest.values()
    }  # fmt: skip
    assert found == expected


def test_gold_follows_when_its_source_was_rebuilt(
    built: dict[str, str], settings: Settings
) -> None:
    dbt(built, "run", "--select", "stg_stocks__prices", "--full-refresh")
    dbt(built, "run", "--select", "fct_stock_bars_1m")
    assert bars(settings) == bars_by_hand(settings)


RECONCILED = ("--select", "test_type:singular", "test_name:holds_every_record_of")


def test_reconciliation_holds_while_bronze_is_ahead(
    built: dict[str, str], settings: Settings
) -> None:
    for stream in load_streams():
        produce(settings, stream.name, 100, None, 22, Shares(bad=0.2), lambda _: None)
        land(settings, stream)
    assert len(dbt(built, "test", *RECONCILED).nodes) > 5


@pytest.mark.parametrize(
    ("table", "damage", "found"),
    [
        (PRICES, "delete from {} where price_id = (select min(price_id) from {})", 1),
        (
            "silver.dead_letters",  # one is gone, and one is made up
            "update {} set kafka_offset = -1 where error_id = (select min(error_id) from {})",
            2,
        ),
        (
            "gold.rpt_pipeline_quality",
            "update {} set records = records - 1 where stream = 'health' "
            "and received_hour = (select max(received_hour) from {} where stream = 'health')",
            1,
        ),
        (
            "gold.rpt_pipeline_quality",
            "update {} set errors = errors + 1000 where stream = 'health' "
            "and received_hour = (select max(received_hour) from {} where stream = 'health')",
            1,
        ),
        (PRICES, "delete from {}", None),
        ("silver.dead_letters", "delete from {} where stream = 'sensors'", None),
        ("gold.rpt_pipeline_quality", "delete from {} where stream = 'traffic'", 1),
        (  # silver stopped a week ago, and so did the two tables over all streams
            "bronze.stocks",
            "insert into {} by name select * except (_ingested_at), "
            "_ingested_at + interval 7 days as _ingested_at from {} limit 1",
            3,
        ),
    ],
)
def test_reconciliation_finds_what_was_lost_or_made_up(
    built: dict[str, str], spark: Any, table: str, damage: str, found: int | None
) -> None:
    """And nothing but that."""
    name = f"lake.{table}"
    good = spark.sql(f"select snapshot_id from {name}.refs where name = 'main'").first()[0]
    spark.sql(damage.format(name, name))
    try:
        nodes = run_dbt(ROOT, built, "test", *RECONCILED).nodes
    finally:
        spark.sql(f"call lake.system.rollback_to_snapshot('{table}', {good})")
    failed = [one for one in nodes.values() if not one.startswith("pass")]
    assert len(failed) == 1, nodes
    assert found is None or f"Got {found} result" in failed[0]


@pytest.mark.usefixtures("built")
def test_comments_reach_the_tables(settings: Settings) -> None:
    from ingestion.catalog import open_catalog

    catalog = open_catalog(settings)
    bronze = catalog.load_table("bronze.stocks").schema()
    described = load_streams(["stocks"])[0].columns["ticker"].description
    assert bronze.find_field("ticker").doc == described
    assert all(field.doc for field in bronze.fields)
    for name in (PRICES, BARS, "gold.dim_tickers"):
        assert catalog.load_table(name).schema().find_field("ticker").doc == described
    tables = [*catalog.list_tables("silver"), *catalog.list_tables("gold")]
    for table in tables:
        bare = [one.name for one in catalog.load_table(table).schema().fields if not one.doc]
        assert not bare, table


def test_freshness_is_known_for_every_source(built: dict[str, str]) -> None:
    dbt(built, "source", "freshness")
    results = json.loads((Path(built["DBT_TARGET_PATH"]) / "sources.json").read_text())["results"]
    assert [one["status"] for one in results] == ["pass"] * 4


def test_the_docs_site_is_one_file_with_every_model(built: dict[str, str]) -> None:
    dbt(built, "docs", "generate", "--static")
    site = (Path(built["DBT_TARGET_PATH"]) / "static_index.html").read_text()
    for name in ("fct_stock_bars_1m", "dim_tickers", "stg_stocks__prices", "stock_price_charts"):
        assert name in site
