{{
    config(
        materialized='incremental',
        incremental_strategy='merge',
        unique_key=['user_id', 'local_date', 'data_type'],
        partition_by=['months(local_date)'],
        meta={'prune_by': {'local_date': [0]}, 'gone_when_null': 'samples'},
    )
}}

with touched as (

    select distinct
        user_id,
        local_date,
        data_type
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
    touched.user_id,
    touched.local_date,
    touched.data_type,

    -- numerics
    nullif(count(samples.sample_id), 0) as samples,
    min(samples.value) as minimum,
    max(samples.value) as maximum,
    {{ exact_average('samples.value') }} as average,
    max_by(samples.value, samples.place) as last_value,
    max_by(samples.unit, samples.place) as unit,

    -- timestamps
    max(samples.end_time) as last_measured_at
from touched
left join samples
    on
        touched.user_id = samples.user_id
        and touched.local_date = samples.local_date
        and touched.data_type = samples.data_type
group by touched.user_id, touched.local_date, touched.data_type
