-- The hours of a stream hold as many records and errors as bronze had when they were counted: what
-- arrived until then at least, since a replay gives a row a later arrival, and at most what is
-- there. Where nothing came since, that is one number.
with counted as (

    select
        stream,
        sum(records) as records,
        sum(errors) as errors
    from {{ ref('rpt_pipeline_quality') }}
    group by stream

),

records as (

    {% for stream in streams() %}
        select
            '{{ stream }}' as stream,
            {{ is_failed_record() }} as is_error,
            _ingested_at <= {{ iceberg.read_until(
                ref('rpt_pipeline_quality'), source('bronze', stream)
            ) }} as is_counted
        from {{ source('bronze', stream) }}
        {{ 'union all' if not loop.last }}
    {% endfor %}

),

landed as (

    select
        stream,
        count(*) as most_records,
        count_if(is_counted) as least_records,
        count_if(is_error) as most_errors,
        count_if(is_error and is_counted) as least_errors
    from records
    group by stream

)

select
    landed.*,
    counted.records,
    counted.errors
from landed
left join counted on landed.stream = counted.stream
where
    coalesce(counted.records, 0) not between landed.least_records and landed.most_records
    or coalesce(counted.errors, 0) not between landed.least_errors and landed.most_errors
