{{ config(materialized='incremental', unique_key='ticker') }}

select
    ticker,
    company_name,
    sector,
    exchange
from {{ iceberg.rows_to_recompute(ref('stocks__tickers'), {'ticker': 'ticker'}) }}
