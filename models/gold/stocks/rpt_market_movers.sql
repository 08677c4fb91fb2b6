{{ config(materialized='view') }}

with moves as (

    select
        returns.trading_day,
        tickers.sector,
        returns.ticker,
        returns.daily_return
    from {{ ref('rpt_stock_returns') }} as returns
    inner join {{ ref('dim_tickers') }} as tickers
        on returns.ticker = tickers.ticker
    where returns.daily_return is not null

)

select
    -- ids
    trading_day,
    sector,

    -- numerics
    count(*) as tickers,
    count_if(daily_return > 0) as gainers,
    count_if(daily_return < 0) as losers,
    avg(daily_return) as average_return,
    max(daily_return) as best_return,
    min(daily_return) as worst_return,

    -- names
    max_by(ticker, struct(daily_return, ticker)) as best_ticker,
    min_by(ticker, struct(daily_return, ticker)) as worst_ticker
from moves
group by trading_day, sector
