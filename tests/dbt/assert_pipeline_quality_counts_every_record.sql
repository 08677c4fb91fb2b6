-- The hours of a stream hold as many records and errors as bronze had when they were counted: what
-- arrived until then at least, since a replay gives a row a later arrival, and at most what is
-- there. Where nothing came since, that is one number.
with counted as (

    select
        stream,
        sum(records) as records,
        sum(errors) as errors,
        max(_ingested_at) as counted_until
    from {{ ref('rpt_pipeline_quality') }}
    group by stream

),

landed as (

    {% for stream in streams() %}
        select
            '{{ stream }}' as stream,
            _ingested_at,
            {{ is_failed_record() }} as is_error
        from {{ source('bronze', stream) }}
        {{ 'union all' if not loop.last }}
    {% endfor %}

),

compared as (

    select
        counted.stream,
        counted.records,
        counted.errors,
        count(*) as most_records,
        count_if(landed._ingested_at <= counted.counted_until) as least_records,
        count_if(landed.is_error) as most_errors,
        count_if(landed.is_error and landed._ingested_at <= counted.counted_until) as least_errors
    from counted
    inner join landed on counted.stream = landed.stream
    group by counted.stream, counted.records, counted.errors

)

select *
from compared
where
    records not between least_records and most_records
    or errors not between least_errors and most_errors
