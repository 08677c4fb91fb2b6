{# A layer is a namespace of the catalog, in every target: silver, gold. #}
{% macro generate_schema_name(custom_schema_name, node) %}
    {{ (custom_schema_name or target.schema) | trim }}
{% endmacro %}
