{{
    config(
        materialized='incremental',
        incremental_strategy='merge',
        unique_key='device_id',
        meta={'gone_when_null': 'samples'},
    )
}}

with touched as (

    select distinct device_id
    from ({{ changed_rows(ref('int_health__device_days')) }})

),

days as (

    select
        *,
        struct(last_end_time, local_date, user_id) as place
    from {{ ref('int_health__device_days') }}

)

select
    -- ids
    touched.device_id,

    -- the newest values
    max_by(days.user_id, days.place) as last_user_id,
    max_by(days.device_model, days.place) as model,
    max_by(days.source_app, days.place) as source_app,

    -- numerics
    count(distinct days.local_date) as active_days,
    sum(days.samples) as samples,

    -- timestamps
    min(days.first_start_time) as first_seen_at,
    max(days.last_end_time) as last_seen_at
from touched
left join days on touched.device_id = days.device_id
group by touched.device_id
