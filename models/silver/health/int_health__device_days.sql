{{
    config(
        materialized='incremental',
        unique_key=['device_id', 'user_id', 'local_date'],
        partition_by=['months(local_date)'],
    )
}}

with samples as (

    select
        *,
        struct(end_time, _kafka_timestamp, _kafka_partition, _kafka_offset) as place
    from {{ iceberg.rows_to_recompute(
        ref('stg_health__samples'),
        {'device_id': 'device_id', 'user_id': 'user_id', 'local_date': 'local_date'},
    ) }}
    where _deleted_at is null

)

select
    -- ids
    device_id,
    user_id,
    local_date,

    -- numerics
    count(*) as samples,

    -- the newest values
    max_by(time_zone, place) as time_zone,
    max_by(device_model, place) as device_model,
    max_by(source_app, place) as source_app,

    -- timestamps
    min(start_time) as first_start_time,
    max(end_time) as last_end_time
from samples
group by device_id, user_id, local_date
