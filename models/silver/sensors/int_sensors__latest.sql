{% set key = ['sensor_id'] %}
{#- The time of the measurement counts first, whenever a reading was sent. -#}
{% set newest_by = ['valid_from', '_kafka_offset', '_kafka_timestamp', '_kafka_partition'] %}
{{
    config(
        materialized='incremental',
        unique_key=key,
        meta={'newest_by': newest_by},
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
    from {{ iceberg.new_rows(source('bronze', 'sensors')) }}
    where {{ is_decoded_record() }}

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
from {{ iceberg.newest_of('source', key, newest_by) }}
