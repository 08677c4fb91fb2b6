{{ config(materialized='view') }}

with bars as (

    select
        ticker,
        window_start,
        close,
        lag(close) over (partition by ticker order by window_start) as previous_close,
        avg(close) over (
            partition by ticker
            order by window_start
            rows between 4 preceding and current row
        ) as close_average_5,
        avg(close) over (
            partition by ticker
            order by window_start
            rows between 19 preceding and current row
        ) as close_average_20
    from {{ ref('fct_stock_bars_1d') }}

)

select
    -- ids
    ticker,
    cast(window_start as date) as trading_day,

    -- numerics
    close,
    previous_close,
    cast(close / previous_close - 1 as double) as daily_return,
    cast(close_average_5 as double) as close_average_5,
    cast(close_average_20 as double) as close_average_20
from bars
