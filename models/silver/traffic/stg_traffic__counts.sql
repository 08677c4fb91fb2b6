{% set key = ['segment_id', 'lane', 'measured_at'] %}
{#- As compaction does: the highest offset counts. A key is always in the same partition. -#}
{% set newest_by = ['_kafka_offset', '_kafka_timestamp', '_kafka_partition'] %}
{{
    config(
        materialized='incremental',
        unique_key=key,
        partition_by=['days(measured_at)'],
        meta={'newest_by': newest_by},
    )
}}

with source as (

    select
        segment_id,
        lane,
        vehicle_count,
        average_speed,
        measured_at,
        _kafka_timestamp,
        _kafka_partition,
        _kafka_offset,
        _ingested_at
    from {{ iceberg.new_rows(source('bronze', 'traffic')) }}
    where {{ is_valid_record() }}

)

select
    -- ids
    {{ surrogate_key(key) }} as count_id,
    segment_id,
    lane,

    -- numerics
    vehicle_count,
    average_speed,

    -- timestamps
    measured_at,
    -- The minute that was counted ends with measured_at, so one that ends at noon is before noon.
    {{ iceberg.minutes('measured_at - interval 1 microsecond', 15) }} as window_start,

    -- where it came from
    _kafka_timestamp,
    _kafka_partition,
    _kafka_offset,
    _ingested_at
from {{ iceberg.newest_of('source', key, newest_by) }}
