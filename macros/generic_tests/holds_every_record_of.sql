{#
    Bronze and silver agree, up to the arrival that silver says it has read: each record of bronze that
    silver may read is there under its key, and silver has nothing else. So rows in are rows out and
    duplicates and errors, also while the stream runs. What is older than all of bronze, whose
    retention may have removed its record, is left out. Keys are compared by their hash, which keeps
    the shuffle small.
#}
{% test holds_every_record_of(model, bronze, key, records) %}

with layers as (

    select
        xxhash64({{ key | join(', ') }}) as key_hash,
        'bronze' as layer
    from {{ bronze }}
    where
        {{ records }}
        and _ingested_at <= {{ iceberg.read_until(model, bronze) }}

    union all

    select
        xxhash64({{ key | join(', ') }}) as key_hash,
        'silver' as layer
    from {{ model }}
    where _ingested_at >= (select min(bronze._ingested_at) from {{ bronze }} as bronze)

)

select
    key_hash,
    min(layer) as only_in
from layers
group by key_hash
having min(layer) = max(layer)

{% endtest %}
