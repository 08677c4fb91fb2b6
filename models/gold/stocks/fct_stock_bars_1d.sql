{{
    config(
        materialized='incremental',
        incremental_strategy='merge',
        unique_key=['ticker', 'window_start'],
        partition_by=['months(window_start)'],
        meta={'prune_by': {'window_start': [0]}, 'gone_when_null': 'trades'},
    )
}}

{{ rolled_up_bars(ref('fct_stock_bars_15m'), minutes=1440) }}
