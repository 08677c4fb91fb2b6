{{
    config(
        materialized='incremental',
        unique_key=['segment_id', 'window_start'],
        partition_by=['days(window_start)'],
    )
}}

select
    -- ids
    segment_id,
    window_start,

    -- numerics
    sum(vehicle_count) as vehicles,
    {{ exact_average('average_speed', weight='vehicle_count') }} as average_speed,
    count(*) as counts,
    count(distinct lane) as lanes
from {{ iceberg.rows_to_recompute(
    ref('stg_traffic__counts'),
    {'segment_id': 'segment_id', 'window_start': 'window_start'},
) }}
group by segment_id, window_start
