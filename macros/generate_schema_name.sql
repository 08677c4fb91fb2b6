{#
    A layer is a namespace of the catalog, in every target: silver, gold. With a suffix the whole project
    is built beside itself, on the same bronze: HEADWATER_NAMESPACE_SUFFIX for a person of their own, the
    variable `namespace_suffix` for a build to compare with:
    dbt build --full-refresh --vars '{namespace_suffix: _rebuilt}'
#}
{% macro generate_schema_name(custom_schema_name, node) %}
    {{ (custom_schema_name or target.schema) | trim ~ var(
        'namespace_suffix', env_var('HEADWATER_NAMESPACE_SUFFIX', '')
    ) }}
{% endmacro %}
