{{
    config(
        materialized='incremental',
        incremental_strategy='merge',
        unique_key=['segment_id', 'lane', 'measured_at'],
        partition_by=['days(measured_at)'],
        meta={
            'newest_by': ['_kafka_timestamp', '_kafka_partition', '_kafka_offset'],
            'prune_by': {'measured_at': [0]},
        },
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
    from {{ source('bronze', 'traffic') }}
    where
        {{ is_valid_record() }}
        and {{ arrived_since_last_run(
            source('bronze', 'traffic'), day='measured_at', only=is_valid_record()
        ) }}

),

ranked as (

    select
        *,
        row_number() over (
            partition by segment_id, lane, measured_at
            order by _kafka_timestamp desc, _kafka_partition desc, _kafka_offset desc
        ) as recency
    from source

)

select
    -- ids
    {{ surrogate_key(['segment_id', 'lane', 'measured_at']) }} as count_id,
    segment_id,
    lane,

    -- numerics
    vehicle_count,
    average_speed,

    -- timestamps
    measured_at,
    -- The minute that was counted ends with measured_at, so one that ends at noon is before noon.
    {{ time_window('measured_at - interval 1 microsecond', minutes=15) }} as window_start,

    -- where it came from
    _kafka_timestamp,
    _kafka_partition,
    _kafka_offset,
    _ingested_at
from ranked
where recency = 1
