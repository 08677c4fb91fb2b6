{{
    config(
        materialized='incremental',
        incremental_strategy='merge',
        unique_key=['ticker', 'window_start'],
        partition_by=['days(window_start)'],
        meta={'prune_by': {'window_start': 'event_time'}},
    )
}}

with touched as (

    select distinct
        ticker,
        date_trunc('minute', event_time) as window_start
    from ({{ changed_rows(ref('stg_stocks__prices')) }})

),

prices as (

    select
        prices.ticker,
        prices.price,
        prices.event_time,
        touched.window_start,
        struct(
            prices.event_time,
            prices._kafka_timestamp,
            prices._kafka_partition,
            prices._kafka_offset
        ) as place
    from {{ ref('stg_stocks__prices') }} as prices
    inner join touched
        on
            prices.ticker = touched.ticker
            and date_trunc('minute', prices.event_time) = touched.window_start

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
