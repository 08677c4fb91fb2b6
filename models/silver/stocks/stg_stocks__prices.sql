{{
    config(
        materialized='incremental',
        incremental_strategy='merge',
        unique_key=['ticker', 'event_time', 'price'],
        partition_by=['days(event_time)'],
        meta={
            'newest_by': ['_kafka_timestamp', '_kafka_partition', '_kafka_offset'],
            'prune_by': {'event_time': [0]},
        },
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
    from {{ source('bronze', 'stocks') }}
    where
        {{ is_valid_record() }}
        and {{ arrived_since_last_run(
            source('bronze', 'stocks'), day='event_time', only=is_valid_record()
        ) }}

),

ranked as (

    select
        *,
        row_number() over (
            partition by ticker, event_time, price
            order by _kafka_timestamp desc, _kafka_partition desc, _kafka_offset desc
        ) as recency
    from source

)

select
    -- ids
    {{ surrogate_key(['ticker', 'event_time', 'price']) }} as price_id,
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
from ranked
where recency = 1
