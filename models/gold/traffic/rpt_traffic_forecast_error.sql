{{ config(materialized='view') }}

with compared as (

    select
        forecast.segment_id,
        cast(forecast.window_start as date) as forecast_day,
        actual.vehicles,
        forecast.expected_vehicles - actual.vehicles as error
    from {{ ref('fct_traffic_forecast') }} as forecast
    inner join {{ ref('fct_traffic_15m') }} as actual
        on
            forecast.segment_id = actual.segment_id
            and forecast.window_start = actual.window_start

)

select
    -- ids
    segment_id,
    forecast_day,

    -- numerics
    count(*) as windows,
    sum(vehicles) as vehicles,
    avg(abs(error)) as mean_absolute_error,
    avg(if(vehicles > 0, abs(error) / vehicles, null)) as mean_absolute_percentage_error,
    avg(error) as bias
from compared
group by segment_id, forecast_day
