{{
    config(
        materialized='incremental',
        unique_key=['user_id', 'local_date', 'data_type'],
        partition_by=['months(local_date)'],
    )
}}

with samples as (

    select
        *,
        struct(end_time, _kafka_timestamp, _kafka_partition, _kafka_offset) as place
    from {{ iceberg.rows_to_recompute(
        ref('stg_health__samples'),
        {'user_id': 'user_id', 'local_date': 'local_date', 'data_type': 'data_type'},
    ) }}
    where _deleted_at is null

)

select
    -- ids
    user_id,
    local_date,
    data_type,

    -- numerics
    count(*) as samples,
    min(value) as minimum,
    max(value) as maximum,
    {{ exact_average('value') }} as average,
    max_by(value, place) as last_value,
    max_by(unit, place) as unit,

    -- timestamps
    max(end_time) as last_measured_at
from samples
group by user_id, local_date, data_type
