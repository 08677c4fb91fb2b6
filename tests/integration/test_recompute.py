"""Gold when nobody can know what changed in silver: it is computed whole, and says so."""

import pytest

from tests.integration.lab import Lab

EVENTS = "select id, at from {raw}"
# A day without an event is a row, too: a model that asks its own table what is there already.
PER_DAY = """
with touched as (
    select distinct cast(at as date) as day
    from ({{ changed_rows(ref('events'), day='at') }})
),
known as (
    {% if is_incremental() %} select max(day) + interval 1 day as new_day from {{ this }}
    {% else %} select cast(null as date) as new_day
    {% endif %}
),
days as (
    select day from touched
    union
    select explode(sequence(coalesce(known.new_day, reach.first_day), reach.last_day)) as day
    from known cross join (
        select min(day) as first_day, max(day) as last_day from touched
    ) as reach
    where coalesce(known.new_day, reach.first_day) <= reach.last_day
)
select days.day, count(events.id) as events
from days
left join {{ ref('events') }} as events
    on days.day = cast(events.at as date) and {{ on_touched_days('events.at') }}
group by days.day
"""


def make(lab: Lab, per_day: str = PER_DAY) -> None:
    raw = lab.table("raw")
    lab.sql(f"create table {raw} (id int, at timestamp) using iceberg")
    lab.model("events", EVENTS.format(raw=raw), materialized="incremental", unique_key="id")
    lab.model("per_day", per_day, materialized="incremental", unique_key="day")
    for number, days_ago in enumerate((9, 7, 3)):
        lab.sql(f"insert into {raw} select {number}, now() - interval {days_ago} days")
        lab.run()
    lab.sql(f"delete from {raw} where id = 2")  # silver takes no notice of what goes from bronze


def days_with_events(lab: Lab) -> list[int]:
    """How long ago the days are, and none where there was no event."""
    found = lab.sql(
        f"select datediff(current_date(), day), events from {lab.table('per_day')} order by day"
    )
    return [days_ago if events else 0 for days_ago, events in found]


@pytest.mark.parametrize("how", ["rolled back", "rebuilt"])
def test_what_silver_no_longer_has_goes_and_the_rest_is_as_a_full_refresh_makes_it(
    lab: Lab, how: str
) -> None:
    make(lab)
    assert days_with_events(lab) == [9, 0, 7, 0, 0, 0, 3]
    if how == "rolled back":
        before = lab.snapshots("events")[1]
        name = lab.table("events")
        lab.sql(f"call lake.system.rollback_to_snapshot('{name}', {before})")
    else:
        lab.run("--select", "events", "--full-refresh")
    lab.run("--select", "per_day")
    assert any("so all of it is recomputed" in one for one in lab.said)
    assert days_with_events(lab) == [9, 0, 7]
    lab.sql(f"insert into {lab.table('raw')} select 3, now() - interval 6 days")
    lab.run()
    assert not lab.said  # and the next run knows again
    assert days_with_events(lab) == [9, 0, 7, 6]


def test_what_was_made_of_rows_that_retention_removes_stays(lab: Lab) -> None:
    """Whichever of the tables that the model reads has the retention."""
    lab.model(
        "notes",
        "select 'a note' as note, now() as at",
        materialized="table",
        meta={"retention": {"column": "at", "days": 30}},
    )
    make(lab, "-- depends_on: {{ ref('notes') }}\n" + PER_DAY)
    lab.run("--select", "events", "--full-refresh")
    lab.run("--select", "per_day")
    (said,) = lab.said
    assert "stay until dbt run --full-refresh --select per_day" in said
    assert days_with_events(lab) == [9, 0, 7, 0, 0, 0, 3]
    lab.run("--select", "per_day", "--full-refresh")
    assert days_with_events(lab) == [9, 0, 7]
