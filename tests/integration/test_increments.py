"""Increments of models that say their keys: what they read, and that nothing is lost or doubled.

`check` compares a table with the query that its model compiles to, which is the one for all rows.
"""

import re
import subprocess
import threading
from collections import defaultdict
from typing import Any

import pytest

from benchmarks.scans import Scans
from ingestion.settings import Settings
from tests.conftest import DBT, ROOT, clean_environment
from tests.integration.lab import Lab
from tests.integration.outside import wait_for

SOURCES = """
version: 2
sources:
  - name: landed
    schema: {namespace}
    config: {{loaded_at_field: arrived_at}}
    tables: [{{name: raw}}]
"""
EVENTS = "select id, kind, at from {{ iceberg.new_rows(source('landed', 'raw')) }}"
PER_DAY = """
select kind, day, count(*) as events, sum(id) as total
from {{ iceberg.rows_to_recompute(
    ref('events'), {'kind': 'kind', 'day': iceberg.date('at')}
) }}
group by kind, day
"""


def make_source(lab: Lab) -> None:
    lab.write("models/sources.yml", SOURCES.format(namespace=lab.namespace))
    lab.sql(
        f"create table {lab.table('raw')} (id bigint, kind string, at timestamp, "
        "arrived_at timestamp) using iceberg partitioned by (days(arrived_at))"
    )
    lab.model(
        "events", EVENTS, materialized="incremental", unique_key=["id", "at"],
        partition_by=["days(at)"],
    )  # fmt: skip


def arrive(lab: Lab, *rows: tuple[int, str, str], hour: int = 0) -> None:
    """Rows of one commit to the source, each `id, kind, at`."""
    values = ", ".join(
        f"({number}, '{kind}', timestamp '{at}', timestamp '2026-03-01' + interval {hour} hours)"
        for number, kind, at in rows
    )
    lab.sql(f"insert into {lab.table('raw')} values {values}")


def make_events(lab: Lab, rows: str = "(1, 'a', '2026-01-05 10:00:00')") -> str:
    """A table that the test itself changes, as the parent of models."""
    lab.model("events", "select 1 as id", materialized="table")
    table = lab.table("events")
    lab.sql(f"create table {table} (id bigint, kind string, at timestamp) using iceberg")
    insert(lab, rows)
    return table


def insert(lab: Lab, rows: str, table: str = "events") -> None:
    name = lab.table(table)
    lab.sql(
        f"insert into {name} select id, kind, cast(at as timestamp) "
        f"from values {rows} as t (id, kind, at)"
    )


def per_day(lab: Lab, query: str = PER_DAY, **config: Any) -> None:
    keys = {"materialized": "incremental", "unique_key": ["kind", "day"], "partition_by": ["day"]}
    lab.model("per_day", query, **(keys | config))


def run(lab: Lab, model: str = "per_day") -> list[str]:
    """The statements of a run of this model, without dbt's own listing of the namespaces."""
    lab.run("--select", model)
    return [one for one in lab.log if not one.startswith("show ")]


def check(lab: Lab, model: str = "per_day") -> None:
    compiled = lab.folder / "target" / "compiled" / "lab" / "models" / f"{model}.sql"
    columns = ", ".join(f"`{name}`" for name in lab.columns(model))
    rows = sorted(lab.sql(f"select {columns} from ({compiled.read_text()})"), key=repr)
    assert lab.rows(model, columns) == rows


# --- what is read and sent ------------------------------------------------------------------------


def test_files_of_other_days_are_skipped(lab: Lab, settings: Settings) -> None:
    """Of the source, of the table that is merged into, and of the one that is read again."""
    make_source(lab)
    per_day(lab)
    for day in range(1, 11):
        arrive(lab, (day, "a", f"2026-01-{day:02} 12:00:00"), hour=24 * day)
    lab.run()
    raw, events, days = map(lab.table, ("raw", "events", "per_day"))
    assert lab.sql(f"select count(*) from {days}.files") == [(10,)]
    arrive(lab, (103, "a", "2026-01-03 12:00:00"), (108, "a", "2026-01-08 12:00:00"), hour=264)
    scans = Scans(settings)
    lab.run()
    read: dict[str, list[int]] = defaultdict(list)

    def all_is_told() -> bool:
        for table, files in scans.new():
            read[table].append(files)
        return bool(read[raw] and read[events] and read[days])

    wait_for(all_is_told)
    assert max(read[raw]) == 1
    assert max(read[events]) <= 4  # two days, of two files each after the merge
    assert max(read[days]) == 2
    check(lab)


def test_nothing_new_takes_two_statements_and_no_commit(lab: Lab) -> None:
    make_source(lab)
    per_day(lab)
    arrive(lab, (1, "a", "2026-01-05 12:00:00"))
    lab.run()
    before = lab.snapshots("events"), lab.snapshots("per_day")
    for model in ("events", "per_day"):
        sent = run(lab, model)
        assert len(sent) <= 3, sent
    assert (lab.snapshots("events"), lab.snapshots("per_day")) == before


def test_an_increment_takes_ten_statements_at_most(lab: Lab) -> None:
    make_source(lab)
    per_day(lab)
    arrive(lab, (1, "a", "2026-01-05 12:00:00"))
    lab.run()
    arrive(lab, (2, "a", "2026-01-06 12:00:00"), hour=1)
    for model in ("events", "per_day"):
        sent = run(lab, model)
        assert any("merge into" in one for one in sent)
        assert len(sent) <= 10, sent
    check(lab)


def test_what_compiles_is_the_query_for_all_rows_and_touches_no_mark(lab: Lab) -> None:
    make_source(lab)
    per_day(lab)
    arrive(lab, (1, "a", "2026-01-05 12:00:00"))
    lab.run()
    arrive(lab, (2, "a", "2026-01-05 12:00:00"), hour=1)
    lab.run("--select", "events")
    before = lab.snapshots("per_day")
    for command in (
        ["compile"],
        ["docs", "generate"],
        ["show", "--select", "per_day"],
        ["run", "--empty", "--select", "per_day"],
    ):
        found = lab.dbt(*command)
        assert all(one.startswith("success") for one in found.values()), found
        if command[0] == "compile":
            check_sql = (lab.folder / "target/compiled/lab/models/per_day.sql").read_text()
            assert lab.sql(check_sql)[0][2] == 2
    rows = lab.rows("per_day")
    assert [row[2] for row in rows] == [1]  # none of them took the change
    assert lab.snapshots("per_day")[: len(before)] == before
    run(lab)
    check(lab)


def test_a_first_build_of_no_rows_is_made_good_by_the_next_run(lab: Lab) -> None:
    make_source(lab)
    per_day(lab)
    arrive(lab, (1, "a", "2026-01-05 12:00:00"))
    lab.run("--empty")
    assert lab.rows("per_day") == []
    lab.run()
    assert len(lab.rows("events")) == 1
    check(lab)


def test_rows_come_to_a_source_that_was_empty_at_first(lab: Lab) -> None:
    make_source(lab)
    per_day(lab)
    lab.run()
    arrive(lab, (1, "a", "2026-01-05 12:00:00"))
    lab.run()
    assert len(lab.rows("events")) == 1
    check(lab)


# --- keys of every kind ---------------------------------------------------------------------------


def test_rows_that_move_change_or_go_touch_what_they_leave(lab: Lab) -> None:
    events = make_events(lab, "(1, 'a', '2026-01-05'), (2, 'a', '2026-01-05'), (3, 'b', null)")
    per_day(lab)
    run(lab)
    lab.sql(f"update {events} set at = timestamp '2026-02-01' where id = 1")
    lab.sql(f"update {events} set id = 30 where id = 3")  # its day is null
    run(lab)
    check(lab)
    lab.sql(f"delete from {events} where id in (1, 30)")
    run(lab)
    check(lab)
    assert lab.rows("per_day", "kind, events") == [("a", 1)]
    insert(lab, "(4, null, '2026-01-05')")
    run(lab)
    check(lab)


WINDOWS = ["week", "month", "quarter", "year", "hour", "minutes"]


@pytest.mark.slow
def test_windows_of_every_length(lab: Lab) -> None:
    events = make_events(lab, "(1, 'a', '2026-01-01 00:00:00'), (2, 'a', '2026-12-31 23:59:59')")
    for window in WINDOWS:
        length = ", 30" if window == "minutes" else ""
        query = PER_DAY.replace("iceberg.date('at')", f"iceberg.{window}('at'{length})")
        keys = {"unique_key": ["kind", "day"], "partition_by": ["months(day)"]}
        lab.model(f"per_{window}", query, materialized="incremental", **keys)
    for change in (
        "",
        f"insert into {events} values (3, 'a', timestamp '2026-01-04 23:59:59'), "
        "(4, 'a', timestamp '2026-03-31 12:10:00')",
        f"delete from {events} where id = 1",
    ):
        if change:
            lab.sql(change)
        lab.run("--exclude", "events")
        for window in WINDOWS:
            check(lab, f"per_{window}")


def test_absurd_times_neither_stop_a_build_nor_explode_it(lab: Lab) -> None:
    make_events(lab)
    per_day(lab, partition_by=["months(day)"])
    hourly = PER_DAY.replace("iceberg.date('at')", "iceberg.hour('at')").replace(
        "}\n)", "}, looks_back='2 days', looks_ahead='1 day'\n)"
    )
    keys = {"materialized": "incremental", "unique_key": ["kind", "day"]}
    lab.model("per_hour", hourly, **keys)
    run(lab)
    run(lab, "per_hour")
    insert(
        lab,
        "(2, 'a', '1970-01-01'), (3, 'a', '9999-12-31 23:59:59.999999'), "
        "(4, 'a', '+57983-05-01 12:00:00'), (5, 'a', '-2000-01-01'), "
        "(6, 'a', '+294247-01-10 04:00:54')",
    )
    # Python knows no such years, so days are compared as numbers.
    for model, number in (("per_day", "unix_date(day)"), ("per_hour", "unix_seconds(day)")):
        run(lab, model)
        compiled = (lab.folder / f"target/compiled/lab/models/{model}.sql").read_text()
        expected = lab.sql(f"select kind, {number}, events, total from ({compiled})")
        found = lab.sql(f"select kind, {number}, events, total from {lab.table(model)}")
        assert sorted(found) == sorted(expected)
        assert len(found) == 6


def test_a_look_back_and_ahead_reaches_what_looks_at_the_change(lab: Lab) -> None:
    events = make_events(
        lab, ", ".join(f"({n}, 'a', '2026-01-{n:02} 10:00')" for n in range(1, 29))
    )
    query = """
    select kind, day, events,
        sum(events) over (
            partition by kind order by unix_date(day) range between 3 preceding and 2 following
        ) as around
    from (
        select kind, day, count(*) as events
        from {{ iceberg.rows_to_recompute(
            ref('events'), {'kind': 'kind', 'day': iceberg.date('at')},
            looks_back='3 days', looks_ahead='2 days',
        ) }}
        group by kind, day
    )
    """
    per_day(lab, query)
    run(lab)
    insert(lab, "(100, 'a', '2026-01-10 11:00'), (101, 'b', '2026-01-20 11:00')")
    run(lab)
    check(lab)
    lab.sql(f"delete from {events} where id in (15, 16, 101)")
    run(lab)
    check(lab)


JOINED = """
select events.kind, events.day, kinds.label, count(*) as events
from {{ iceberg.rows_to_recompute(
    ref('events'), {'kind': 'kind', 'day': iceberg.date('at')}
) }} as events
left join {{ iceberg.rows_to_recompute(ref('kinds'), {'kind': 'kind'}) }} as kinds
    on events.kind = kinds.kind
group by events.kind, events.day, kinds.label
"""


def make_kinds(lab: Lab, rows: str) -> str:
    lab.model("kinds", "select 1 as kind", materialized="table")
    table = lab.table("kinds")
    lab.sql(f"create table {table} (kind string, label string) using iceberg")
    lab.sql(f"insert into {table} values {rows}")
    return table


def test_a_joined_dimension_without_a_time_reaches_all_its_rows(lab: Lab) -> None:
    """A parent whose keys say no time, next to one whose keys do."""
    events = make_events(
        lab, "(1, 'a', '2026-01-05'), (2, 'a', '2026-02-05'), (3, 'b', '2026-01-05')"
    )
    kinds = make_kinds(lab, "('a', 'old'), ('b', 'other')")
    per_day(lab, JOINED)
    run(lab)
    lab.sql(f"update {kinds} set label = 'new' where kind = 'a'")
    insert(lab, "(4, 'b', '2026-03-05')")
    run(lab)
    check(lab)
    assert ("a", "new") in lab.rows("per_day", "kind, label")
    lab.sql(f"delete from {kinds} where kind = 'b'")
    lab.sql(f"delete from {events} where id = 2")
    run(lab)
    check(lab)


def test_a_dimension_of_which_the_table_is_not_keyed(lab: Lab) -> None:
    """A row that moves to another value of the dimension is updated, not deleted."""
    events = make_events(lab, "(1, 'a', '2026-01-05'), (2, 'b', '2026-01-05')")
    kinds = make_kinds(lab, "('a', 'A'), ('b', 'B')")
    query = """
    select events.id, events.kind, kinds.label
    from {{ iceberg.rows_to_recompute(ref('events'), {'id': 'id', 'kind': 'kind'}) }} as events
    inner join {{ iceberg.rows_to_recompute(ref('kinds'), {'kind': 'kind'}) }} as kinds
        on events.kind = kinds.kind
    """
    per_day(lab, query, unique_key="id", partition_by=None)
    run(lab)
    lab.sql(f"update {events} set kind = 'b' where id = 1")
    run(lab)
    check(lab)
    lab.sql(f"delete from {kinds} where kind = 'b'")
    run(lab)
    check(lab)
    assert lab.rows("per_day") == []


def test_a_parent_without_keys_touches_every_row(lab: Lab) -> None:
    make_events(lab, "(1, 'a', '2026-01-05'), (2, 'b', '2026-02-05')")
    lab.model("rates", "select 1 as rate", materialized="table")
    rates = lab.table("rates")
    lab.sql(f"create table {rates} using iceberg as select 2 as rate")
    query = (
        "select kind, day, count(*) * max(rate) as weighted from "
        "{{ iceberg.rows_to_recompute(ref('events'), "
        "{'kind': 'kind', 'day': iceberg.date('at')}) }} "
        "cross join {{ iceberg.rows_to_recompute(ref('rates'), {}) }} group by kind, day"
    )
    per_day(lab, query)
    run(lab)
    lab.sql(f"update {rates} set rate = 3")
    insert(lab, "(3, 'b', '2026-03-05')")
    run(lab)
    check(lab)
    assert lab.rows("per_day", "weighted") == [(3,), (3,), (3,)]


@pytest.mark.slow
def test_an_outer_join_writes_no_row_of_a_key_that_it_read_in_part(lab: Lab) -> None:
    make_events(lab, "(1, 'a', '2026-01-05'), (2, 'a', '2026-01-06')")
    events = lab.table("events")
    make_kinds(lab, "('a', 'A'), ('c', 'C')")
    query = JOINED.replace("left join", "right join").replace("events.kind,", "kinds.kind,")
    per_day(lab, query)
    run(lab)
    check(lab)
    lab.sql(f"delete from {events} where id = 1")
    run(lab)
    check(lab)


@pytest.mark.slow
def test_two_parents_of_one_name_in_two_schemas(lab: Lab) -> None:
    make_source(lab)
    arrive(lab, (1, "a", "2026-01-05 12:00:00"))
    lab.run("--select", "events")
    other = f"{lab.namespace}_other"
    lab.sql(f"create namespace {other}")
    lab.sql(f"create table {other}.events using iceberg as select * from {lab.table('events')}")
    lab.write(
        "models/twin.sql",
        f"{{{{ config(materialized='table', alias='events', schema='{other}') }}}} select 1 as id",
    )
    per_day(
        lab,
        "select kind, day, count(*) as events, sum(id) as total from (\n"
        "select id, kind, day from {{ iceberg.rows_to_recompute("
        "ref('events'), {'kind': 'kind', 'day': iceberg.date('at')}) }}\nunion all\n"
        "select id, kind, day from {{ iceberg.rows_to_recompute("
        "ref('twin'), {'kind': 'kind', 'day': iceberg.date('at')}) }}\n) group by kind, day",
    )
    try:
        run(lab)
        lab.sql(f"insert into {other}.events values (7, 'a', timestamp '2026-01-05 13:00:00')")
        run(lab)
        check(lab)
        arrive(lab, (8, "a", "2026-01-05 12:00:00"), hour=1)
        lab.run("--select", "events")
        run(lab)
        check(lab)
        assert lab.rows("per_day", "events") == [(4,)]
    finally:
        lab.sql(f"drop table {other}.events purge")
        lab.sql(f"drop namespace {other}")


def test_one_parent_that_is_read_twice(lab: Lab) -> None:
    events = make_events(
        lab, "(1, 'a', '2026-01-05'), (2, 'a', '2026-02-07'), (3, 'b', '2026-02-07')"
    )
    query = """
    with totals as (
        select kind, count(*) as of_kind
        from {{ iceberg.rows_to_recompute(ref('events'), {'kind': 'kind'}) }}
        group by kind
    )
    select days.kind, days.day, count(*) / max(totals.of_kind) as share
    from {{ iceberg.rows_to_recompute(
        ref('events'), {'kind': 'kind', 'day': iceberg.date('at')}
    ) }} as days
    inner join totals on days.kind = totals.kind
    group by days.kind, days.day
    """
    per_day(lab, query)
    run(lab)
    insert(lab, "(4, 'a', '2026-03-01')")
    run(lab)
    check(lab)
    lab.sql(f"delete from {events} where id = 2")
    run(lab)
    check(lab)


@pytest.mark.slow
def test_columns_with_maps(lab: Lab) -> None:
    """Maps have no hash, so each row that was rewritten counts as changed."""
    lab.model("tagged", "select 1 as id", materialized="table")
    table = lab.table("tagged")
    lab.sql(f"create table {table} (id bigint, kind string, tags map<string, int>) using iceberg")
    lab.sql(f"insert into {table} values (1, 'a', map('x', 1)), (2, 'b', map('x', 5))")
    query = """
    select kind, sum(tags['x']) as total
    from {{ iceberg.rows_to_recompute(ref('tagged'), {'kind': 'kind'}) }}
    group by kind
    """
    per_day(lab, query, unique_key="kind", partition_by=None)
    run(lab)
    lab.sql(f"update {table} set tags = map('x', 2) where id = 1")
    run(lab)
    check(lab)


# --- changes that are hard to know --------------------------------------------------------------


@pytest.mark.parametrize("how", ["rolled back", "rebuilt", "rebuilt with the same rows"])
def test_a_parent_that_was_set_back_or_rebuilt_is_compared_with_what_was_read(
    lab: Lab, how: str
) -> None:
    events = make_events(lab, "(1, 'a', '2026-01-05'), (2, 'b', '2026-01-05')")
    insert(lab, "(3, 'a', '2026-01-06')")
    per_day(lab)
    run(lab)
    before = lab.snapshots("per_day")
    if how == "rolled back":
        first = lab.snapshots("events")[0]
        lab.sql(f"call system.rollback_to_snapshot('{events}', {first})")
    else:
        kept = "id <> 3" if how == "rebuilt" else "true"
        lab.sql(
            f"create or replace table {events} using iceberg as select * from {events} where {kept}"
        )
    run(lab)
    assert not lab.said
    check(lab)
    if "same" in how:
        assert lab.snapshots("per_day") == before
    insert(lab, "(9, 'c', '2026-01-09')")
    run(lab)
    check(lab)


def forget_history(lab: Lab, table: str) -> None:
    name = lab.table(table)
    lab.sql(
        f"call system.expire_snapshots(table => '{name}', "
        "older_than => timestamp '2100-01-01', retain_last => 1)"
    )


def test_changes_that_cannot_be_known_replace_the_table_and_say_so(lab: Lab) -> None:
    events = make_events(lab, "(1, 'a', '2026-01-05'), (2, 'b', '2026-01-05')")
    per_day(lab)
    run(lab)
    lab.sql(f"delete from {events} where id = 2")
    forget_history(lab, "events")
    run(lab)
    assert any("cannot be known" in one and "is recomputed" in one for one in lab.said)
    check(lab)


@pytest.mark.parametrize("why", ["full_refresh", "retention"])
def test_a_table_that_could_shrink_is_left_alone(lab: Lab, why: str) -> None:
    """Until someone says whether to keep or to drop what is no longer there."""
    events = make_events(lab, "(1, 'a', '2026-01-05'), (2, 'b', '2026-01-05')")
    if why == "full_refresh":
        per_day(lab, full_refresh=False)
    else:
        per_day(lab)
        meta = {"retention": {"column": "at", "days": 30}}
        lab.model("events", "select 1 as id", materialized="table", meta=meta)
    run(lab)
    run_empty = lab.dbt("run", "--empty", "--select", "per_day")
    assert run_empty["per_day"].startswith("success")  # and it changes nothing of what follows
    lab.sql(f"delete from {events} where id = 2")
    insert(lab, "(3, 'a', '2026-01-05')")
    forget_history(lab, "events")
    before = lab.rows("per_day")
    message = lab.failure("run", "--select", "per_day")
    assert "cannot be known" in message
    assert "a rebuild could lose rows" in message
    assert "unknown_changes: keep" in message
    assert lab.rows("per_day") == before
    lab.run("--select", "per_day", "--vars", "unknown_changes: keep")
    assert lab.rows("per_day", "kind, events") == [("a", 2), ("b", 1)]
    run(lab)
    assert not any("cannot be known" in one for one in lab.said)


def test_rows_that_a_source_no_longer_has_are_not_lost_with_a_position(lab: Lab) -> None:
    """As after an update from a version that kept positions elsewhere."""
    make_source(lab)
    arrive(lab, (1, "a", "2026-01-05 12:00:00"))
    arrive(lab, (2, "a", "2026-01-06 12:00:00"), hour=48)
    lab.sql(f"create table {lab.table('events')} using iceberg as select id, kind, at from "
            f"{lab.table('raw')}")  # fmt: skip
    retention = """'dbt.retention' = '{"days": 1}'"""
    lab.sql(f"alter table {lab.table('raw')} set tblproperties ({retention})")
    lab.sql(f"delete from {lab.table('raw')} where id = 1")
    assert "raw has a retention" in lab.failure("run")
    assert [row[0] for row in lab.rows("events", "id")] == [1, 2]
    lab.run("--vars", "unknown_changes: keep")
    arrive(lab, (3, "a", "2026-01-07 12:00:00"), hour=72)
    lab.run()
    assert [row[0] for row in lab.rows("events", "id")] == [1, 2, 3]


def test_retention_takes_nothing_from_what_was_made_of_its_rows(lab: Lab) -> None:
    """Not even where it has removed a part of a window that a late row touches."""
    meta = {"retention": {"column": "at", "days": 10}}
    lab.model("events", "select 1 as id", materialized="table", meta=meta)
    events = lab.table("events")
    lab.sql(f"create table {events} (id bigint, kind string, at timestamp) using iceberg")
    now = "date_trunc('day', now())"
    for number, days in ((1, 40), (2, 12), (3, 9), (4, 0)):
        lab.sql(f"insert into {events} select {number}, 'a', {now} - interval {days} days")
    per_day(lab, PER_DAY.replace("iceberg.date('at')", "iceberg.year('at')"), partition_by=None)
    run(lab)
    before = lab.rows("per_day")
    lab.dbt("run-operation", "iceberg_maintenance", "--args", f"table: {events}")
    assert len(lab.rows("events")) == 2
    run(lab)
    assert lab.rows("per_day") == before
    lab.sql(f"insert into {events} select 5, 'a', {now} - interval 1 day")
    run(lab)
    assert lab.rows("per_day") == before  # the year has lost rows, so it stays
    lab.model("daily", PER_DAY, materialized="incremental", unique_key=["kind", "day"])
    run(lab, "daily")
    lab.sql(f"insert into {events} select 6, 'a', {now} - interval 1 day")
    run(lab, "daily")
    check(lab, "daily")


def test_a_second_parent_does_not_recompute_what_retention_has_cut(lab: Lab) -> None:
    meta = {"retention": {"column": "at", "days": 10}}
    lab.model("events", "select 1 as id", materialized="table", meta=meta)
    lab.model("notes", "select 1 as id", materialized="table")
    for name in ("events", "notes"):
        table = lab.table(name)
        lab.sql(f"create table {table} (id bigint, kind string, at timestamp) using iceberg")
        lab.sql(f"insert into {table} select 1, 'a', now() - interval 40 days")
    keys = "{'kind': 'kind', 'day': iceberg.date('at')}"
    rows = "select kind, day from {{{{ iceberg.rows_to_recompute(ref('{}'), {}) }}}}"
    both = rows.format("events", keys) + "\nunion all\n" + rows.format("notes", keys)
    query = f"select kind, day, count(*) as events from ({both}) group by kind, day"
    per_day(lab, query)
    run(lab)
    lab.dbt("run-operation", "iceberg_maintenance", "--args", f"table: {lab.table('events')}")
    assert lab.rows("events") == []
    for number in (2, 3):
        lab.sql(f"insert into {lab.table('notes')} select {number}, 'a', now() - interval 40 days")
    run(lab)
    assert lab.rows("per_day", "events") == [(2,)]


def test_rows_that_arrive_with_nothing_new_in_them_are_merged_once(lab: Lab) -> None:
    """A backfill of known records moves the position of the model."""
    make_source(lab)
    lab.model(
        "events",
        EVENTS.replace("select id", "select arrived_at, id"),
        materialized="incremental",
        unique_key="id",
        meta={"newest_by": ["id"]},
    )
    arrive(lab, (1, "a", "2026-01-05 12:00:00"))
    run(lab, "events")
    arrive(lab, (1, "a", "2026-01-05 12:00:00"), hour=1)
    run(lab, "events")
    commits = lab.snapshots("events")
    assert not any("merge into" in one for one in run(lab, "events"))
    assert lab.snapshots("events") == commits


def test_a_hook_that_commits_takes_no_position(lab: Lab) -> None:
    make_events(lab)
    other = lab.table("other")
    lab.sql(f"create table {other} (n int) using iceberg")
    hook = f"insert into {other} values (1)"
    per_day(lab, pre_hook=hook, post_hook=hook)
    run(lab)
    insert(lab, "(2, 'a', '2026-01-05')")
    own = f"insert into {lab.table('per_day')} select 'z', date '2026-01-01', 0, 0"
    per_day(lab, pre_hook=own)
    run(lab)
    summaries = lab.sql(f"select summary from {other}.snapshots")
    assert not any("dbt" in summary for (summary,) in summaries)
    lab.sql(f"delete from {lab.table('per_day')} where kind = 'z'")
    check(lab)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["merge", "insert_overwrite"])
def test_of_two_builds_at_once_the_older_never_wins(lab: Lab, strategy: str) -> None:
    """One may fail; after the next run the table is what one build alone would make."""
    make_events(lab, "(1, 'a', '2026-01-05')")
    if strategy == "merge":
        per_day(lab)
    else:
        query = "select kind, cast(at as date) as day, count(*) as events, sum(id) as total "
        query += "from {{ ref('events') }} group by all"
        per_day(lab, query, incremental_strategy=strategy, unique_key=None)
    run(lab)
    results: list[int] = []

    def build(number: int) -> None:
        paths = ["--project-dir", str(lab.folder), "--profiles-dir", str(lab.folder / "profiles")]
        scratch = lab.folder / f"at_once_{number}"
        paths += ["--target-path", str(scratch), "--log-path", str(scratch)]
        done = subprocess.run(
            [str(DBT), "run", "--select", "per_day", *paths],
            env={**clean_environment(), **lab.env}, capture_output=True, check=False, timeout=200,
        )  # fmt: skip
        results.append(done.returncode)

    insert(lab, ", ".join(f"({n}, 'k{n % 50}', '2026-01-05')" for n in range(10, 500)))
    builds = [threading.Thread(target=build, args=(number,)) for number in range(2)]
    for one in builds:
        one.start()
        insert(lab, f"({1000 + len(results)}, 'a', '2026-01-05')")
    for one in builds:
        one.join()
    assert 0 in results
    run(lab)
    check(lab)


def test_an_overwrite_refuses_to_undo_what_came_meanwhile(lab: Lab) -> None:
    """Iceberg itself checks no overwrite in SQL; the pre-view of the rows is when it began."""
    query = "select date '2026-01-05' as day, 1 as n"
    config = {
        "materialized": "incremental",
        "incremental_strategy": "insert_overwrite",
        "partition_by": "day",
    }
    lab.model("days", query, **config)
    lab.run()
    lab.run()
    (sent,) = [one for one in lab.log if one.startswith("insert overwrite")]
    lab.sql(f"insert into {lab.table('days')} values (date '2026-01-05', 2)")
    with pytest.raises(Exception, match="Found conflicting files"):
        lab.sql(sent.replace("days__dbt_tmp", f"({query})"))


# --- errors of the author -----------------------------------------------------------------------


BY_KIND = "select kind, 1 as day from {{ iceberg.rows_to_recompute(ref('events'), "
SLIPS: dict[str, tuple[str, dict[str, Any], str]] = {
    "no_key": (PER_DAY, {"unique_key": None}, "need a unique_key and the strategy merge"),
    "appends": (PER_DAY, {"incremental_strategy": "append"}, "need a unique_key and the strategy"),
    "reads_another": (
        PER_DAY + " having count(*) > (select count(*) from {{ ref('kinds') }})",
        {},
        "it reads kinds without rows_to_recompute",
    ),
    "reads_a_view": (
        "select id, day from {{ iceberg.rows_to_recompute(ref('seen'), {'day': 'at'}) }}",
        {},
        "is view, which has no history",
    ),
    "lacks_a_key": (
        BY_KIND.replace("select kind", "select sort as kind") + "{'sort': 'kind'}) }}",
        {},
        "has the key sort, and the model has no such column",
    ),
    "looks_soon": (
        BY_KIND + "{'kind': 'kind'}, looks_back='3 days') }}",
        {},
        "exactly one of its keys must be a time",
    ),
    "mistyped": (PER_DAY, {"meta": {"newest_bye": ["id"]}}, "meta has newest_bye, which is not"),
    "outdated": (PER_DAY, {"meta": {"prune_by": {"day": [0]}}}, "meta has prune_by, which is not"),
    "no_source": ("select * from {{ iceberg.new_rows(ref('events')) }}", {}, "is for sources"),
}


def test_a_slip_of_the_author_is_an_error_that_says_what_to_do(lab: Lab) -> None:
    make_events(lab)
    make_kinds(lab, "('a', 'A')")
    lab.model("seen", "select * from {{ ref('events') }}", materialized="view")
    keys = {"materialized": "incremental", "unique_key": ["kind", "day"]}
    for name in SLIPS:  # at first as they should be
        lab.model(name, PER_DAY, **keys)
    lab.run("--exclude", "events", "kinds")
    before = lab.rows("no_key")
    for name, (query, config, _) in SLIPS.items():
        lab.model(name, query, **(keys | config))
    insert(lab, "(2, 'a', '2026-01-05')")
    messages = lab.dbt("run", "--exclude", "events", "kinds", "seen")
    for name, (_, _, problem) in SLIPS.items():
        assert problem in " ".join(messages[name].split()), messages[name]
        assert lab.rows(name) == before


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (PER_DAY.replace("iceberg.date('at')", "iceberg.minutes('at', 7)"), "divides 1440"),
        (PER_DAY.replace("}\n)", "}, looks_back='soon'\n)"), "are days, such as '28 days'"),
    ],
)
def test_a_wrong_argument_is_refused_when_the_project_is_read(
    lab: Lab, wrong: str, problem: str
) -> None:
    lab.model("events", "select 1 as id", materialized="table")
    per_day(lab, wrong)
    with pytest.raises(Exception, match=problem):
        lab.dbt("parse")


def test_a_lookup_may_be_read_as_it_is(lab: Lab) -> None:
    make_events(lab)
    make_kinds(lab, "('a', 'A')")
    query = PER_DAY + " having count(*) > (select count(*) from {{ ref('kinds') }} where false)"
    per_day(lab, query, meta={"lookups": ["kinds"]})
    run(lab)
    check(lab)


def test_on_schema_change_may_be_an_expression(lab: Lab) -> None:
    lab.write("models/changing.yml", "version: 2\n")
    config = "{{ config(materialized='incremental', on_schema_change=var('way', 'fail')) }}\n"
    lab.write("models/changing.sql", config + "select 1 as id")
    lab.run()
    lab.write("models/changing.sql", config + "select 1 as id, 2 as more")
    assert "out of sync" in lab.failure("run")
    lab.run("--vars", "way: append_new_columns")
    assert "more" in lab.columns("changing")


# --- the page of docs ---------------------------------------------------------------------------


def test_the_weekly_model_of_the_docs(lab: Lab) -> None:
    """Two parents, a week, at most 25 lines: as it stands on the page, in a project of its own."""
    page = (ROOT / "docs" / "incremental-models.md").read_text()
    block = r"`models/gold/health/fct_user_weeks.sql`:\n\n```sql\n(.*?)```"
    (model,) = re.findall(block, page, re.DOTALL)
    assert len(model.splitlines()) <= 25
    for parent in ("fct_health_daily", "dim_users"):
        lab.model(parent, "select 1 as id", materialized="table")
    daily, users = lab.table("fct_health_daily"), lab.table("dim_users")
    lab.sql(f"create table {daily} (user_id string, local_date date, samples bigint) using iceberg")
    lab.sql(f"create table {users} (user_id string, time_zone string) using iceberg")
    lab.sql(f"insert into {users} values ('u', 'UTC'), ('v', 'Europe/Berlin')")
    lab.sql(
        f"insert into {daily} select user_id, date '2025-12-29' + cast(day as int), day "
        "from range(60) as days (day) cross join (values ('u'), ('v')) as users (user_id)"
    )
    lab.write("models/fct_user_weeks.sql", model)
    for change in (
        "",
        f"update {users} set time_zone = 'Asia/Tokyo' where user_id = 'v'",
        f"delete from {daily} where user_id = 'u' and local_date >= date '2026-02-01'",
        f"insert into {daily} values ('w', date '2026-01-04', 5), ('u', date '2026-01-05', 7)",
    ):
        if change:
            lab.sql(change)
        run(lab, "fct_user_weeks")
        check(lab, "fct_user_weeks")
    assert any("merge into" in one for one in lab.log)
