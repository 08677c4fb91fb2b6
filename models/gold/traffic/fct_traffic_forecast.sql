{#- The same time of day on these days before: the week's last days, and the same weekday. -#}
{% set days_back = [1, 2, 3, 4, 5, 6, 7, 14, 21, 28] %}
{{
    config(
        materialized='incremental',
        incremental_strategy='merge',
        unique_key=['segment_id', 'window_start'],
        partition_by=['days(window_start)'],
        meta={
            'prune_by': {'window_start': days_back},
            'gone_when_null': 'expected_vehicles',
        },
    )
}}
{% set forecast_until = newest_value(this, 'window_start') %}

with changed as (

    select distinct
        segment_id,
        window_start
    from ({{ changed_rows(ref('fct_traffic_15m'), day='window_start') }})

),

days as (

    select explode(array({{ days_back | join(', ') }})) as days_back

),

windows as (

    select
        segment_id,
        window_start,
        vehicles
    from {{ ref('fct_traffic_15m') }}
    where
        -- A change reaches forecasts up to 28 days later, and these look up to 28 days back.
        {{ on_touched_days('window_start', offsets=range(-27, 28)) }}
        or window_start > {{ forecast_until }} - interval 28 days

),

horizon as (

    select max(window_start) + interval 24 hours as last_window_start
    from {{ ref('fct_traffic_15m') }}

),

touched as (

    select
        changed.segment_id,
        changed.window_start + days.days_back * interval 1 day as window_start
    from changed
    cross join days

    union

    -- As time goes on, more windows come within 24 hours of the newest one.
    select
        windows.segment_id,
        windows.window_start + days.days_back * interval 1 day as window_start
    from windows
    cross join days
    where windows.window_start + days.days_back * interval 1 day > {{ forecast_until }}

),

looks_back as (

    select
        touched.segment_id,
        touched.window_start,
        days.days_back,
        windows.vehicles
    from touched
    cross join days
    left join windows
        on
            touched.segment_id = windows.segment_id
            and windows.window_start = touched.window_start - days.days_back * interval 1 day
    where touched.window_start <= (select horizon.last_window_start from horizon)

)

select
    -- ids
    segment_id,
    window_start,

    -- numerics
    coalesce(
        avg(if(days_back % 7 = 0, vehicles, null)),
        avg(if(days_back % 7 > 0, vehicles, null))
    ) as expected_vehicles,
    count(if(days_back % 7 = 0, vehicles, null)) as weeks_seen,
    count(if(days_back % 7 > 0, vehicles, null)) as days_seen
from looks_back
group by segment_id, window_start
