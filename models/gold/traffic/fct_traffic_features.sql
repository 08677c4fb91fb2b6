{#- Windows of a quarter of an hour before the one that is described: 4 hours, a day, a week. -#}
{% set steps_back = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 96, 672] %}
{{
    config(
        materialized='incremental',
        incremental_strategy='merge',
        unique_key=['segment_id', 'window_start'],
        partition_by=['days(window_start)'],
        meta={'prune_by': {'window_start': [0, 1, 7]}, 'gone_when_null': 'vehicles'},
    )
}}

with changed as (

    select distinct
        segment_id,
        window_start
    from ({{ changed_rows(ref('fct_traffic_15m'), day='window_start') }})

),

-- A window that changed is a feature of later ones, too.
touched as (

    select
        segment_id,
        window_start + steps_back * interval 15 minutes as window_start,
        min(steps_back) = 0 as is_changed
    from (
        select
            *,
            explode(array({{ steps_back | join(', ') }})) as steps_back
        from changed
    )
    group by segment_id, window_start + steps_back * interval 15 minutes

),

-- Each window under the key of each window that looks back at it: joined by time and steps, Spark
-- would pair all windows of a segment first.
seen as (

    select
        segment_id,
        steps_back,
        vehicles,
        average_speed,
        window_start + steps_back * interval 15 minutes as window_start
    from (
        select
            *,
            explode(array({{ steps_back | join(', ') }})) as steps_back
        from {{ ref('fct_traffic_15m') }}
        where {{ on_touched_days('window_start', offsets=[-7, -6, -1, 0, 1, 6, 7]) }}
    )

)

select
    -- ids
    touched.segment_id,
    touched.window_start,

    -- the calendar
    hour(touched.window_start) as hour_of_day,
    weekday(touched.window_start) + 1 as day_of_week,
    weekday(touched.window_start) >= 5 as is_weekend,

    -- numerics
    max(if(seen.steps_back = 0, seen.vehicles, null)) as vehicles,
    max(if(seen.steps_back = 0, seen.average_speed, null)) as average_speed,
    max(if(seen.steps_back = 1, seen.vehicles, null)) as vehicles_15m_before,
    max(if(seen.steps_back = 4, seen.vehicles, null)) as vehicles_1h_before,
    max(if(seen.steps_back = 96, seen.vehicles, null)) as vehicles_1d_before,
    max(if(seen.steps_back = 672, seen.vehicles, null)) as vehicles_7d_before,
    avg(if(seen.steps_back between 1 and 4, seen.vehicles, null)) as vehicles_mean_1h,
    avg(if(seen.steps_back between 1 and 16, seen.vehicles, null)) as vehicles_mean_4h
from touched
left join seen
    on touched.segment_id = seen.segment_id and touched.window_start = seen.window_start
group by touched.segment_id, touched.window_start, touched.is_changed
-- A later window that has no count is none that looks back.
having touched.is_changed or max(if(seen.steps_back = 0, seen.vehicles, null)) is not null
