"""What an increment reads: the days that it touches, and no others."""

from collections import defaultdict

from benchmarks.scans import Scans
from ingestion.settings import Settings
from tests.integration.lab import Lab
from tests.integration.outside import wait_for

SOURCES = "version: 2\nsources: [{{name: landed, schema: {namespace}, tables: [{{name: raw}}]}}]\n"
EVENTS = """
select id, at, _ingested_at
from {{ source('landed', 'raw') }}
where {{ arrived_since_last_run(source('landed', 'raw'), day='at') }}
"""
PER_DAY = """
with touched as (
    select distinct cast(at as date) as day
    from ({{ changed_rows(ref('events'), day='at') }})
)
select touched.day, count(events.id) as events
from touched
left join {{ ref('events') }} as events
    on touched.day = cast(events.at as date) and {{ on_touched_days('events.at') }}
group by touched.day
"""
DAYS = 20


def test_files_of_other_days_are_skipped(lab: Lab, settings: Settings) -> None:
    """Of bronze, of the table that is merged into, and of the one that is read again."""
    raw, events, per_day = map(lab.table, ("raw", "events", "per_day"))
    lab.write("models/sources.yml", SOURCES.format(namespace=lab.namespace))
    lab.model(
        "events", EVENTS, materialized="incremental", unique_key="id",
        partition_by=["days(at)"], meta={"prune_by": {"at": [0]}},
    )  # fmt: skip
    lab.model(
        "per_day", PER_DAY, materialized="incremental", unique_key="day",
        partition_by=["day"], meta={"prune_by": {"day": [0]}},
    )  # fmt: skip
    lab.sql(
        f"create table {raw} (id bigint, at timestamp, _ingested_at timestamp) using iceberg "
        "partitioned by (days(_ingested_at))"
    )
    first = "timestamp '2026-01-01 12:00:00'"
    lab.sql(
        f"insert into {raw} select id, {first} + id * interval 1 day as at, at from range({DAYS})"
    )
    lab.run()
    for table in (raw, events, per_day):
        assert lab.sql(f"select count(*) from {table}.files") == [(DAYS,)]
    lab.sql(  # both are late
        f"insert into {raw} select 1000 + id, {first} + id * interval 1 day, "
        f"{first} + interval {DAYS} days from values (3), (15) as late (id)"
    )
    scans = Scans(settings)
    lab.run()
    read: dict[str, list[int]] = defaultdict(list)

    def all_is_told() -> bool:
        for table, files in scans.new():
            read[table].append(files)
        return len(read[events]) == 2 and len(read[per_day]) > 1

    wait_for(all_is_told)
    assert max(read[raw]) == 1
    assert sorted(read[events]) == [2, 4]  # keys looked up; days read again, of two files each now
    assert max(read[per_day]) == 2
    found = lab.sql(f"select cast(day as string) from {per_day} where events = 2 order by day")
    assert found == [("2026-01-04",), ("2026-01-16",)]


def test_days_that_follow_each_other_are_one_range(lab: Lab) -> None:
    every_other_day = [
        f"2026-{month:02}-{day:02}" for month in (1, 2, 3) for day in range(1, 28, 2)
    ]
    cases = {
        "false": ([], [0]),
        "(at is null)": (["null"], [0]),
        "((at >= timestamp '2026-01-04' and at < timestamp '2026-01-07')"
        " or (at >= timestamp '2026-02-28' and at < timestamp '2026-03-03'))": (
            ["2026-01-05", "2026-03-01"],
            [-1, 0, 1],
        ),
        "((at >= timestamp '2026-01-01' and at < timestamp '2026-03-28'))": (
            every_other_day,  # too many to name each
            [0],
        ),
    }
    say = "".join(
        f"{{{{ log(days_condition('at', {touched}, {offsets}, false), info=true) }}}}"
        for touched, offsets in cases.values()
    )
    lab.write("macros/say.sql", f"{{% macro say() %}}{say}{{% endmacro %}}")
    lab.dbt("run-operation", "say")
    assert lab.said == list(cases)
