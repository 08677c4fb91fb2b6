{{
    config(
        materialized='incremental',
        unique_key=['ticker', 'window_start'],
        partition_by=['days(window_start)'],
    )
}}

with prices as (

    select
        *,
        struct(event_time, _kafka_timestamp, _kafka_partition, _kafka_offset) as place
    from {{ iceberg.rows_to_recompute(
        ref('stg_stocks__prices'),
        {'ticker': 'ticker', 'window_start': iceberg.minute('event_time')},
    ) }}

)

select
    -- ids
    ticker,
    window_start,

    -- numerics
    min_by(price, place) as open,
    max(price) as high,
    min(price) as low,
    max_by(price, place) as close,
    count(*) as trades,

    -- timestamps
    min(event_time) as first_event_time,
    max(event_time) as last_event_time
from prices
group by ticker, window_start
