{{
    config(
        materialized='incremental',
        incremental_strategy='insert_overwrite',
        partition_by=['received_on'],
    )
}}

{% do note_arrivals(source('bronze', 'health'), day='_kafka_timestamp') %}

-- Days are counted whole: a replay turns records of one device, or of none that is known, into
-- valid ones of another.
with records as (

    select
        cast(_kafka_timestamp as date) as received_on,
        coalesce(device_id, 'unknown') as device_id,
        coalesce(source_app, 'unknown') as source_app,
        {{ is_decoded_record() }} as is_valid,
        _ingested_at
    from {{ source('bronze', 'health') }}
    where
        _kafka_value is not null
        and {{ arrived_on_touched_days(source('bronze', 'health'), day='_kafka_timestamp') }}

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
