{{
    config(
        materialized='incremental',
        unique_key=['stream', 'received_hour'],
        partition_by=['stream', 'days(received_hour)'],
    )
}}

with records as (

    {% for stream, its in streams().items() %}
        select
            stream,
            received_hour,
            _error_type,
            _resolved_at,
            _ingested_at,
            -- What was replayed took as long as people did.
            if(_error_type is null, unix_micros({{ its.event_time }}), null) as event_micros
        from {{ iceberg.rows_to_recompute(
            source('bronze', stream),
            {'stream': "'" ~ stream ~ "'", 'received_hour': iceberg.hour('_kafka_timestamp')},
        ) }}
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
