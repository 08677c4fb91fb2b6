{#- Windows of a quarter of an hour before the one that is described: 4 hours, a day, a week. -#}
{% set steps_back = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 96, 672] %}
{{
    config(
        materialized='incremental',
        unique_key=['segment_id', 'window_start'],
        partition_by=['days(window_start)'],
    )
}}

-- Each window under the key of each window that looks back at it: joined by time and steps, Spark
-- would pair all windows of a segment first.
with seen as (

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
        from {{ iceberg.rows_to_recompute(
            ref('fct_traffic_15m'),
            {'segment_id': 'segment_id', 'window_start': 'window_start'},
            looks_back='7 days',
        ) }}
    )

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
from seen
group by segment_id, window_start
-- A window without a count of its own is none that looks back.
having count_if(steps_back = 0) > 0
