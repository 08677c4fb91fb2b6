{{
    config(
        materialized='incremental',
        incremental_strategy='merge',
        unique_key=['ticker', 'window_start'],
        partition_by=['days(window_start)'],
        meta={'prune_by': {'window_start': [0]}, 'gone_when_null': 'trades'},
    )
}}

with touched as (

    select distinct
        ticker,
        {{ time_window('event_time', minutes=1) }} as window_start
    from ({{ changed_rows(ref('stg_stocks__prices'), day='event_time') }})

),

prices as (

    select
        ticker,
        price,
        event_time,
        {{ time_window('event_time', minutes=1) }} as window_start,
        struct(event_time, _kafka_timestamp, _kafka_partition, _kafka_offset) as place
    from {{ ref('stg_stocks__prices') }}
    where {{ on_touched_days('event_time') }}

)

select
    -- ids
    touched.ticker,
    touched.window_start,

    -- numerics
    min_by(prices.price, prices.place) as open,
    max(prices.price) as high,
    min(prices.price) as low,
    max_by(prices.price, prices.place) as close,
    nullif(count(prices.price), 0) as trades,

    -- timestamps
    min(prices.event_time) as first_event_time,
    max(prices.event_time) as last_event_time
from touched
left join prices
    on touched.ticker = prices.ticker and touched.window_start = prices.window_start
group by touched.ticker, touched.window_start
