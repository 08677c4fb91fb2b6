{# The newest time in a column of this model's table, as a literal; the year 1970 on a first run. #}
{% macro newest_value(relation, column) %}
    {% if execute and is_incremental() %}
        {{ return(_newest(relation, column)) }}
    {% endif %}
    {{ return("timestamp '1970-01-01'") }}
{% endmacro %}

{# Iceberg answers this from its metadata when all rows count; no row is read then. #}
{% macro _newest(relation, column, condition='true') %}
    {% set found = run_query(
        'select cast(max(' ~ column ~ ') as string) from ' ~ relation ~ ' where ' ~ condition
    ) %}
    {{ return("timestamp '" ~ (found.columns[0].values()[0] or '1970-01-01') ~ "'") }}
{% endmacro %}
