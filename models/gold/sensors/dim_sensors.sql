{{
    config(
        materialized='incremental',
        incremental_strategy='merge',
        unique_key='sensor_id',
        meta={'gone_when_null': 'measured_at'},
    )
}}

with touched as (

    select sensor_id
    from ({{ changed_rows(ref('int_sensors__latest')) }})
    union
    select sensor_id
    from ({{ changed_rows(ref('sensors__sensors')) }})

)

select
    -- ids
    touched.sensor_id,

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
from touched
left join {{ ref('int_sensors__latest') }} as latest
    on touched.sensor_id = latest.sensor_id and latest._deleted_at is null
left join {{ ref('sensors__sensors') }} as sensors
    on touched.sensor_id = sensors.sensor_id
