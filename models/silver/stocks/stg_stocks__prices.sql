{% set key = ['ticker', 'event_time', 'price'] %}
{#- As compaction does: the highest offset counts. A key is always in the same partition. -#}
{% set newest_by = ['_kafka_offset', '_kafka_timestamp', '_kafka_partition'] %}
{{
    config(
        materialized='incremental',
        unique_key=key,
        partition_by=['days(event_time)'],
        meta={'newest_by': newest_by},
    )
}}

with source as (

    select
        ticker,
        price,
        event_time,
        _kafka_timestamp,
        _kafka_partition,
        _kafka_offset,
        _ingested_at
    from {{ iceberg.new_rows(source('bronze', 'stocks')) }}
    where {{ is_valid_record() }}

)

select
    -- ids
    {{ surrogate_key(key) }} as price_id,
    ticker,

    -- numerics
    price,

    -- timestamps
    event_time,

    -- where it came from
    _kafka_timestamp,
    _kafka_partition,
    _kafka_offset,
    _ingested_at
from {{ iceberg.newest_of('source', key, newest_by) }}
