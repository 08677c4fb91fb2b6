{{ config(materialized='incremental', unique_key='device_id') }}

with days as (

    select
        *,
        struct(last_end_time, local_date, user_id) as place
    from {{ iceberg.rows_to_recompute(
        ref('int_health__device_days'),
        {'device_id': 'device_id'},
    ) }}

)

select
    -- ids
    device_id,

    -- the newest values
    max_by(user_id, place) as last_user_id,
    max_by(device_model, place) as model,
    max_by(source_app, place) as source_app,

    -- numerics
    count(distinct local_date) as active_days,
    sum(samples) as samples,

    -- timestamps
    min(first_start_time) as first_seen_at,
    max(last_end_time) as last_seen_at
from days
group by device_id
