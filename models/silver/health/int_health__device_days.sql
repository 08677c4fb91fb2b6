{{
    config(
        materialized='incremental',
        incremental_strategy='merge',
        unique_key=['device_id', 'user_id', 'local_date'],
        partition_by=['months(local_date)'],
        meta={'prune_by': {'local_date': [0]}, 'gone_when_null': 'samples'},
    )
}}

with touched as (

    select distinct
        device_id,
        user_id,
        local_date
    from ({{ changed_rows(ref('stg_health__samples'), day='local_date') }})
    where _deleted_at is null

),

samples as (

    select
        *,
        struct(end_time, _kafka_timestamp, _kafka_partition, _kafka_offset) as place
    from {{ ref('stg_health__samples') }}
    where
        _deleted_at is null
        -- A local day begins and ends on the UTC days around it.
        and {{ on_touched_days('start_time', offsets=[-1, 0, 1]) }}

)

select
    -- ids
    touched.device_id,
    touched.user_id,
    touched.local_date,

    -- numerics
    nullif(count(samples.sample_id), 0) as samples,

    -- the newest values
    max_by(samples.time_zone, samples.place) as time_zone,
    max_by(samples.device_model, samples.place) as device_model,
    max_by(samples.source_app, samples.place) as source_app,

    -- timestamps
    min(samples.start_time) as first_start_time,
    max(samples.end_time) as last_end_time
from touched
left join samples
    on
        touched.device_id = samples.device_id
        and touched.user_id = samples.user_id
        and touched.local_date = samples.local_date
group by touched.device_id, touched.user_id, touched.local_date
