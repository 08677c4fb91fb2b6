{% set key = ['sample_id'] %}
{#- As compaction does: the highest offset counts. A key is always in the same partition. -#}
{% set newest_by = ['_kafka_offset', '_kafka_timestamp', '_kafka_partition'] %}
{{
    config(
        materialized='incremental',
        unique_key=key,
        partition_by=['days(start_time)'],
        meta={'newest_by': newest_by},
    )
}}

with source as (

    select
        sample_id,
        user_id,
        device_id,
        data_type,
        value,
        unit,
        start_time,
        end_time,
        source_app,
        _kafka_timestamp,
        _kafka_partition,
        _kafka_offset,
        _ingested_at,
        metadata['model'] as device_model,
        nullif(trim(metadata['timezone']), '') as named_time_zone,
        if(_kafka_value is null, _kafka_timestamp, null) as _deleted_at
    from {{ iceberg.new_rows(source('bronze', 'health')) }}
    where {{ is_decoded_record() }}

),

normalised as (

    select
        *,
        if(unit = 'degF', (value - 32) / 1.8, value) as normal_value,
        if(unit = 'degF', 'degC', unit) as normal_unit,
        -- Spark fails on a time zone that it does not know, so each is tried first.
        case
            when _deleted_at is not null then null
            when try_cast(concat('2000-01-01 00:00:00 ', named_time_zone) as timestamp) is not null
                then named_time_zone
            else 'UTC'
        end as time_zone
    from {{ iceberg.newest_of('source', key, newest_by) }}

)

select
    -- ids
    sample_id,
    user_id,
    device_id,
    data_type,

    -- numerics
    normal_value as value,
    normal_unit as unit,
    value as reported_value,
    unit as reported_unit,

    -- timestamps
    start_time,
    end_time,
    time_zone,

    -- origin
    source_app,
    device_model,

    -- where it came from
    _deleted_at,
    _kafka_timestamp,
    _kafka_partition,
    _kafka_offset,
    _ingested_at,

    -- the day in the person's life
    cast(from_utc_timestamp(start_time, time_zone) as date) as local_date
from normalised
