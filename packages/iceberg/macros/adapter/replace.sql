{#
    Build a model's table anew. Readers have the old one until the new one is complete, and its history
    stays. A view of the same name cannot be replaced by a table, so it makes way when the table is
    there under another name.
#}
{% macro replace_with_table(existing, target, sql, stamp={}) %}
    {% if existing is not none and existing.is_view %}
        {% set built = target.incorporate(path={'identifier': target.identifier ~ '__dbt_new'}) %}
        {% do iceberg.commit_statement(create_table_as(False, built, sql), stamp) %}
        {% do adapter.drop_relation(existing) %}
        {% do adapter.rename_relation(built, target) %}
    {% else %}
        {% do iceberg.commit_statement(create_table_as(False, target, sql), stamp) %}
    {% endif %}
{% endmacro %}

{# A table makes way for a view only when the view's query is known to be sound. #}
{% macro spark__handle_existing_table(full_refresh, old_relation) %}
    {% do get_columns_in_query(model.compiled_code) %}
    {% do adapter.drop_relation(old_relation) %}
{% endmacro %}

{% macro require_iceberg() %}
    {% if config.get('file_format') != 'iceberg' %}
        {{ exceptions.raise_compiler_error(
            'model ' ~ model.name ~ ' has file_format ' ~ config.get('file_format')
            ~ '. The catalog holds Iceberg tables only: set +file_format: iceberg in dbt_project.yml'
        ) }}
    {% endif %}
{% endmacro %}
