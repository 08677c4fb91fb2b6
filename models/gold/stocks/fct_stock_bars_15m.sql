{{
    config(
        materialized='incremental',
        unique_key=['ticker', 'window_start'],
        partition_by=['days(window_start)'],
    )
}}

{{ rolled_up_bars(ref('fct_stock_bars_1m'), iceberg.minutes('window_start', 15)) }}
