-- Bronze and silver agree, up to the newest arrival that silver has read: each valid record of
-- bronze is in silver under its ticker, event time and price, and silver has nothing else.
with both as (

    select
        ticker,
        event_time,
        price,
        'bronze' as layer
    from {{ source('bronze', 'stocks') }}
    where
        {{ is_valid_record() }}
        and _ingested_at <= (select max(_ingested_at) from {{ ref('stg_stocks__prices') }})

    union all

    select
        ticker,
        event_time,
        price,
        'silver' as layer
    from {{ ref('stg_stocks__prices') }}

)

select
    ticker,
    event_time,
    price,
    min(layer) as only_in
from both
group by ticker, event_time, price
having min(layer) = max(layer)
