{#
    A layer is a namespace of the catalog, in every target: silver, gold. With the variable
    `namespace_suffix` the whole project is built beside itself, to compare or to try something out:
    dbt build --full-refresh --vars '{namespace_suffix: _rebuilt}'
#}
{% macro generate_schema_name(custom_schema_name, node) %}
    {{ (custom_schema_name or target.schema) | trim ~ var('namespace_suffix', '') }}
{% endmacro %}
