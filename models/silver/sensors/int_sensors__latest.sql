{{
    config(
        materialized='incremental',
        incremental_strategy='merge',
        unique_key='sensor_id',
        meta={
            'newest_by': ['valid_from', '_kafka_timestamp', '_kafka_partition', '_kafka_offset'],
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
        _ingested_at,
        -- A tombstone ends what was measured until it was sent, however late that arrives.
        if(_kafka_value is null, _kafka_timestamp, measurement_time) as valid_from,
        if(_kafka_value is null, _kafka_timestamp, null) as _deleted_at
    from {{ source('bronze', 'sensors') }}
    where
        {{ is_decoded_record() }}
        and {{ arrived_since_last_run(source('bronze', 'sensors')) }}

),

ranked as (

    select
        *,
        row_number() over (
            partition by sensor_id
            order by
                valid_from desc, _kafka_timestamp desc, _kafka_partition desc, _kafka_offset desc
        ) as recency
    from source

)

select
    -- ids
    sensor_id,

    -- numerics
    temperature,

    -- timestamps
    measurement_time,
    valid_from,
    _deleted_at,

    -- where it came from
    _kafka_timestamp,
    _kafka_partition,
    _kafka_offset,
    _ingested_at
from ranked
where recency = 1
