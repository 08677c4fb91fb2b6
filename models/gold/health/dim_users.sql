{{
    config(
        materialized='incremental',
        incremental_strategy='merge',
        unique_key='user_id',
        meta={'gone_when_null': 'samples'},
    )
}}

with touched as (

    select distinct user_id
    from ({{ changed_rows(ref('int_health__device_days')) }})

),

days as (

    select
        *,
        struct(last_end_time, local_date, device_id) as place
    from {{ ref('int_health__device_days') }}

)

select
    -- ids
    touched.user_id,

    -- the newest values
    max_by(days.time_zone, days.place) as time_zone,
    max_by(days.device_id, days.place) as last_device_id,

    -- numerics
    count(distinct days.device_id) as devices,
    count(distinct days.local_date) as active_days,
    sum(days.samples) as samples,

    -- timestamps
    min(days.first_start_time) as first_seen_at,
    max(days.last_end_time) as last_seen_at
from touched
left join days on touched.user_id = days.user_id
group by touched.user_id
