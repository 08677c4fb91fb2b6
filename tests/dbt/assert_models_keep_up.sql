-- No model is more than a day behind what it reads: a build that skips a model, or a schedule that
-- leaves it out, shows here.
{% set pairs = [
    (ref('dead_letters'), source('bronze', 'stocks')),
    (ref('dead_letters'), source('bronze', 'health')),
    (ref('dead_letters'), source('bronze', 'sensors')),
    (ref('dead_letters'), source('bronze', 'traffic')),
    (ref('rpt_pipeline_quality'), source('bronze', 'stocks')),
    (ref('rpt_pipeline_quality'), source('bronze', 'health')),
    (ref('rpt_pipeline_quality'), source('bronze', 'sensors')),
    (ref('rpt_pipeline_quality'), source('bronze', 'traffic')),
    (ref('stg_stocks__prices'), source('bronze', 'stocks')),
    (ref('fct_stock_bars_1m'), ref('stg_stocks__prices')),
    (ref('fct_stock_bars_15m'), ref('fct_stock_bars_1m')),
    (ref('fct_stock_bars_1d'), ref('fct_stock_bars_15m')),
    (ref('stg_health__samples'), source('bronze', 'health')),
    (ref('rpt_health_data_quality'), source('bronze', 'health')),
    (ref('fct_health_daily'), ref('stg_health__samples')),
    (ref('stg_sensors__readings'), source('bronze', 'sensors')),
    (ref('fct_sensor_hourly'), ref('stg_sensors__readings')),
    (ref('stg_traffic__counts'), source('bronze', 'traffic')),
    (ref('fct_traffic_15m'), ref('stg_traffic__counts')),
    (ref('fct_traffic_features'), ref('fct_traffic_15m')),
    (ref('fct_traffic_forecast'), ref('fct_traffic_15m')),
] %}
{% for model, parent in pairs %}
    {{ iceberg.lag_behind(model, parent, hours=24) }}
    {{ 'union all' if not loop.last }}
{% endfor %}
