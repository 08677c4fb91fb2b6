-- Each failed record of bronze is a dead letter, up to the arrival that the model says it has read
-- of its stream; and each dead letter is a failed record, as long as bronze has rows of its time.
-- This holds while streams run, and whatever a replay has changed since.
with failed as (

    {% for stream in streams() %}
        select
            _kafka_topic,
            _kafka_partition,
            _kafka_offset,
            _ingested_at,
            '{{ stream }}' as stream
        from {{ source('bronze', stream) }}
        where {{ is_failed_record() }}
        {{ 'union all' if not loop.last }}
    {% endfor %}

),

bronze as (

    {% for stream in streams() %}
        select
            '{{ stream }}' as stream,
            min(_ingested_at) as oldest
        from {{ source('bronze', stream) }}
        {{ 'union all' if not loop.last }}
    {% endfor %}

),

silver as (

    {% for stream in streams() %}
        select
            '{{ stream }}' as stream,
            {{ iceberg.read_until(ref('dead_letters'), source('bronze', stream)) }} as newest
        {{ 'union all' if not loop.last }}
    {% endfor %}

),

compared as (

    select
        failed._ingested_at as failed_at,
        letters._ingested_at as letter_at,
        coalesce(failed.stream, letters.stream) as stream,
        coalesce(failed._kafka_topic, letters.kafka_topic) as kafka_topic,
        coalesce(failed._kafka_partition, letters.kafka_partition) as kafka_partition,
        coalesce(failed._kafka_offset, letters.kafka_offset) as kafka_offset
    from failed
    full outer join {{ ref('dead_letters') }} as letters
        on
            failed._kafka_topic = letters.kafka_topic
            and failed._kafka_partition = letters.kafka_partition
            and failed._kafka_offset = letters.kafka_offset

)

select compared.*
from compared
left join bronze on compared.stream = bronze.stream
left join silver on compared.stream = silver.stream
where
    (compared.letter_at is null and compared.failed_at <= silver.newest)
    or (compared.failed_at is null and compared.letter_at >= bronze.oldest)
