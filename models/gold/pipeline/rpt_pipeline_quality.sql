{{
    config(
        materialized='incremental',
        incremental_strategy='insert_overwrite',
        partition_by=['stream', 'days(received_hour)'],
    )
}}

{% for stream in streams() %}
    {% do note_arrivals(
        source('bronze', stream), day='_kafka_timestamp', own_rows="stream = '" ~ stream ~ "'"
    ) %}
{% endfor %}

-- Days are counted whole: a replay changes what a record was counted as.
with records as (

    {% for stream, its in streams().items() %}
        select
            _error_type,
            _resolved_at,
            _ingested_at,
            '{{ stream }}' as stream,
            {{ time_window('_kafka_timestamp', minutes=60) }} as received_hour,
            -- What was replayed took as long as people did.
            if(_error_type is null, unix_micros({{ its.event_time }}), null) as event_micros
        from {{ source('bronze', stream) }}
        where {{ arrived_on_touched_days(source('bronze', stream), day='_kafka_timestamp') }}
        {{ 'union all' if not loop.last }}
    {% endfor %}

),

timed as (

    select
        stream,
        received_hour,
        _error_type,
        _resolved_at,
        _ingested_at,
        cast((unix_micros(_ingested_at) - event_micros) / 1000000 as decimal(18, 6))
            as latency_seconds
    from records

)

select
    -- ids
    stream,
    received_hour,

    -- numerics
    count(*) as records,
    count_if(_error_type <> 'erased') as errors,
    count_if(_error_type = 'deserialization_error') as deserialization_errors,
    count_if(_error_type = 'schema_error') as schema_errors,
    count_if(_error_type = 'transformation_error') as transformation_errors,
    count_if(_error_type = 'validation_error') as validation_errors,
    count_if(_resolved_at is not null) as resolved_errors,
    count_if(_error_type <> 'erased') / count(*) as error_share,
    {{ exact_average('latency_seconds') }} as average_latency_seconds,
    percentile(latency_seconds, 0.95) as latency_seconds_95,

    -- timestamps
    max(_ingested_at) as _ingested_at
from timed
group by stream, received_hour
