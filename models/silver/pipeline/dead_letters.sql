{{
    config(
        materialized='incremental',
        unique_key=['error_timestamp', 'error_id'],
        partition_by=['stream', 'days(error_timestamp)'],
        meta={
            'newest_by': ['_ingested_at'],
            'forget': 'rebuild',
        },
    )
}}

{% for stream, its in streams().items() %}
    select
        -- ids
        {{ surrogate_key(['_kafka_topic', '_kafka_partition', '_kafka_offset']) }} as error_id,
        '{{ stream }}' as stream,

        -- what was wrong
        _error_type as error_type,
        _error_message as error_message,
        _kafka_value as raw_payload,

        -- whose record it is, as far as it could be read
        {% for column in ['user_id', 'device_id', 'sample_id', 'data_type'] -%}
            {{ column if column in its.whose else 'cast(null as string)' }} as {{ column }},
        {% endfor %}
        -- timestamps
        _kafka_timestamp as error_timestamp,
        _resolved_at as resolved_at,

        -- where it came from
        _kafka_topic as kafka_topic,
        _kafka_partition as kafka_partition,
        _kafka_offset as kafka_offset,
        _ingested_at
    from {{ iceberg.new_rows(source('bronze', stream)) }}
    where {{ is_failed_record() }}
    {{ 'union all' if not loop.last }}
{% endfor %}
