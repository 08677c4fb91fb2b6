{# A bronze row that silver may read: decoded at once or by a replay, and no tombstone. #}
{% macro is_valid_record() %}
    (_error_type is null or _resolved_at is not null) and _kafka_value is not null
{% endmacro %}
