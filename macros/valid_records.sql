{# A bronze row that silver may read: decoded at once or by a replay, and no tombstone. #}
{% macro is_valid_record() %}
    {{ is_decoded_record() }} and _kafka_value is not null
{% endmacro %}

{# The same with tombstones, for tables where a null value deletes what its key names. #}
{% macro is_decoded_record() -%}
    (_error_type is null or _resolved_at is not null)
{%- endmacro %}

{# A bronze row that failed, whether or not a replay has mended it since. #}
{% macro is_failed_record() -%}
    _error_type is not null and _error_type <> 'erased'
{%- endmacro %}
