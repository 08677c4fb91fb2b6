-- Bronze and silver agree, up to the newest arrival that silver has read: each valid record of
-- bronze is in silver under its ticker, event time and price, and silver has nothing else. The
-- columns are compared by their hash, which keeps the shuffle small.
with layers as (

    select
        xxhash64(ticker, event_time, price) as price_hash,
        'bronze' as layer
    from {{ source('bronze', 'stocks') }}
    where
        {{ is_valid_record() }}
        and _ingested_at <= (
            select max(silver._ingested_at) from {{ ref('stg_stocks__prices') }} as silver
        )

    union all

    select
        xxhash64(ticker, event_time, price) as price_hash,
        'silver' as layer
    from {{ ref('stg_stocks__prices') }}

)

select
    price_hash,
    min(layer) as only_in
from layers
group by price_hash
having min(layer) = max(layer)
