{{
    config(
        materialized='incremental',
        unique_key=['ticker', 'window_start'],
        partition_by=['months(window_start)'],
    )
}}

{{ rolled_up_bars(ref('fct_stock_bars_15m'), iceberg.day('window_start')) }}
