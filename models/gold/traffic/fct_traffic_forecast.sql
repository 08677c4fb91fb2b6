{#- The same time of day on these days before: the week's last days, and the same weekday. -#}
{% set days_back = [1, 2, 3, 4, 5, 6, 7, 14, 21, 28] %}
{{
    config(
        materialized='incremental',
        unique_key=['segment_id', 'window_start'],
        partition_by=['days(window_start)'],
    )
}}

-- Each window under its own key, and under that of each window whose forecast looks back at it.
with seen as (

    select
        segment_id,
        days_back,
        vehicles,
        window_start + days_back * interval 1 day as window_start
    from (
        select
            *,
            explode(array(0, {{ days_back | join(', ') }})) as days_back
        from {{ iceberg.rows_to_recompute(
            ref('fct_traffic_15m'),
            {'segment_id': 'segment_id', 'window_start': 'window_start'},
            looks_back='28 days',
        ) }}
    )

),

forecasts as (

    select
        segment_id,
        window_start,
        avg(if(days_back in (7, 14, 21, 28), vehicles, null)) as mean_of_weeks,
        avg(if(days_back between 1 and 6, vehicles, null)) as mean_of_days,
        count_if(days_back in (7, 14, 21, 28)) as weeks_seen,
        count_if(days_back between 1 and 6) as days_seen,
        -- The newest window of the segment with a count, up to this one.
        max(max(if(days_back = 0, window_start, null))) over (
            partition by segment_id
            order by window_start
            rows between unbounded preceding and current row
        ) as counted_until
    from seen
    group by segment_id, window_start

)

select
    -- ids
    segment_id,
    window_start,

    -- numerics
    weeks_seen,
    days_seen,
    coalesce(mean_of_weeks, mean_of_days) as expected_vehicles
from forecasts
where
    weeks_seen + days_seen > 0
    and window_start <= counted_until + interval 24 hours
