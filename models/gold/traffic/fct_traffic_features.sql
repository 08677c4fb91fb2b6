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

steps as (

    select explode(array({{ steps_back | join(', ') }})) as steps_back

),

windows as (

    select
        segment_id,
        window_start,
        vehicles,
        average_speed
    from {{ ref('fct_traffic_15m') }}
    where {{ on_touched_days('window_start', offsets=[-7, -6, -1, 0, 1, 6, 7]) }}

),

-- A window that changed is a feature of later ones, too.
touched as (

    select
        segment_id,
        window_start
    from changed

    union

    select
        windows.segment_id,
        windows.window_start
    from windows
    cross join steps
    inner join changed
        on
            windows.segment_id = changed.segment_id
            and changed.window_start
            = windows.window_start - steps.steps_back * interval 15 minutes

),

looks_back as (

    select
        touched.segment_id,
        touched.window_start,
        steps.steps_back,
        windows.vehicles,
        windows.average_speed
    from touched
    cross join steps
    left join windows
        on
            touched.segment_id = windows.segment_id
            and windows.window_start
            = touched.window_start - steps.steps_back * interval 15 minutes

)

select
    -- ids
    segment_id,
    window_start,

    -- the calendar
    hour(window_start) as hour_of_day,
    weekday(window_start) + 1 as day_of_week,
    weekday(window_start) >= 5 as is_weekend,

    -- numerics
    max(if(steps_back = 0, vehicles, null)) as vehicles,
    max(if(steps_back = 0, average_speed, null)) as average_speed,
    max(if(steps_back = 1, vehicles, null)) as vehicles_15m_before,
    max(if(steps_back = 4, vehicles, null)) as vehicles_1h_before,
    max(if(steps_back = 96, vehicles, null)) as vehicles_1d_before,
    max(if(steps_back = 672, vehicles, null)) as vehicles_7d_before,
    avg(if(steps_back between 1 and 4, vehicles, null)) as vehicles_mean_1h,
    avg(if(steps_back between 1 and 16, vehicles, null)) as vehicles_mean_4h
from looks_back
group by segment_id, window_start
