{{
    config(
        materialized='incremental',
        incremental_strategy='merge',
        unique_key=['sensor_id', 'hour_start'],
        partition_by=['months(hour_start)'],
        meta={'prune_by': {'hour_start': [0]}},
    )
}}

with touched as (

    select distinct
        sensor_id,
        {{ time_window('measurement_time', minutes=60) }} as hour_start
    from ({{ changed_rows(ref('stg_sensors__readings'), day='measurement_time') }})

),

reach as (

    select
        sensor_id,
        min(hour_start) as first_hour,
        max(hour_start) as last_hour
    from touched
    group by sensor_id

),

-- The hours that have a row already.
known as (

    {% if is_incremental() %}
        select
            sensor_id,
            min(hour_start) as first_hour,
            max(hour_start) as last_hour
        from {{ this }}
        group by sensor_id
    {% else %}
        select *
        from reach
        where false
    {% endif %}

),

-- A row for each hour from the first to the last reading of a sensor: the hours between what is
-- touched and what is known have none yet.
new_spans as (

    select
        reach.sensor_id,
        reach.first_hour,
        coalesce(known.first_hour - interval 1 hour, reach.last_hour) as last_hour
    from reach
    left join known on reach.sensor_id = known.sensor_id

    union all

    select
        reach.sensor_id,
        known.last_hour + interval 1 hour as first_hour,
        reach.last_hour
    from reach
    inner join known on reach.sensor_id = known.sensor_id

),

hours as (

    select
        sensor_id,
        hour_start
    from touched

    union

    select
        sensor_id,
        explode(sequence(first_hour, last_hour, interval 1 hour)) as hour_start
    from new_spans
    where first_hour <= last_hour

),

readings as (

    select
        sensor_id,
        temperature,
        {{ time_window('measurement_time', minutes=60) }} as hour_start
    from {{ ref('stg_sensors__readings') }}
    where {{ on_touched_days('measurement_time') }}

)

select
    -- ids
    hours.sensor_id,
    hours.hour_start,

    -- numerics
    count(readings.temperature) as readings,
    count(readings.temperature) = 0 as is_gap,
    min(readings.temperature) as minimum,
    max(readings.temperature) as maximum,
    {{ exact_average('readings.temperature') }} as average
from hours
left join readings
    on hours.sensor_id = readings.sensor_id and hours.hour_start = readings.hour_start
group by hours.sensor_id, hours.hour_start
