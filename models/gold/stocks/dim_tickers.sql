{{ config(materialized='table') }}

select
    ticker,
    company_name,
    sector,
    exchange
from {{ ref('stocks__tickers') }}
