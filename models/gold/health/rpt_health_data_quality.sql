{{
    config(
        materialized='incremental',
        unique_key=['received_on', 'device_id', 'source_app'],
        partition_by=['months(received_on)'],
    )
}}

-- Days are counted whole: a replay turns records of one device, or of none that is known, into
-- valid ones of another.
with records as (

    select
        received_on,
        _ingested_at,
        coalesce(device_id, 'unknown') as device_id,
        coalesce(source_app, 'unknown') as source_app,
        {{ is_decoded_record() }} as is_valid
    from {{ iceberg.rows_to_recompute(
        source('bronze', 'health'),
        {'received_on': iceberg.date('_kafka_timestamp')},
    ) }}
    where _kafka_value is not null

)

select
    -- ids
    received_on,
    device_id,
    source_app,

    -- numerics
    count(*) as records,
    count_if(is_valid) as valid_records,
    count_if(is_valid) / count(*) as valid_share,

    -- timestamps
    max(_ingested_at) as _ingested_at
from records
group by received_on, device_id, source_app
