{# Bars of longer windows from the bars of shorter ones; `window` is an expression. #}
{% macro rolled_up_bars(finer, window) %}
select
    -- ids
    ticker,
    window_start,

    -- numerics
    min_by(open, first_event_time) as open,
    max(high) as high,
    min(low) as low,
    max_by(close, first_event_time) as close,
    sum(trades) as trades,

    -- timestamps
    min(first_event_time) as first_event_time,
    max(last_event_time) as last_event_time
from {{ iceberg.rows_to_recompute(finer, {'ticker': 'ticker', 'window_start': window}) }}
group by ticker, window_start
{% endmacro %}
