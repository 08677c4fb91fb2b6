{{
    config(
        materialized='incremental',
        incremental_strategy='merge',
        unique_key=['segment_id', 'window_start'],
        partition_by=['days(window_start)'],
        meta={'prune_by': {'window_start': [0]}, 'gone_when_null': 'vehicles'},
    )
}}

with touched as (

    select distinct
        segment_id,
        window_start
    from ({{ changed_rows(ref('stg_traffic__counts'), day='window_start') }})

),

counts as (

    select *
    from {{ ref('stg_traffic__counts') }}
    -- The last count of a day is measured at midnight, on the next one.
    where {{ on_touched_days('measured_at', offsets=[0, 1]) }}

)

select
    -- ids
    touched.segment_id,
    touched.window_start,

    -- numerics
    sum(counts.vehicle_count) as vehicles,
    {{ exact_average('counts.average_speed', weight='counts.vehicle_count') }} as average_speed,
    count(counts.count_id) as counts,
    count(distinct counts.lane) as lanes
from touched
left join counts
    on touched.segment_id = counts.segment_id and touched.window_start = counts.window_start
group by touched.segment_id, touched.window_start
