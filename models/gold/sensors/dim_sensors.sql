{{ config(materialized='incremental', unique_key='sensor_id') }}

with latest as (

    select *
    from {{ iceberg.rows_to_recompute(ref('int_sensors__latest'), {'sensor_id': 'sensor_id'}) }}
    where _deleted_at is null

),

sensors as (

    select *
    from {{ iceberg.rows_to_recompute(ref('sensors__sensors'), {'sensor_id': 'sensor_id'}) }}

)

select
    -- ids
    latest.sensor_id,

    -- names
    sensors.site,
    sensors.room,

    -- numerics
    sensors.upper_limit,
    latest.temperature,

    -- timestamps
    latest.measurement_time as measured_at,

    -- what follows from it
    latest.temperature > sensors.upper_limit as is_too_warm
from latest
left join sensors
    on latest.sensor_id = sensors.sensor_id
