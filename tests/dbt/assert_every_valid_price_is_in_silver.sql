-- Bronze and silver agree, up to the newest arrival that silver has read: each valid record of
-- bronze is in silver under its ticker, event time and price, and silver has nothing else.
with bronze as (

    select distinct
        ticker,
        event_time,
        price
    from {{ source('bronze', 'stocks') }}
    where
        {{ is_valid_record() }}
        and _ingested_at <= (select max(_ingested_at) from {{ ref('stg_stocks__prices') }})

),

silver as (

    select
        ticker,
        event_time,
        price
    from {{ ref('stg_stocks__prices') }}

)

(select *, 'missing in silver' as problem from bronze except select *, 'missing in silver' from silver)
union all
(select *, 'not in bronze' as problem from silver except select *, 'not in bronze' from bronze)
