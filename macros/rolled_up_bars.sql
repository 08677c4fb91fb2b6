{# Bars of longer windows from the bars of shorter ones, only those that a changed bar falls in. #}
{% macro rolled_up_bars(finer, minutes) %}
with touched as (

    select distinct
        ticker,
        {{ time_window('window_start', minutes) }} as window_start
    from ({{ changed_rows(finer, day='window_start') }})

),

bars as (

    select
        *,
        {{ time_window('window_start', minutes) }} as wider_window_start
    from {{ finer }}
    where {{ on_touched_days('window_start') }}

)

select
    -- ids
    touched.ticker,
    touched.window_start,

    -- numerics
    min_by(bars.open, bars.window_start) as open,
    max(bars.high) as high,
    min(bars.low) as low,
    max_by(bars.close, bars.window_start) as close,
    sum(bars.trades) as trades,

    -- timestamps
    min(bars.first_event_time) as first_event_time,
    max(bars.last_event_time) as last_event_time
from touched
left join bars
    on touched.ticker = bars.ticker and touched.window_start = bars.wider_window_start
group by touched.ticker, touched.window_start
{% endmacro %}
