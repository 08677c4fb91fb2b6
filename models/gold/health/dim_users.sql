{{ config(materialized='incremental', unique_key='user_id') }}

with days as (

    select
        *,
        struct(last_end_time, local_date, device_id) as place
    from {{ iceberg.rows_to_recompute(ref('int_health__device_days'), {'user_id': 'user_id'}) }}

)

select
    -- ids
    user_id,

    -- the newest values
    max_by(time_zone, place) as time_zone,
    max_by(device_id, place) as last_device_id,

    -- numerics
    count(distinct device_id) as devices,
    count(distinct local_date) as active_days,
    sum(samples) as samples,

    -- timestamps
    min(first_start_time) as first_seen_at,
    max(last_end_time) as last_seen_at
from days
group by user_id
