{{
    config(
        materialized='incremental',
        unique_key=['sensor_id', 'hour_start'],
        partition_by=['months(hour_start)'],
    )
}}

with hours as (

    select
        sensor_id,
        hour_start,
        count(*) as readings,
        min(temperature) as minimum,
        max(temperature) as maximum,
        {{ exact_average('temperature') }} as average
    from {{ iceberg.rows_to_recompute(
        ref('stg_sensors__readings'),
        {'sensor_id': 'sensor_id', 'hour_start': iceberg.hour('measurement_time')},
        looks_back='7 days',
        looks_ahead='7 days',
    ) }}
    group by sensor_id, hour_start

),

followed as (

    select
        *,
        lead(hour_start) over (partition by sensor_id order by hour_start) as next_hour
    from hours

),

-- Hours without a reading, up to a week of them: a sensor that is silent for longer was off.
gaps as (

    select
        sensor_id,
        explode(
            sequence(hour_start + interval 1 hour, next_hour - interval 1 hour, interval 1 hour)
        ) as hour_start
    from followed
    where
        next_hour > hour_start + interval 1 hour
        and next_hour <= hour_start + interval 7 days

)

select
    -- ids
    sensor_id,
    hour_start,

    -- numerics
    readings,
    false as is_gap,
    minimum,
    maximum,
    average
from hours

union all

select
    sensor_id,
    hour_start,
    0 as readings,
    true as is_gap,
    null as minimum,
    null as maximum,
    null as average
from gaps
