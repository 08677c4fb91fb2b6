{{
    config(
        materialized='incremental',
        incremental_strategy='merge',
        unique_key=['sensor_id', 'measurement_time'],
        partition_by=['days(measurement_time)'],
        meta={
            'newest_by': ['_kafka_timestamp', '_kafka_partition', '_kafka_offset'],
            'prune_by': {'measurement_time': [0]},
        },
    )
}}

with source as (

    select
        sensor_id,
        temperature,
        measurement_time,
        _kafka_timestamp,
        _kafka_partition,
        _kafka_offset,
        _ingested_at
    from {{ source('bronze', 'sensors') }}
    where
        {{ is_valid_record() }}
        and {{ arrived_since_last_run(
            source('bronze', 'sensors'), day='measurement_time', only=is_valid_record()
        ) }}

),

ranked as (

    select
        *,
        row_number() over (
            partition by sensor_id, measurement_time
            order by _kafka_timestamp desc, _kafka_partition desc, _kafka_offset desc
        ) as recency
    from source

)

select
    -- ids
    {{ surrogate_key(['sensor_id', 'measurement_time']) }} as reading_id,
    sensor_id,

    -- numerics
    temperature,

    -- timestamps
    measurement_time,

    -- where it came from
    _kafka_timestamp,
    _kafka_partition,
    _kafka_offset,
    _ingested_at
from ranked
where recency = 1
